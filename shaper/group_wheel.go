package shaper

import (
	"time"

	"example.com/leakybucket/shaper/internal/exact"
)

const (
	// spoke is how finely a wheel tells instants apart: a drained bucket is
	// deleted no more than that later.
	spokeTime = 500 * time.Millisecond
	spoke     = int64(spokeTime)
	// spokes is how far ahead it looks, which is half a minute. What is further
	// ahead is looked at then, and put further on.
	spokes = 64
	// sweptAtOnce bounds for how long a sweep has the lock. The next goes on.
	sweptAtOnce = 128
)

// wheel holds the cells of a Group by the instants at which they may be drained,
// rounded up to whole spokes: a timing wheel (Varghese and Lauck, SOSP 1987, scheme
// 5). A bucket that is used drains later, but need not be moved: it is looked at
// when it comes up, and put further on. One that drains sooner is moved. The lock
// of the Group guards it.
type wheel[K comparable] struct {
	heads [spokes]*keyedFlow[K] // of doubly linked rings
	at    int64                 // the spoke that comes next
	len   int
}

// add puts a cell in that is drained at an instant, forever if that is not known,
// and returns when it comes up.
func (v *wheel[K]) add(c *keyedFlow[K], now, drained int64) (at int64) {
	if v.len == 0 {
		v.at = max(v.at, now/spoke)
	}
	if drained == exact.Forever {
		drained = now + spoke
	}
	i := v.at
	if drained > v.at*spoke {
		i = min((drained-1)/spoke+1, v.at+spokes-1)
	}
	c.spoke = uint8(i % spokes)
	head := &v.heads[c.spoke]
	if *head == nil {
		*head, c.prev, c.next = c, c, c
	} else {
		c.prev, c.next = (*head).prev, *head
		c.prev.next, c.next.prev = c, c
	}
	v.len++
	return i * spoke
}

// remove takes a cell out.
func (v *wheel[K]) remove(c *keyedFlow[K]) {
	head := &v.heads[c.spoke]
	switch {
	case c.next == c:
		*head = nil
	case *head == c:
		*head = c.next
		fallthrough
	default:
		c.prev.next, c.next.prev = c.next, c.prev
	}
	c.prev, c.next = nil, nil
	v.len--
}

// take takes the first cell out that comes up by now.
func (v *wheel[K]) take(now int64) *keyedFlow[K] {
	for ; v.len > 0 && v.at*spoke <= now; v.at++ {
		if c := v.heads[v.at%spokes]; c != nil {
			v.remove(c)
			return c
		}
	}
	return nil
}

// next is when the next cell comes up; forever if there is none.
func (v *wheel[K]) next() int64 {
	if v.len == 0 {
		return exact.Forever
	}
	i := v.at
	for v.heads[i%spokes] == nil {
		i++
	}
	return i * spoke
}
