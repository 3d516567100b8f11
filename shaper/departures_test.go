package shaper

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
)

// This file tests the heap by itself: however lines, their buckets and their seats change,
// its first line must be one whose head leaves first, as a search of a plain slice finds it.

func TestTheNextDepartureIsTheLeastOfAll(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 2))
	plans := []*plan{
		planOf(Limits{Rate: 1, Depth: 9}), planOf(Limits{Rate: 7, Burst: 3, Depth: 9}),
		planOf(Limits{Rate: 1e9, Depth: 9, InFlight: 1}), planOf(Limits{Rate: rate.Inf, Depth: 9}),
	}
	for range 6 {
		var heap departures
		var spare waiterPool
		var flows []*flow
		for range 1 + r.IntN(30) {
			f := &flow{bucket: bucket{plan: plans[r.IntN(len(plans))]}}
			f.line = &line{flow: f, index: -1}
			flows = append(flows, f)
		}
		for now := range int64(300) {
			f := flows[r.IntN(len(flows))]
			ln := f.line
			switch r.IntN(8) {
			case 0, 1, 2:
				ln.push(spare.take(1+r.Int64N(5), now))
			case 3:
				if ln.head != nil {
					ln.remove([]*waiter{ln.head, ln.tail}[r.IntN(2)], abandoned)
				}
			case 4:
				f.bucket.empty = exact.At(r.Int64N(20) * msec)
			case 5:
				f.bucket.coldOrNew().hold = exact.At(r.Int64N(20) * msec)
			case 6:
				ln.seatsTaken = int32(r.IntN(2))
			case 7:
				for ln.head != nil {
					ln.remove(ln.head, refused)
				}
			}
			if ln.head != nil {
				ln.slot = f.headMayLeave()
			}
			heap.update(ln)
			requireHeap(t, heap, flows)
		}
	}
}

// requireHeap checks all that a heap is asked, the order of its elements and their indexes.
func requireHeap(t *testing.T, heap departures, flows []*flow) {
	t.Helper()
	waiting, least := 0, int64(exact.Forever)
	for _, f := range flows {
		if f.line.head == nil {
			require.EqualValues(t, -1, f.line.index, "nobody waits there")
			continue
		}
		waiting++
		least = min(least, f.headMayLeave())
		require.True(t, heap[f.line.index] == f.line)
		require.Equal(t, f.headMayLeave(), f.line.slot)
	}
	require.Len(t, heap, waiting)
	if waiting > 0 {
		require.Equal(t, least, heap[0].slot)
	}
	for i := range heap {
		require.LessOrEqual(t, heap[(i-1)/2*min(i, 1)].slot, heap[i].slot)
	}
	for _, rest := range heap[len(heap):cap(heap)] {
		require.Nil(t, rest, "what has been taken out is forgotten")
	}
}
