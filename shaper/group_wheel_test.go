package shaper

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/exact"
)

// The wheel alone, in the hands of nobody but this file: what is put in comes up in
// time, as from a plain slice.

// slowWheel is a wheel as one would write it down: when each flow is to come up at
// the earliest, and at the latest.
type slowWheel map[*keyedFlow[int]]struct{ earliest, latest int64 }

func TestTheWheelIsWhatASliceWouldBe(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 1))
	for round := range 20 {
		var fast wheel[int]
		slow := slowWheel{}
		var flows []*keyedFlow[int]
		for i := range 1 + r.IntN(40) {
			flows = append(flows, &keyedFlow[int]{key: i})
		}
		now := r.Int64N(1000 * spoke)
		tookAll := true // what was due when now was set
		for range 400 {
			switch r.IntN(5) {
			case 0, 1:
				kf := flows[r.IntN(len(flows))]
				if _, is := slow[kf]; is {
					break
				}
				drained := now + []int64{0, 1, r.Int64N(spoke), spoke, r.Int64N(100 * spoke), spokes * spoke, 1e6 * spoke}[r.IntN(7)]
				if r.IntN(8) == 0 {
					drained = exact.Forever
				}
				at := fast.add(kf, now, drained)
				was := struct{ earliest, latest int64 }{min(drained, now+(spokes-1)*spoke-spoke), drained + spoke - 1}
				if drained == exact.Forever {
					was.earliest, was.latest = now+spoke, now+2*spoke-1
				}
				if !tookAll {
					was.earliest = 0 // It may come up at once, and be looked at in vain.
				}
				require.LessOrEqual(t, was.earliest, at)
				require.LessOrEqual(t, at, max(was.latest, now+spoke-1), "round %d", round)
				slow[kf] = struct{ earliest, latest int64 }{at, at}
			case 2:
				if kf := flows[r.IntN(len(flows))]; kf.next != nil {
					fast.remove(kf)
					require.True(t, kf.next == nil && kf.prev == nil)
					delete(slow, kf)
				}
			case 3:
				now += []int64{1, r.Int64N(spoke), r.Int64N(10 * spoke), r.Int64N(200 * spoke)}[r.IntN(4)]
				tookAll = false
			case 4:
				most := r.IntN(20)
				for range most {
					kf := fast.take(now)
					var due []*keyedFlow[int]
					for other, when := range slow {
						if when.earliest <= now {
							due = append(due, other)
						}
					}
					if kf == nil {
						require.Empty(t, due, "it does not come up")
						tookAll = true
						break
					}
					require.Contains(t, due, kf, "it comes up too soon")
					for _, other := range due {
						require.LessOrEqual(t, slow[kf].earliest, slow[other].earliest, "out of order")
					}
					delete(slow, kf)
				}
			}
			requireSameWheel(t, slow, &fast, flows)
		}
	}
}

func requireSameWheel(t *testing.T, slow slowWheel, fast *wheel[int], flows []*keyedFlow[int]) {
	t.Helper()
	require.Equal(t, len(slow), fast.len)
	next := int64(exact.Forever)
	for _, when := range slow {
		next = min(next, when.earliest)
	}
	require.Equal(t, next, fast.next())
	var found []*keyedFlow[int]
	for i, head := range fast.heads {
		for kf := head; kf != nil; {
			require.EqualValues(t, i, kf.spoke)
			require.True(t, kf.next.prev == kf && kf.prev.next == kf)
			found = append(found, kf)
			if kf = kf.next; kf == head {
				break
			}
		}
	}
	require.Len(t, found, len(slow))
	for _, kf := range flows {
		_, is := slow[kf]
		require.Equal(t, is, slices.Contains(found, kf))
		require.Equal(t, is, kf.next != nil)
	}
}
