//go:build !race

package shaper_test

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// A goroutine begins with 2 KiB of stack, and one that needs a little more has
// 4. Of many that wait this is nearly all the memory. (The race detector makes
// frames larger.)
func TestAWaiterHasTheSmallestStack(t *testing.T) {
	const waiters = 5000
	cancelled, cancel := context.WithCancel(context.Background())
	defer cancel()
	for name, ctx := range map[string]context.Context{"that never ends": context.Background(), "that can end": cancelled} {
		s := mustMake(t, shaper.Limits{Rate: 1. / 3600, Depth: waiters})
		require.True(t, s.Allow())
		before := stackInUse()
		var callers sync.WaitGroup
		for range waiters {
			callers.Go(func() { _ = s.Wait(ctx) })
		}
		for s.Stats().Waiting < waiters {
			runtime.Gosched()
		}
		each := float64(stackInUse()-before) / waiters
		// A few come upon the allocator in a moment in which it needs more.
		require.Less(t, each, 2048*1.1, "with a context %s", name)
		require.NoError(t, s.Close())
		callers.Wait()
	}
}

// stackInUse is that of live goroutines.
func stackInUse() uint64 {
	runtime.GC()
	runtime.GC() // The first finds the stacks of those who have ended, the second frees them.
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.StackInuse
}
