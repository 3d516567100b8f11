package shaper_test

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// A departure is what the pace counts.
type departure struct {
	at   time.Time
	cost int
}

// firstAbovePace returns the first of the departures, which it sorts, that ends
// a window of some length W with more than burst + rate·(W + slack) in it, or
// -1. It does so in one pass: no window holds more than that exactly if a
// bucket with room for burst + rate·slack, which leaks at the rate, never
// overflows. All is counted in the time for which a cost holds the bucket, so
// that nothing is rounded.
func firstAbovePace(ds []departure, interval, slack time.Duration, burst int) int {
	slices.SortFunc(ds, func(a, b departure) int { return a.at.Compare(b.at) })
	for _, d := range ds {
		burst = max(burst, d.cost)
	}
	room := time.Duration(burst)*interval + slack
	var level time.Duration
	for i, d := range ds {
		if i > 0 {
			level = max(0, level-d.at.Sub(ds[i-1].at))
		}
		level += time.Duration(d.cost) * interval
		if level > room {
			return i
		}
	}
	return -1
}

func TestPaceCheckerSeesWhatIsTooFast(t *testing.T) {
	const interval = 10 * time.Nanosecond
	at := func(instants ...int) (ds []departure) {
		for _, ns := range instants {
			ds = append(ds, departure{time.Unix(0, int64(ns)), 1})
		}
		return ds
	}
	tests := []struct {
		name  string
		ds    []departure
		slack time.Duration
		burst int
		want  int
	}{
		{"a comb", at(0, 10, 20, 30), 0, 1, -1},
		{"a nanosecond early", at(0, 10, 19, 30), 0, 1, 2},
		{"unsorted", at(30, 19, 0, 10), 0, 1, 2},
		{"one slot used twice", at(0, 10, 20, 20, 40), 0, 1, 3},
		{"a burst", at(0, 0, 0, 10), 0, 3, -1},
		{"a burst and one", at(0, 0, 0, 9), 0, 3, 3},
		{"late within the slack", at(0, 15, 20, 30), 5, 1, -1},
		{"late beyond the slack", at(0, 16, 20, 30), 5, 1, 2},
		{"slow drift", at(0, 9, 18, 27, 36, 45, 54), 5, 1, 6},
		{"a cost above the burst", []departure{{time.Unix(0, 0), 3}, {time.Unix(0, 30), 1}, {time.Unix(0, 40), 3}}, 0, 1, -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, firstAbovePace(tt.ds, interval, tt.slack, tt.burst))
		})
	}
}

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
