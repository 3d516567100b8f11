//go:build linux && (amd64 || arm64 || 386 || arm)

package alarm

import (
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// These tests use the real clock. They compare two instants only where one must not come before the
// other.

// eachAlarm runs a test with both kinds of alarm.
func eachAlarm(t *testing.T, test func(t *testing.T, a Alarm, now func() int64)) {
	t.Helper()
	epoch := time.Now()
	now := func() int64 { return int64(time.Since(epoch)) }
	t.Run("timer", func(t *testing.T) {
		a := NewTimer(epoch)
		defer a.Stop()
		test(t, a, now)
	})
	t.Run("file", func(t *testing.T) {
		a, err := OpenFile(epoch)
		require.NoError(t, err)
		defer a.Stop()
		test(t, a, now)
	})
}

func TestAnAlarmGoesOffWhenItIsSetToAndNotBefore(t *testing.T) {
	eachAlarm(t, func(t *testing.T, a Alarm, now func() int64) {
		for _, in := range []time.Duration{50 * time.Microsecond, time.Millisecond, 20 * time.Millisecond} {
			at := now() + int64(in)
			a.Set(at)
			require.NoError(t, a.Wait())
			require.GreaterOrEqual(t, now(), at, "set to %v from now", in)
		}
		for _, passed := range []int64{now() - 1, 1, 0, -1} {
			a.Set(passed)
			require.NoError(t, a.Wait(), "it returns at once")
		}
	})
}

// The last call of Set decides when an alarm goes off, whether the ticker waits already or
// is about to.
func TestAnAlarmCanBeMoved(t *testing.T) {
	eachAlarm(t, func(t *testing.T, a Alarm, now func() int64) {
		a.Set(now() + int64(time.Millisecond))
		at := now() + int64(30*time.Millisecond)
		a.Set(at)
		require.NoError(t, a.Wait())
		require.GreaterOrEqual(t, now(), at, "moved to a later instant before the wait")

		// Without the second of these the wait would last an hour.
		for range 100 {
			a.Set(now() + int64(time.Hour))
			var moved sync.WaitGroup
			moved.Go(func() { a.Set(now()) })
			require.NoError(t, a.Wait())
			moved.Wait()
		}
		a.Set(math.MaxInt64)
		a.Set(now())
		require.NoError(t, a.Wait(), "moved from beyond what a timer can hold")
	})
}

func TestTheClockOfABubbleIsNotTheKernels(t *testing.T) {
	_, err := kernelClockAt(time.Now())
	require.NoError(t, err)

	synctest.Test(t, func(t *testing.T) {
		for range 3 {
			_, err := kernelClockAt(time.Now())
			require.ErrorIs(t, err, ErrOtherClock)
			time.Sleep(time.Since(time.Unix(0, 0))) // to another year, which is not that of the kernel's clock either
		}
	})
}
