package shaper_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// A call that has read the clock before others were refused without the lock does not put it back:
// its change comes after them.
func TestTheClockNeverGoesBehindARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: 1})
		compared := shaper.AuditRefusals(s)
		require.True(t, s.Allow())
		require.False(t, s.Allow())
		time.Sleep(500 * time.Millisecond)
		require.False(t, s.Allow())
		require.Equal(t, int64(1), compared.Load())
		require.Equal(t, int64(500*time.Millisecond), shaper.LockAt(s, 0))
	})
}

// A refusal at the instant of the next slot comes after that, however late the ticker is.
func TestNobodyIsRefusedWhenASlotIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: 1, Depth: 1})
		compared := shaper.AuditRefusals(s)
		require.True(t, s.Allow())
		go func() { _ = s.Wait(context.Background()) }()
		synctest.Wait()
		require.Error(t, s.Wait(t.Context()))
		time.Sleep(time.Second - 1)
		rejected := s.Wait(t.Context())
		require.Equal(t, time.Duration(1), rejected.(*shaper.RejectError).RetryAfter)
		require.Equal(t, int64(1), compared.Load())
		time.Sleep(time.Nanosecond)
		require.NoError(t, s.Wait(t.Context()), "the place is free")
	})
}

// Few refusals publish nothing, and what lets a call leave begins the count anew.
func TestOnlyManyRefusalsInARowArePublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: 1})
		for range 3 {
			require.True(t, s.Allow())
			for range shaper.PublishAfter - 1 {
				require.False(t, s.Allow())
				require.False(t, shaper.RefusesWithoutLock(s))
			}
			time.Sleep(time.Second)
		}
		require.True(t, s.Allow())
		for range shaper.PublishAfter {
			require.False(t, s.Allow())
		}
		require.True(t, shaper.RefusesWithoutLock(s))
		require.Equal(t, uint64(4*shaper.PublishAfter-3), s.Stats().QueueFull)
		require.False(t, shaper.RefusesWithoutLock(s), "Stats has taken the lock")
		require.False(t, s.Allow())
		require.False(t, shaper.RefusesWithoutLock(s), "who looks after each refusal pays for no publication")
	})
}

// Many goroutines are refused at once while others look. In the end every refusal has been
// counted, in the meantime no count goes back, and the latest are there in their order.
func TestEveryRefusalOfAStormIsCounted(t *testing.T) {
	const callers, each = 16, 2000
	s := mustMake(t, shaper.Limits{Rate: 1. / 3600})
	compared := shaper.AuditRefusals(s)
	require.True(t, s.Allow())
	var calls, looks sync.WaitGroup
	var over atomic.Bool
	looks.Go(func() {
		for before := s.Stats(); !over.Load(); {
			now := s.Stats()
			if now.QueueFull < before.QueueFull || now.LastCall.Before(before.LastCall) {
				t.Errorf("%+v after %+v", now, before)
			}
			before = now
			time.Sleep(50 * time.Microsecond)
		}
	})
	began := time.Now()
	for range callers {
		calls.Go(func() {
			for range each {
				if s.Allow() {
					t.Error("nothing can leave")
				}
			}
		})
	}
	calls.Wait()
	over.Store(true)
	looks.Wait()
	st := s.Stats()
	require.Equal(t, uint64(callers*each), st.QueueFull)
	require.Equal(t, uint64(callers*each), st.Refused)
	require.False(t, st.LastCall.Before(began))
	require.NotZero(t, compared.Load())
	latest := s.Refusals()
	require.Len(t, latest, 64)
	require.Equal(t, st.LastCall, latest[63].At)
	for i, one := range latest[1:] {
		require.False(t, one.At.Before(latest[i].At))
	}
}

// newRefusing returns a shaper that refuses every request of the next hour without its lock.
func newRefusing(t *testing.T) *shaper.Shaper {
	s := mustMake(t, shaper.Limits{Rate: 1. / 3600})
	require.True(t, s.Allow())
	for range shaper.PublishAfter {
		require.False(t, s.Allow())
	}
	require.True(t, shaper.RefusesWithoutLock(s))
	return s
}

// A call that is refused does not wait for somebody who has the lock.
func TestARefusalWaitsForNoLock(t *testing.T) {
	s := newRefusing(t)
	release := shaper.HoldLock(s)
	refused := make(chan error, 1)
	go func() {
		if s.Allow() {
			refused <- nil
		}
		refused <- s.Wait(context.Background())
	}()
	select {
	case err := <-refused:
		require.ErrorIs(t, err, shaper.ErrQueueFull)
	case <-time.After(time.Minute):
		t.Error("a refusal waits for the lock")
	}
	release()
	require.Equal(t, uint64(shaper.PublishAfter+2), s.Stats().QueueFull)
}

// Without the lock, too, the errors of 16 refusals are one allocation, and a call that returns
// no error allocates nothing.
func TestARefusalWithoutTheLockAllocatesItsErrorAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRefusing(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
			for range 16 {
				_ = s.Wait(ctx)
			}
		}), 1.)
		require.Zero(t, testing.AllocsPerRun(1000, func() { s.Allow() }))
		require.True(t, shaper.RefusesWithoutLock(s))
	})
}

// A request that was admitted before enters the line, however many newcomers are refused.
func TestAReentryIsNotRefusedWithNewcomers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRefusing(t)
		_, err := shaper.EnterAsReentry(s, t.Context(), 1)
		require.NoError(t, err)
	})
}

// With a cap, requests end without what withdraws a publication, so nothing is published.
func TestWithACapEveryRefusalTakesTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: 1, InFlight: 1})
		release, err := s.Acquire(t.Context(), 1)
		require.NoError(t, err)
		defer release()
		for range 2 * shaper.PublishAfter {
			_, err := s.Acquire(t.Context(), 1)
			require.ErrorIs(t, err, shaper.ErrQueueFull)
			require.False(t, shaper.RefusesWithoutLock(s))
		}
	})
}
