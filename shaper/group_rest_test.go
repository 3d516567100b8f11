package shaper_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// A Group that is not drained has no goroutine: it may be forgotten, also at the end
// of a bubble, which would not end otherwise.
func TestAGroupMayBeForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
			return shaper.Limits{Rate: 1. / 3600, Burst: 10, Depth: 1}, nil
		})
		require.NoError(t, err)
		require.True(t, g.AllowN("at once", 10))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, g.WaitN(ctx, "waits", 10))
		go cancel()
		require.Error(t, g.WaitN(ctx, "waits", 1))
		g.Hold("held", time.Hour)
		require.Equal(t, 3, g.Stats().Keys)
	})
}

// A bucket is looked at when it may be drained and hardly before, so that a line of
// a year takes no year in virtual time, nor much of the processor in ours.
func TestAYearInLineIsNotAYearOfLooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
			return shaper.Limits{Rate: 1. / (300 * 24 * 3600), Depth: 1}, nil
		})
		require.NoError(t, err)
		begun := time.Now()
		require.NoError(t, g.Wait(t.Context(), "a"))
		require.NoError(t, g.Wait(t.Context(), "a"))
		require.Equal(t, 300*24*time.Hour, time.Since(begun))
		require.Equal(t, 1, g.Stats().Keys)
		time.Sleep(300*24*time.Hour + time.Second)
		require.Equal(t, 0, g.Stats().Keys)
	})
}
