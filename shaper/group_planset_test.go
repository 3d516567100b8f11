package shaper

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
)

// len returns how many plans there are.
func (ps *planSet) len() int { return len(ps.few) + len(ps.many) }

// The set alone, beside a map of Go's, with fewer and with more plans than are in a slice.
func TestTheSetOfPlansIsWhatAMapWouldBe(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	for _, kinds := range []int{1, fewPlans, fewPlans + 1, 100} {
		var set planSet
		slow := map[Limits]*plan{}
		for range 3000 {
			l := Limits{Rate: rate.Limit(1 + r.IntN(kinds)), Depth: 7}
			require.True(t, set.of(l) == slow[l])
			switch p := slow[l]; {
			case p == nil:
				slow[l] = planOf(l)
				set.add(slow[l])
			case r.IntN(2) == 0:
				set.remove(p)
				delete(slow, l)
			}
			if r.IntN(50) == 0 {
				set.shrink(fewPlans)
			}
			require.Equal(t, len(slow), set.len())
		}
		for l, p := range slow {
			require.True(t, set.of(l) == p)
		}
		require.Equal(t, kinds <= fewPlans, set.many == nil)

		// Of many plans few are left, and the memory of the others is given back.
		peak := set.peak
		for l, p := range slow {
			if len(slow) == 1 {
				break
			}
			set.remove(p)
			delete(slow, l)
		}
		set.shrink(0)
		if peak > 16 {
			require.Equal(t, 1, set.peak)
		}
		require.Equal(t, len(slow), set.len())
		for l, p := range slow {
			require.True(t, set.of(l) == p)
		}
	}
}
