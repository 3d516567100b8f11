package shaper_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// While a request waits, departures and Stats.Missed add up to rate × time, however
// late the machine wakes the ticker. The naive queue neither makes lateness up nor
// counts it (TestNaiveLosesTheTicksOfLateWakeUps).
func TestLatenessIsMadeUpOrCounted(t *testing.T) {
	const perSecond, waiters = 10_000, 500
	const interval = time.Second / perSecond
	for _, slack := range []time.Duration{time.Microsecond, 2 * time.Millisecond, shaper.DefaultSlack} {
		t.Run(slack.String(), func(t *testing.T) {
			var mu sync.Mutex
			var last time.Time
			limits := shaper.Limits{Rate: 1. / 3600, Depth: waiters, Slack: slack}
			s, err := shaper.New(limits, shaper.WithTrace(&shaper.Trace{
				Departed: func(_ context.Context, e shaper.Event) {
					mu.Lock()
					defer mu.Unlock()
					if e.At.After(last) {
						last = e.At
					}
				},
			}))
			require.NoError(t, err)
			require.NoError(t, s.Wait(t.Context()))
			var wg sync.WaitGroup
			for range waiters {
				wg.Go(func() { _ = s.Wait(t.Context()) })
			}
			for s.Stats().Waiting < waiters {
				runtime.Gosched()
			}

			// The level is still 1, to within a ten-thousandth, so that the first
			// is due an interval after the change and the last waiters intervals.
			limits.Rate = perSecond
			earliest := time.Now()
			level := s.Stats().Level
			require.NoError(t, s.SetLimits(limits))
			latest := time.Now()
			wg.Wait()

			missed := s.Stats().Missed
			t.Logf("missed %.1f of %d", missed, waiters)
			span := time.Duration((waiters - 1 + level + missed) * float64(interval))
			require.GreaterOrEqual(t, last.Sub(earliest)+interval/1000, span, "left too early")
			require.LessOrEqual(t, last.Sub(latest)-interval/1000, span+slack, "left late, and not counted")
			require.NoError(t, s.Close())
		})
	}
}
