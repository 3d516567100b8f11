package simulate

import (
	"math"
	"math/bits"
	"time"
)

// fineness is how many bits of a wait are kept: its bucket is narrower than 1/128 of it.
const fineness = 7

// Waits counts waits in buckets whose width grows with the wait, so that a million of
// them take no more room than a thousand. Of each bucket it remembers the longest wait, so
// its quantiles are exact where all waits of a bucket are the same, and never more than
// 0.8 % too long.
type Waits struct {
	buckets []waitBucket // by index
	n       int
}

type waitBucket struct {
	n       int
	longest time.Duration
}

func (w *Waits) add(d time.Duration) {
	i := index(d)
	for len(w.buckets) <= i {
		w.buckets = append(w.buckets, waitBucket{})
	}
	b := &w.buckets[i]
	b.n++
	b.longest = max(b.longest, d)
	w.n++
}

// index returns the number of the bucket of a wait. The buckets up to 2⁸ ns are a
// nanosecond wide, and from each power of two on twice as wide.
func index(d time.Duration) int {
	shift := max(0, bits.Len64(uint64(d))-fineness-1)
	return shift<<fineness + int(d>>shift)
}

// Quantile returns a wait that a share q of all waits did not exceed: the shortest such
// wait, or up to 0.8 % more. Without waits it is 0.
func (w *Waits) Quantile(q float64) time.Duration {
	rank := max(1, int(math.Ceil(q*float64(w.n))))
	for _, b := range w.buckets {
		if rank -= b.n; rank <= 0 {
			return b.longest
		}
	}
	return 0
}

// Longest returns the longest wait, or 0.
func (w *Waits) Longest() time.Duration { return w.Quantile(1) }
