package sketch

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is promised of a Count holds for two streams together, whichever of them came first,
// and goes on to hold for what comes after Merge.
func TestMergedCountsKeepWhatIsPromised(t *testing.T) {
	const m = 16
	for first := range keyStreams(m) {
		for second := range keyStreams(m) {
			for seed := range uint64(8) {
				r := rand.New(rand.NewPCG(seed, 9))
				trueCounts := map[int]uint64{}
				add := func(to *TopK[int], stream func() int, n, shift int) {
					for range n {
						key := stream() + shift
						to.Add(key)
						trueCounts[key]++
					}
				}
				a, b := NewTopK[int](m), NewTopK[int](m)
				add(&a, keyStreams(m)[first], r.IntN(400), 0)
				add(&b, keyStreams(m)[second], r.IntN(400), r.IntN(2)*7)
				saved := b.Snapshot()
				a.Merge(saved.Top(m), saved.Events(), saved.Least())
				requirePromises(t, &a, trueCounts, m)
				add(&a, keyStreams(m)[first], r.IntN(400), 3)
				requirePromises(t, &a, trueCounts, m)
			}
		}
	}
}

// requirePromises checks the three points of the comment at Count, and Least.
func requirePromises(t *testing.T, k *TopK[int], trueCounts map[int]uint64, m int) {
	t.Helper()
	total := uint64(0)
	for _, n := range trueCounts {
		total += n
	}
	require.Equal(t, total, k.Events())
	found := map[int]bool{}
	sum := uint64(0)
	for _, c := range k.Top(m) {
		require.False(t, found[c.Key], "each key once")
		found[c.Key] = true
		sum += c.Count
		require.GreaterOrEqual(t, c.Count, trueCounts[c.Key])
		require.LessOrEqual(t, c.Count-c.Error, trueCounts[c.Key])
		require.LessOrEqual(t, c.Error, total/uint64(m))
	}
	require.LessOrEqual(t, sum, total)
	for key, n := range trueCounts {
		if !found[key] {
			require.LessOrEqual(t, n, k.Least())
			require.LessOrEqual(t, n, total/uint64(m))
		}
	}
}

// While there are counters to spare, nothing is uncertain.
func TestFewKeysAreMergedExactly(t *testing.T) {
	a, b := NewTopK[string](4), NewTopK[string](4)
	for _, key := range []string{"x", "y", "y"} {
		a.Add(key)
	}
	for _, key := range []string{"y", "z"} {
		b.Add(key)
	}
	a.Merge(b.Top(4), b.Events(), b.Least())
	require.Equal(t, []Count[string]{{"y", 3, 0}, {"x", 1, 0}, {"z", 1, 0}}, a.Top(4))
	a.Merge(nil, 0, 0)
	require.EqualValues(t, 5, a.Events())
}
