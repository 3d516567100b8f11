package keys

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/shaper"
)

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
	memoryOf := func(limiter string, keys int) (once, each float64) {
		lines := kind{limiter, keys, nil, runtime.GOMAXPROCS(0)}.measure(t, limiter, 0)
		return report.Median(lines, limiter, "once-KiB"), report.Median(lines, limiter, "B/key")
	}
	_, each := memoryOf("x-time", 20_000)
	require.Greater(t, each, 16+16+8+40., "name, string, pointer and limiter")
	once, each := memoryOf("sethvargo", 1_000)
	require.Greater(t, once, 100.0, "it makes room for 4096 keys at once")
	require.Less(t, each, 150.0, "which is not each key's")
}

// Memory in use must be there when it is measured, and memory out of use must not.
func TestWhatIsLeftIsNotWhatTheCollectorCouldTake(t *testing.T) {
	leftOf := func(limiter string) (found leftFound) {
		synctest.Test(t, func(t *testing.T) {
			found = left(t, limiter, 20_000, time.Second)
		})
		return found
	}
	theirs := leftOf("x-time")
	require.InDelta(t, theirs.Full, theirs.Left, theirs.Full/10, "nothing deletes them")
	ours := leftOf(rivals.Ours)
	require.Greater(t, ours.Full, 50.0)
	require.Less(t, ours.Left, ours.Full/2, "but for the map")
}
