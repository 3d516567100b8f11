package shaper_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// This file tests WithBlock on the keys of a Group.

func TestABlockOutlivesItsDrainedBucket(t *testing.T) {
	playKeys(t, "1/s burst 3", func(g *groupStage) {
		g.arriveAll("a1", "a2", "a3", "a4", "b1")
		g.at(time.Minute) // Both buckets have been drained for long.
		require.Equal(t, 1, g.Group.Stats().Keys, "that of b is gone")
		st, ok := g.of("a")
		require.True(t, ok, "All shows a bucket that is blocked")
		require.Zero(t, st.Level)
		require.Equal(t, g.start.Add(15*time.Minute), st.BlockedUntil)
		g.arriveAll("a5", "b2")
		g.at(15*time.Minute - ns)
		g.arriveAll("a6")
		g.at(15 * time.Minute)
		g.arriveAll("a7")
		g.at(15*time.Minute + time.Second)
		g.gone()
		g.saw("0s a1 left", "0s a2 left", "0s a3 left", "0s a4 full, retry 15m0s", "0s b1 left",
			"1m0s a5 full, retry 14m0s", "1m0s b2 left", "14m59.999999999s a6 full, retry 1ns", "15m0s a7 left")
	}, shaper.WithBlock(15*time.Minute))
}

// A bucket that is blocked is deleted when the block ends, though nobody calls.
func TestNothingIsLeftOfABlockThatHasEnded(t *testing.T) {
	playKeys(t, "10/s", func(g *groupStage) {
		for key := range 3000 {
			require.True(t, g.Allow(fmt.Sprint(key)))
			require.False(t, g.Allow(fmt.Sprint(key)))
		}
		g.at(10*time.Second - ns)
		require.Equal(t, 3000, g.Group.Stats().Keys)
		g.at(25 * time.Second) // A sweep looks at 128 keys.
		require.Zero(t, g.Group.Stats().Keys)
		require.Zero(t, shaper.BlocksOf(g.Group))
	}, shaper.WithBlock(10*time.Second))
}

// Blocked keys count against WithMaxKeys, so nobody gets rid of his block by making up keys.
func TestAFullTableForgetsNoBlock(t *testing.T) {
	playKeys(t, "1/s", func(g *groupStage) {
		g.arriveAll("a1", "a2", "b1")
		g.at(10 * time.Second)
		for i := range 3000 {
			g.Allow(fmt.Sprint("spoofed ", i))
		}
		require.NotZero(t, g.Group.Stats().Overflowed)
		g.arriveAll("a3")
		g.at(time.Minute)
		g.arriveAll("a4")
		g.saw("0s a1 left", "0s a2 full, retry 1m0s", "0s b1 left", "10s a3 full, retry 50s", "1m0s a4 left")
	}, shaper.WithMaxKeys(2), shaper.WithBlock(time.Minute))
}

// Keys that share a bucket are refused for what others do. They have its rate together, but
// one of them must not be able to have all others blocked.
func TestAFloodOfKeysBlocksNoNewcomer(t *testing.T) {
	playKeys(t, "1/s", func(g *groupStage) {
		g.arriveAll("z1", "z2", "a1", "a2")
		_, err := g.Forecast("a", 1)
		require.Equal(t, "full, retry 1s", outcome(err))
		for i := range 3000 {
			g.Allow(fmt.Sprint("spoofed ", i))
		}
		g.at(time.Second)
		g.arriveAll("a3", "b1", "z3")
		g.at(time.Minute) // z is not blocked any more, and there is room in the table.
		g.arriveAll("a4", "a5", "b2")
		g.saw("0s z1 left", "0s z2 full, retry 1m0s", "0s a1 left", "0s a2 full, retry 1s", "1s a3 left", "1s b1 left",
			"1s z3 full, retry 59s", "1m0s a4 left", "1m0s a5 full, retry 1m0s", "1m0s b2 left")
	}, shaper.WithMaxKeys(1), shaper.WithBlock(time.Minute))
}

// The limits of a key may change while it is blocked; only rate.Inf ends the block.
func TestLimitsOfABlockedKey(t *testing.T) {
	playKeys(t, "1/s", func(g *groupStage) {
		g.arriveAll("a1", "a2", "b1", "b2")
		g.at(5 * time.Second) // Drained, and blocked.
		require.NoError(t, g.SetLimits("a", limitsOf(t, "100/s depth 9")))
		g.arriveAll("a3")
		require.NoError(t, g.SetLimits("a", limitsOf(t, "inf")))
		g.arriveAll("a4", "a5")
		require.NoError(t, g.ResetLimits("a"))
		g.arriveAll("a6", "a7")
		g.limit("b", "10/s depth 5")
		g.Reload()
		g.arriveAll("b3")
		g.saw("0s a1 left", "0s a2 full, retry 1m0s", "0s b1 left", "0s b2 full, retry 1m0s", "5s a3 full, retry 55s",
			"5s a4 left", "5s a5 left", "5s a6 left", "5s a7 full, retry 1m0s", "5s b3 full, retry 55s")
	}, shaper.WithBlock(time.Minute))
}

func TestTheBlockOfAKeyIsSeen(t *testing.T) {
	playKeys(t, "1/s", func(g *groupStage) {
		g.arriveAll("a1", "a2")
		st := g.Limiter("a").Stats()
		require.Equal(t, g.start.Add(time.Minute), st.BlockedUntil)
		_, err := g.Forecast("a", 1)
		require.Equal(t, "full, retry 1m0s", outcome(err))
		wait, err := g.Forecast("b", 1)
		require.NoError(t, err)
		require.Zero(t, wait)
		require.Equal(t, time.Minute, g.Refusals()[0].RetryAfter)
		require.NoError(t, g.Close())
	}, shaper.WithBlock(time.Minute))
}
