package shaper_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// A request whose context never ends waits on something else than a channel. These tests end
// its wait before its goroutine has begun to sleep, while the hook Enqueued still runs.

// withSlowEntries makes a Shaper whose hook Enqueued takes as long as *takes says. If that is
// negative, the hook panics at its end.
func withSlowEntries(t *testing.T, l shaper.Limits, takes *time.Duration) *shaper.Shaper {
	t.Helper()
	s, err := shaper.New(l, shaper.WithTrace(&shaper.Trace{Enqueued: func(context.Context, shaper.Event) {
		time.Sleep(max(*takes, -*takes))
		if *takes < 0 {
			panic("the hook")
		}
	}}))
	require.NoError(t, err)
	return s
}

// The first wait makes the parker that the second one uses again, and both end at the end of the
// hook.
func TestASlotThatComesBeforeARequestSleepsIsNotMissed(t *testing.T) {
	for _, ctx := range []context.Context{context.Background(), context.TODO()} {
		synctest.Test(t, func(t *testing.T) {
			takes := 3 * time.Second
			s := withSlowEntries(t, shaper.Limits{Rate: 1, Depth: 1}, &takes)
			began := time.Now()
			for i := range 4 {
				require.True(t, s.Allow())
				require.NoError(t, s.Wait(ctx))
				require.Equal(t, time.Duration(i+1)*takes, time.Since(began))
			}
			takes = 0
			require.NoError(t, s.Wait(ctx))
			require.NoError(t, s.Wait(ctx))
			require.Equal(t, 13*time.Second, time.Since(began), "no news of an earlier wait is left")
		})
	}
}

func TestCloseBeforeARequestSleepsIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := 3 * time.Second
		s := withSlowEntries(t, shaper.Limits{Rate: 0.1, Depth: 1}, &takes)
		require.True(t, s.Allow())
		var waits sync.WaitGroup
		var became error
		waits.Go(func() { became = s.Wait(context.Background()) })
		time.Sleep(time.Second)
		require.NoError(t, s.Close())
		waits.Wait()
		require.ErrorIs(t, became, shaper.ErrClosed)
	})
}

// The slot of a request whose hook panics goes to the next one, whose wait uses the same memory
// and is not ended by news of the earlier one.
func TestAPanicOfTheHookAfterTheSlotWakesNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := time.Duration(0)
		s := withSlowEntries(t, shaper.Limits{Rate: 1, Depth: 1}, &takes)
		ctx := context.Background()
		require.True(t, s.Allow())
		require.NoError(t, s.Wait(ctx))
		takes = -1500 * time.Millisecond
		require.Panics(t, func() { _ = s.Wait(ctx) })
		takes = 0
		require.True(t, s.Allow(), "the slot has been given back")
		began := time.Now()
		require.NoError(t, s.Wait(ctx))
		require.Equal(t, time.Second, time.Since(began))
	})
}

// What such a request waits on is used again by the next one.
func TestAWaitWithoutAnEndAllocatesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: 1, Depth: 1})
		ctx := context.Background()
		require.True(t, s.Allow())
		began := time.Now()
		require.Less(t, testing.AllocsPerRun(100, func() { _ = s.Wait(ctx) }), 1.)
		require.Equal(t, 101*time.Second, time.Since(began), "each has waited")
	})
}
