package shaper_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// Three requests at one instant leave 10 ms apart: Line predicts it, Histograms and a
// Recording have counted it afterwards.
func TestWhatABurstLooksLikeFromOutside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := shaper.New(shaper.Limits{Rate: 100, Depth: 2})
		require.NoError(t, err)
		t0 := time.Now()
		recording := s.Record(10)
		for range 3 {
			go func() { _ = s.Wait(context.Background()) }()
			synctest.Wait()
		}
		require.Error(t, s.Wait(context.Background()))
		require.Equal(t, []shaper.Waiter{
			{Cost: 1, Since: t0, Leaves: t0.Add(10 * time.Millisecond)},
			{Cost: 1, Since: t0, Leaves: t0.Add(20 * time.Millisecond)},
		}, s.Line(5))
		require.Empty(t, s.Line(0))
		require.Len(t, s.Line(1), 1)
		require.Equal(t, []shaper.Refusal{
			{At: t0, Reason: shaper.ErrQueueFull, RetryAfter: 10 * time.Millisecond, Cost: 1},
		}, s.Refusals())
		time.Sleep(time.Second)
		h := s.Histograms()
		require.Equal(t, uint64(3), h.Wait.Count())
		require.InDelta(t, 0.03, h.Wait.Sum(), 1e-9)
		require.Equal(t, uint64(2), h.Spacing.Count())
		median, within := h.Spacing.Quantile(0.5)
		require.Equal(t, 1.0, median)
		require.Less(t, within, 0.05)
		var waits []time.Duration
		for _, a := range recording.Arrivals() {
			require.True(t, a.Done)
			waits = append(waits, a.Waited)
		}
		require.Equal(t, []time.Duration{0, 10 * time.Millisecond, 20 * time.Millisecond, 0}, waits)
	})
}

// The limits of one key count until they are reset, also over a Reload, and while its bucket
// is gone.
func TestLimitsOfOneKeyStayUntilReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 1}, nil })
		require.NoError(t, err)
		require.NoError(t, g.SetLimits("a", shaper.Limits{Rate: 1, Burst: 3}))
		for round := range 2 {
			for range 3 {
				require.True(t, g.Allow("a"), round)
			}
			require.False(t, g.Allow("a"), round)
			g.Reload()
			time.Sleep(10 * time.Second)
		}
		require.NoError(t, g.ResetLimits("a"))
		require.True(t, g.Allow("a"))
		require.False(t, g.Allow("a"))
	})
}
