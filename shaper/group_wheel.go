package shaper

import (
	"time"

	"example.com/leakybucket/internal/exact"
)

const (
	// sweepInterval is the resolution of a wheel: a drained bucket is deleted at most
	// that much later.
	sweepInterval = 500 * time.Millisecond
	spoke         = int64(sweepInterval)
	// spokes is how many spokes a wheel has; together they are half a minute. A
	// bucket that will be drained later is looked at then, and put further on.
	spokes = 64
	// sweptAtOnce is how many buckets one sweep looks at, which bounds for how long it
	// holds the lock. The next sweep goes on from there.
	sweptAtOnce = 128
)

// wheel holds the buckets of a keyShard by the instants at which they may be drained,
// rounded up to whole spokes: a timing wheel (Varghese and Lauck, SOSP 1987, scheme
// 5). A bucket that is used drains later, but need not be moved: when its turn comes it
// is put further on. Only a bucket that will be drained earlier has to be moved. The
// lock of the shard guards the wheel.
type wheel[K comparable] struct {
	heads [spokes]*keyedFlow[K] // of doubly linked rings
	at    int64                 // the number of the spoke that comes next
	len   int
}

// add puts in a bucket that will be drained at an instant (forever: that is unknown),
// and returns the instant at which its turn comes.
func (w *wheel[K]) add(kf *keyedFlow[K], now, drained int64) (at int64) {
	if w.len == 0 {
		w.at = max(w.at, now/spoke)
	}
	if drained == exact.Forever {
		drained = now + spoke
	}
	i := w.at
	if drained > w.at*spoke {
		i = min((drained-1)/spoke+1, w.at+spokes-1)
	}
	kf.spoke = uint8(i % spokes)
	head := &w.heads[kf.spoke]
	if *head == nil {
		*head, kf.prev, kf.next = kf, kf, kf
	} else {
		kf.prev, kf.next = (*head).prev, *head
		kf.prev.next, kf.next.prev = kf, kf
	}
	w.len++
	return i * spoke
}

// remove takes a bucket out.
func (w *wheel[K]) remove(kf *keyedFlow[K]) {
	head := &w.heads[kf.spoke]
	switch {
	case kf.next == kf:
		*head = nil
	case *head == kf:
		*head = kf.next
		fallthrough
	default:
		kf.prev.next, kf.next.prev = kf.next, kf.prev
	}
	kf.prev, kf.next = nil, nil
	w.len--
}

// take takes out the first bucket whose turn has come, and returns nil if there is
// none.
func (w *wheel[K]) take(now int64) *keyedFlow[K] {
	for ; w.len > 0 && w.at*spoke <= now; w.at++ {
		if kf := w.heads[w.at%spokes]; kf != nil {
			w.remove(kf)
			return kf
		}
	}
	return nil
}

// next returns the instant at which the turn of the next bucket comes; forever if there
// is none.
func (w *wheel[K]) next() int64 {
	if w.len == 0 {
		return exact.Forever
	}
	i := w.at
	for w.heads[i%spokes] == nil {
		i++
	}
	return i * spoke
}
