package keyed

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The SmallMap beside a map of Go's, with fewer and with more entries than are in a slice.
func TestASmallMapIsWhatAMapWouldBe(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	for _, kinds := range []int{1, few, few + 1, 100} {
		var small SmallMap[int, *int]
		slow := map[int]*int{}
		for range 3000 {
			key := 1 + r.IntN(kinds)
			require.True(t, small.Get(key) == slow[key])
			switch {
			case slow[key] == nil:
				slow[key] = &key
				small.Add(key, slow[key])
			case r.IntN(2) == 0:
				small.Delete(key)
				delete(slow, key)
			}
			if r.IntN(50) == 0 {
				small.Shrink(few)
			}
			require.Equal(t, len(slow), small.Len())
		}
		for key, value := range slow {
			require.True(t, small.Get(key) == value)
			require.True(t, slices.Contains(slices.Collect(small.Values()), value))
		}
		require.Equal(t, kinds <= few, small.many == nil)

		// Of many entries few are left, and the memory of the others is given back.
		peak := small.peak
		for key := range slow {
			if len(slow) == 1 {
				break
			}
			small.Delete(key)
			delete(slow, key)
		}
		small.Shrink(0)
		if peak > 16 {
			require.Equal(t, 1, small.peak)
		}
		require.Equal(t, len(slow), small.Len())
		for key, value := range slow {
			require.True(t, small.Get(key) == value)
		}
	}
}
