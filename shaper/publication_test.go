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
	case <-time.After(10 * time.Second):
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
