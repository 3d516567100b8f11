package keys

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/shaper"
)

func TestMain(m *testing.M) { run.Tests(m) }

// callsOfOne measures the calls of a limiter in this process, which takes less
// time than a child does.
func callsOfOne(t *testing.T, limiter string, keys int, goroutines []int) callsFound {
	t.Helper()
	found, err := calls(callsInput{limiter, keys, goroutines, time.Millisecond, runtime.GOMAXPROCS(0)})
	require.NoErrorf(t, err, "%s with %d keys", limiter, keys)
	return found
}

// A call that does not come out as it should would be measured as something else.
func TestEveryCallComesOutAsItShould(t *testing.T) {
	for _, c := range rivals.AllKeyed {
		for _, keys := range []int{0, 100} {
			if keys == 0 && c.Alone == nil {
				continue
			}
			found := callsOfOne(t, c.Name, keys, []int{1, 2, 64})
			require.Len(t, found.Timings, len(c.Calls))
			for _, timings := range found.Timings {
				require.Len(t, timings, 3)
				require.Positive(t, timings[2].Ns)
			}
		}
	}
	found, err := callsChild.Take(t.Context(), callsInput{rivals.Ours, 100, goroutines, time.Millisecond, 1})
	require.NoError(t, err)
	require.Len(t, found.Timings, 2)
	require.Positive(t, found.Bytes)
	_, err = callsChild.Take(t.Context(), callsInput{Limiter: "nobody"})
	require.ErrorContains(t, err, "no rival with keys is named nobody")
}

// A drained bucket is not among the live ones.
func TestKeptBucketsAreNotDrained(t *testing.T) {
	for keys, after := range map[int]time.Duration{0: 99 * time.Millisecond, 1_000_000: 59 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return keptBucket(keys).Limits(), nil })
			require.NoError(t, err)
			require.True(t, g.Allow("a"))
			time.Sleep(after)
			live := 0
			for range g.All() {
				live++
			}
			require.Equal(t, 1, live, "%v", keys)
			require.NoError(t, g.Close())
		})
	}
}

func TestMemoryOfKeysIsThatOfTheLimiter(t *testing.T) {
	require.Greater(t, callsOfOne(t, "x-time", 20_000, []int{1}).Bytes, 16+16+8+40., "name, string, pointer and limiter")
	roomy := callsOfOne(t, "sethvargo", 1_000, []int{1})
	require.Greater(t, roomy.FirstKiB, 100.0, "it makes room for 4096 keys at once")
	require.Less(t, roomy.Bytes, 150.0, "which is not each key's")
}

// Memory in use must be there when it is measured, and memory out of use must not.
func TestWhatIsLeftIsNotWhatTheCollectorCouldTake(t *testing.T) {
	leftOf := func(limiter string) (found leftFound) {
		synctest.Test(t, func(t *testing.T) {
			var err error
			found, err = left(leftInput{limiter, 20_000, time.Second})
			require.NoError(t, err)
		})
		return found
	}
	theirs := leftOf("x-time")
	require.InDelta(t, theirs.Full, theirs.Left, theirs.Full/10, "nothing deletes them")
	ours := leftOf(rivals.Ours)
	require.Greater(t, ours.Full, 50.0)
	require.Less(t, ours.Left, ours.Full/2, "but for the map")
}
