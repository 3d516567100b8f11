package shaper

import (
	"time"

	"example.com/leakybucket/shaper/internal/exact"
)

const (
	// spokeTime is the resolution of a wheel: a drained bucket is deleted at most that
	// much later.
	spokeTime = 500 * time.Millisecond
	spoke     = int64(spokeTime)
	// spokes is how many spokes a wheel has; together they are half a minute. A
	// bucket that will be drained later is looked at then, and put further on.
	spokes = 64
	// sweptAtOnce is how many buckets one sweep looks at, which bounds for how long it
	// holds the lock. The next sweep goes on from there.
	sweptAtOnce = 128
)

// wheel holds the buckets of a Group by the instants at which they may be drained,
// rounded up to whole spokes: a timing wheel (Varghese and Lauck, SOSP 1987, scheme
// 5). A bucket that is used drains later, but need not be moved: when its turn comes it
// is put further on. Only a bucket that will be drained earlier has to be moved. The
// lock of the Group guards the wheel.
type wheel[K comparable] struct {
	heads [spokes]*keyedFlow[K] // of doubly linked rings
	at    int64                 // the number of the spoke that comes next
	len   int
}

// add puts in a bucket that will be drained at an instant (forever: that is unknown),
// and returns the instant at which its turn comes.
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

// remove takes a bucket out.
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

// take takes out the first bucket whose turn has come, and returns nil if there is
// none.
func (v *wheel[K]) take(now int64) *keyedFlow[K] {
	for ; v.len > 0 && v.at*spoke <= now; v.at++ {
		if c := v.heads[v.at%spokes]; c != nil {
			v.remove(c)
			return c
		}
	}
	return nil
}

// next returns the instant at which the turn of the next bucket comes; forever if there
// is none.
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
