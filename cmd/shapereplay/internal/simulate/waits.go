package simulate

import (
	"math"
	"math/bits"
	"time"
)

// fineness is how many bits of a wait are kept: its bucket is narrower than 1/128 of it.
const fineness = 7

// Waits counts waits in buckets whose width grows with the wait, so that a million of
// them take no more room than a thousand. Its quantiles are at most 0.8 % too long. The
// longest wait is exact.
type Waits struct {
	counts  []int // by index
	n       int
	longest time.Duration
}

func (w *Waits) add(d time.Duration) {
	i := index(d)
	for len(w.counts) <= i {
		w.counts = append(w.counts, 0)
	}
	w.counts[i]++
	w.n++
	w.longest = max(w.longest, d)
}

// index returns the number of the bucket of a wait. The buckets up to 2⁸ ns are a
// nanosecond wide, and from each power of two on twice as wide.
func index(d time.Duration) int {
	shift := max(0, bits.Len64(uint64(d))-fineness-1)
	return shift<<fineness + int(d>>shift)
}

// longestIn returns the longest wait that has an index.
func longestIn(i int) time.Duration {
	shift := max(0, i>>fineness-1)
	return time.Duration(i-shift<<fineness+1)<<shift - 1
}

// Quantile returns a wait that a share q of all waits did not exceed: the shortest such
// wait, or up to 0.8 % more. Without waits it is 0.
func (w *Waits) Quantile(q float64) time.Duration {
	rank := max(1, int(math.Ceil(q*float64(w.n))))
	for i, n := range w.counts {
		if rank -= n; rank <= 0 {
			return min(longestIn(i), w.longest)
		}
	}
	return 0
}

// Longest returns the longest wait, or 0.
func (w *Waits) Longest() time.Duration { return w.longest }
