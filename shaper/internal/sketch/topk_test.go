package sketch

import (
	"fmt"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// keyStreams are endless streams of keys: usual ones, and those that are worst for a list
// of m keys.
func keyStreams(m int) map[string]func() int {
	random := rand.New(rand.NewPCG(7, uint64(m)))
	zipf := rand.NewZipf(random, 1.1, 1, 1<<20)
	turn := 0
	next := func() int { turn++; return turn }
	return map[string]func() int{
		"all different":          next,
		"one more than m, round": func() int { return next() % (m + 1) },
		"twice m, round":         func() int { return next() % (2 * m) },
		"as many as m, at random": func() int {
			return random.IntN(m)
		},
		"zipf": func() int { return int(zipf.Uint64()) },
		// Each key comes just often enough to exceed the count of the one before.
		"longer and longer runs": func() int { return int(math.Sqrt(float64(next()))) },
		"a new key between each two of a few": func() int {
			if n := next(); n%2 == 0 {
				return -1 - n/2%3
			}
			return turn
		},
		// A key comes less often the larger its counter is, so that many counters
		// are equal.
		"levelling": func() int {
			if random.IntN(m) == 0 {
				return next()
			}
			return turn - random.IntN(m)
		},
	}
}

// The bounds that Count promises are compared with a map that counts exactly.
func TestTopKKeepsItsBounds(t *testing.T) {
	t.Parallel()
	for _, m := range []int{1, 2, 3, 10, 64, 1024} {
		for name, next := range keyStreams(m) {
			t.Run(fmt.Sprintf("m=%d/%s", m, name), func(t *testing.T) {
				h, exact := NewTopK[int](m), map[int]uint64{}
				for n := uint64(1); n <= 10_000; n++ {
					key := next()
					h.Add(key)
					exact[key]++
					if n < 50 || n%499 == 0 {
						require.Equal(t, n, h.events)
						checkTopK(t, h.Top(m), exact, m, n)
						checkChains(t, &h)
					}
				}
			})
		}
	}
}

func checkTopK(t *testing.T, top []Count[int], exact map[int]uint64, m int, events uint64) {
	t.Helper()
	require.Len(t, top, min(m, len(exact)), "all counters are in use if there are keys for them")
	bound := events / uint64(m)
	var sum uint64
	listed := map[int]bool{}
	for i, k := range top {
		occurred := exact[k.Key]
		require.False(t, listed[k.Key], "key %d stands in the list twice", k.Key)
		listed[k.Key] = true
		sum += k.Count
		if k.Count-k.Error <= occurred && occurred <= k.Count && k.Error <= bound &&
			(k.Error == 0 || len(exact) > m) && (i == 0 || k.Count <= top[i-1].Count) {
			continue
		}
		require.Failf(t, "out of bounds or order", "%+v occurred %d times, bound %d", k, occurred, bound)
	}
	require.Equal(t, events, sum, "the proof of the bound rests on this sum")
	for key, occurred := range exact {
		if occurred > bound {
			require.True(t, listed[key], "key %d occurred %d times, bound %d", key, occurred, bound)
		}
	}
}

// A client that makes up keys cannot hide the key that is refused most.
func TestAHeavyKeySurvivesAMillionOthers(t *testing.T) {
	t.Parallel()
	const m = 1024
	others := 100_000
	if long {
		others = 1_000_000
	}
	h := NewTopK[string](m)
	occurred := uint64(0)
	for i := range others {
		h.Add("other " + strconv.Itoa(i))
		if i%500 == 499 { // one in 501, where one in 1,024 is enough
			h.Add("heavy")
			occurred++
		}
	}
	top := h.Top(2)
	require.Equal(t, "heavy", top[0].Key)
	require.Less(t, top[0].Error, uint64(500), "its counter has been its own since its first event")
	require.Equal(t, occurred, top[0].Count-top[0].Error)
	require.LessOrEqual(t, top[1].Count, (uint64(others)+occurred)/m+1)
}

// A heavy key that comes late takes over the count of another key. It must soon be
// distinguished from keys whose count was only taken over.
func TestALateHeavyKeyIsFound(t *testing.T) {
	t.Parallel()
	const m = 1024
	h := NewTopK[int](m)
	for i := range 200_000 {
		h.Add(i)
	}
	for range 2000 {
		h.Add(-1)
	}
	top := h.Top(1)
	require.Equal(t, -1, top[0].Key)
	require.Equal(t, uint64(2000), top[0].Count-top[0].Error)
	require.LessOrEqual(t, top[0].Error, h.events/m)
}

func TestTopIsInAStableOrder(t *testing.T) {
	h := NewTopK[string](4)
	require.Empty(t, h.Top(3), "nobody yet")
	for _, key := range []string{"d", "b", "c", "c", "a"} {
		h.Add(key)
	}
	want := []Count[string]{{"c", 2, 0}, {"d", 1, 0}, {"b", 1, 0}, {"a", 1, 0}}
	require.Equal(t, want, h.Top(4), "of equals the one that came first")
	require.Equal(t, want, h.Top(5))
	require.Equal(t, want, h.Top(math.MaxInt))
	require.Equal(t, want[:2], h.Top(2))
	require.Nil(t, h.Top(0))
	require.Nil(t, h.Top(-1))
	require.Nil(t, h.Top(math.MinInt))

	h.Add("e") // takes over one of the three
	top := h.Top(2)
	require.Equal(t, []Count[string]{{"c", 2, 0}, {"e", 2, 1}}, top, "of equals the one with the smaller error")
	top[0].Key = "changed"
	require.Equal(t, "c", h.Top(1)[0].Key, "the list is the caller's")
}

func TestSnapshotStaysAsItWas(t *testing.T) {
	h := NewTopK[int](8)
	for i := range 100 {
		h.Add(i % 11)
	}
	want := h.Top(8)
	s := h.Snapshot()
	require.Equal(t, uint64(100), s.events)
	for i := range 100 {
		h.Add(100 + i)
	}
	require.Equal(t, want, s.Top(8))
	require.NotEqual(t, want, h.Top(8))
}

// The same events give the same list, whatever the seed of the hash, so that tests of code
// that uses a list can be exact.
func TestTopKDoesNotDependOnItsSeed(t *testing.T) {
	run := func() []Count[int] {
		h, next := NewTopK[int](64), keyStreams(64)["zipf"]
		for range 20_000 {
			h.Add(next())
		}
		return h.Top(64)
	}
	want := run()
	for range 5 {
		require.Equal(t, want, run())
	}
}

// No map can find or delete a NaN.
func TestNaNKeysLeaveTheOthersAlone(t *testing.T) {
	const m = 16
	h := NewTopK[float64](m)
	for i := range 100_000 {
		h.Add(math.NaN())
		if i%10 == 0 {
			h.Add(1.5)
			h.Add(math.Copysign(0, float64(i%20)-5)) // 0 and −0 are one key
		}
	}
	top := h.Top(m + 1)
	require.Len(t, top, m)
	for i, key := range []float64{1.5, 0} {
		require.Equal(t, key, top[i].Key)
		require.Equal(t, uint64(10_000), top[i].Count-top[i].Error)
	}
	for _, k := range top[2:] {
		require.True(t, math.IsNaN(k.Key))
		require.Equal(t, uint64(1), k.Count-k.Error, "each is a new one")
	}
	checkChains(t, &h)
}

// Two keys with the same hash are counted separately.
func TestTopKTellsKeysOfOneHashApart(t *testing.T) {
	h := NewTopK[int](2)
	h.Add(1)
	h.counters[0].hash = maphash.Comparable(h.seed, 2)
	clear(h.chains)
	h.link(0)
	h.Add(2)
	h.Add(2)
	require.Equal(t, []Count[int]{{2, 2, 0}, {1, 1, 0}}, h.Top(2))
	h.Add(3) // takes over from the key that is further back in the chain
	h.Add(2)
	require.Equal(t, []Count[int]{{2, 3, 0}, {3, 2, 1}}, h.Top(2))
}

func TestTopKTakesKeysOfAnyComparableType(t *testing.T) {
	type pair struct {
		user   string
		action any
	}
	h := NewTopK[pair](2)
	for range 3 {
		h.Add(pair{"ann", 1})
		h.Add(pair{"ann", "1"})
	}
	h.Add(pair{})
	require.Equal(t, []Count[pair]{{pair{}, 4, 3}}, slices.DeleteFunc(h.Top(2), func(k Count[pair]) bool { return k.Key.user != "" }))
}

// The memory grows with the keys until all counters are used.
func TestTopKIsOfFixedSize(t *testing.T) {
	const m = 1000 // not a power of two
	h := NewTopK[int](m)
	size := func() [3]int { return [3]int{cap(h.counters), len(h.chains), cap(h.least)} }
	require.Zero(t, size(), "none before the first event")
	for range 100 {
		h.Add(1)
	}
	require.Equal(t, [3]int{8, 8, 0}, size())
	for i := range m {
		h.Add(i)
		if i%50 == 0 {
			checkChains(t, &h)
		}
	}
	require.Equal(t, [3]int{m, 1024, m}, size())
	for i := range 200_000 {
		h.Add(i)
	}
	require.Equal(t, [3]int{m, 1024, m}, size())
	checkChains(t, &h)
}

// checkChains requires that each counter is in the chain of its hash, once, and that no
// parent in the heap has a greater count than its children.
func checkChains[K comparable](t *testing.T, h *TopK[K]) {
	t.Helper()
	seen := 0
	for i := range h.chains {
		for l := h.chains[i]; l != 0; l = h.counters[l-1].next {
			seen++
			if seen > len(h.counters) || h.counters[l-1].hash&uint64(len(h.chains)-1) != uint64(i) {
				require.Fail(t, "a chain is a ring, or holds what belongs to another")
			}
		}
	}
	require.Equal(t, len(h.counters), seen)
	for at, i := range h.least {
		if h.counters[i].at != int32(at) || h.counters[i].count < h.counters[h.least[(at-1)/2]].count {
			require.Fail(t, "a counter is not where the heap has it", "counter %d at %d", i, at)
		}
	}
}

func TestAFullTopKAllocatesNothing(t *testing.T) {
	const m = 1024
	keys := make([]string, 100*m)
	for i := range keys {
		keys[i] = strconv.Itoa(i)
	}
	h := NewTopK[string](m)
	for _, key := range keys[:m] {
		h.Add(key)
	}
	for name, some := range map[string][]string{"keys without a counter": keys, "keys with one": keys[:1]} {
		// Of five runs the mean counts, as the runtime may allocate something meanwhile.
		require.Zero(t, testing.AllocsPerRun(5, func() {
			for _, key := range some {
				h.Add(key)
			}
		}), name)
	}
}

// What is promised of a Count holds for two streams together, whichever of them came first,
// and goes on to hold for what comes after Merge.
func TestMergedCountsKeepWhatIsPromised(t *testing.T) {
	const m = 16
	for first := range keyStreams(m) {
		for second := range keyStreams(m) {
			for seed := range uint64(3) {
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
