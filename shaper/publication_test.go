package shaper_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

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

// A Recording that begins while calls are refused without the lock has all that come from then on.
func TestARecordingMissesNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRefusing(t)
		recording := s.Record(4)
		require.False(t, shaper.RefusesWithoutLock(s))
		for range 2 * shaper.PublishAfter {
			require.False(t, s.Allow())
			require.False(t, shaper.RefusesWithoutLock(s))
		}
		arrivals := recording.Arrivals()
		require.Len(t, arrivals, 4)
		for _, a := range arrivals {
			require.ErrorIs(t, a.Err, shaper.ErrQueueFull)
		}
	})
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

// From Close or Shutdown on, nobody is told that the line is full.
func TestNobodyIsToldThatAClosedShaperIsFull(t *testing.T) {
	for name, end := range map[string]func(*shaper.Shaper) error{
		"Close":    (*shaper.Shaper).Close,
		"Shutdown": func(s *shaper.Shaper) error { return s.Shutdown(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRefusing(t)
				require.NoError(t, end(s))
				for range 2 * shaper.PublishAfter {
					require.ErrorIs(t, s.Wait(t.Context()), shaper.ErrClosed)
				}
			})
		})
	}
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
