package shaper_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// This file tests a Group to which more keys come than it has buckets for: no key
// with a bucket notices, and no key gets more than one allows. The buckets that the
// others share are in group_shard_test.go.

func TestAFullTableKeepsTheKeysItHas(t *testing.T) {
	playKeys(t, "1/s burst 2 depth 2", func(g *groupStage) {
		g.arriveAll("a1", "b1", "b2", "b3")
		for i := range 3000 {
			g.Allow(fmt.Sprint("spoofed ", i))
		}
		st := g.Group.Stats()
		require.Equal(t, 2, st.Keys)
		require.EqualValues(t, 3000, st.Overflowed)
		require.EqualValues(t, 3003, st.Departed+st.QueueFull)
		require.Less(t, st.Departed, uint64(3+2*1024+1))
		require.Greater(t, st.Departed, uint64(3+1024))
		require.Equal(t, map[string]float64{"a": 1, "b": 2}, g.levels())

		g.arriveAll("b4", "b5", "a2", "a3")
		require.EqualValues(t, 3000, g.Group.Stats().Overflowed)
		g.at(time.Minute)
		g.saw("0s a1 left", "0s b1 left", "0s b2 left", "0s b5 full, retry 1s", "0s a2 left",
			"1s b3 left", "1s a3 left", "2s b4 left")
	}, shaper.WithMaxKeys(2))
}

// A key in overflow waits, is refused and gives up as any other, in one line with
// those whom it shares with, and has its seat in flight.
func TestAnOverflowBucketHasALine(t *testing.T) {
	playKeys(t, "1/s depth 2", func(g *groupStage) {
		g.arriveAll("z", "a1", "a2", "a3", "a4")
		g.at(500 * ms)
		g.cancel("a2")
		require.Equal(t, 1, g.Group.Stats().Waiting)
		wait, err := g.Limiter("a").Forecast(1)
		require.NoError(t, err)
		require.Equal(t, 1500*ms, wait)
		require.NoError(t, g.Close())
		g.saw("0s z left", "0s a1 left", "0s a4 full, retry 1s", "500ms a2 cancelled", "500ms a3 closed, retry 0s")
		require.EqualValues(t, 4, g.Group.Stats().Overflowed)
	}, shaper.WithMaxKeys(1))
	playKeys(t, "inf depth 9 inflight 1", func(g *groupStage) {
		g.acquireAll("z", "a1", "a2")
		g.at(time.Hour)
		g.release("a1", "a1")
		g.saw("0s z left", "0s a1 left", "1h0m0s a2 left")
		g.release("a2")
	}, shaper.WithMaxKeys(1))
}

// Hold holds it, for all who share it, as a key that has a bucket of its own.
func TestAnOverflowBucketCanBeHeld(t *testing.T) {
	playKeys(t, "1/s depth 2", func(g *groupStage) {
		g.limit("z", "1/h")
		g.arriveAll("z")
		g.Limiter("a").Hold(time.Minute)
		g.arriveAll("a1")
		g.at(30 * time.Second)
		g.Limiter("a").Hold(0)
		g.at(time.Hour)
		g.saw("0s z left", "30s a1 left")
	}, shaper.WithMaxKeys(1))
}

func TestOverflowEndsWhenBucketsDrain(t *testing.T) {
	playKeys(t, "1/s", func(g *groupStage) {
		require.True(t, g.Allow("a"))
		require.True(t, g.Allow("b"))
		require.EqualValues(t, 1, g.Group.Stats().Overflowed)
		g.wasAsked()
		require.False(t, g.Allow("b"))
		require.Equal(t, []string{"b"}, g.wasAsked(), "a key that shares is asked for at each call")
		g.at(2 * time.Second)
		require.Zero(t, g.Group.Stats().Keys)
		require.True(t, g.Allow("b"))
		require.EqualValues(t, 2, g.Group.Stats().Overflowed)
		require.Equal(t, map[string]float64{"b": 1}, g.levels())
		require.False(t, g.Allow("b"))
	}, shaper.WithMaxKeys(1))
}

// Its own bucket goes on from where the shared one is, or whoever can fill the table
// and empty it would have a fresh Burst each time.
func TestABucketOfItsOwnIsNoFreshBurst(t *testing.T) {
	playKeys(t, "1/min burst 3 depth 5", func(g *groupStage) {
		g.limit("z", "1/s")
		g.arriveAll("z", "a1", "a2", "a3", "a4")
		g.at(2 * time.Second)
		require.Zero(t, g.Group.Stats().Keys)
		wait, err := g.Limiter("a").Forecast(1)
		require.NoError(t, err)
		require.Equal(t, 118*time.Second, wait)
		g.arriveAll("a5")
		require.Equal(t, 1, g.Group.Stats().Keys)
		g.at(time.Hour)
		g.saw("0s z left", "0s a1 left", "0s a2 left", "0s a3 left", "1m0s a4 left", "2m0s a5 left")
	}, shaper.WithMaxKeys(1))
	playKeys(t, "1/s depth 5", func(g *groupStage) {
		g.arriveAll("z", "a1")
		g.Limiter("a").Hold(time.Minute)
		g.at(2 * time.Second)
		g.arriveAll("a2")
		g.at(time.Hour)
		g.saw("0s z left", "0s a1 left", "1m0s a2 left")
	}, shaper.WithMaxKeys(1))
}

// The table has room again while a request of the key is in flight, or waits to be, by
// the bucket that the key has been sharing: a bucket of its own would let one more go.
func TestAKeyThatLeavesOverflowKeepsToItsCap(t *testing.T) {
	playKeys(t, "inf depth 9 inflight 1", func(g *groupStage) {
		g.limit("z", "1/s")
		g.arriveAll("z")
		g.acquireAll("a1")
		g.at(2 * time.Second)
		require.Zero(t, g.Group.Stats().Keys)
		g.Reload()
		wait, err := g.Limiter("a").Forecast(1)
		require.NoError(t, err)
		require.Positive(t, wait)
		g.acquireAll("a2", "b1") // b has nothing in flight, and gets a bucket of its own.
		require.Equal(t, 1, g.Group.Stats().Keys)
		require.Equal(t, 1, g.Group.Stats().Waiting)
		g.at(time.Hour)
		g.saw("0s z left", "0s a1 left", "2s b1 left")
		g.release("b1")
		g.at(time.Hour + time.Second)
		g.release("a1")
		g.acquireAll("a3")
		require.Zero(t, g.Group.Stats().Keys)
		g.release("a2")
		g.saw("1h0m1s a2 left", "1h0m1s a3 left")
		g.release("a3")
		g.acquireAll("a4", "a5")
		require.Equal(t, 1, g.Group.Stats().Keys, "none was in flight")
		require.Equal(t, 1, inFlightOf(g, "a"))
		g.release("a4", "a5")
		g.saw("1h0m1s a4 left", "1h0m1s a5 left")
		require.EqualValues(t, 3, g.Group.Stats().Overflowed)
		g.gone()
		g.alone()
	}, shaper.WithMaxKeys(1))
	playKeys(t, "1/min depth 9 inflight 1", func(g *groupStage) {
		g.limit("z", "1/s")
		g.arriveAll("z")
		g.acquireAll("a1", "a2")
		g.release("a1")
		g.at(2 * time.Second)
		g.acquireAll("a3")
		g.at(10 * time.Minute)
		g.saw("0s z left", "0s a1 left", "1m0s a2 left")
		g.release("a2", "a3")
		g.saw("10m0s a3 left")
	}, shaper.WithMaxKeys(1))
}

// A hold of the bucket that a key has been sharing ends by Hold(0), whether the table
// has room again or not.
func TestAHoldFromOverflowCanBeEnded(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.arriveAll("z")
		g.Limiter("a").Hold(time.Hour)
		g.at(2 * time.Second)
		require.Zero(t, g.Group.Stats().Keys)
		g.Limiter("a").Hold(0)
		g.arriveAll("a1")
		g.saw("0s z left", "2s a1 left")
	}, shaper.WithMaxKeys(1))
}

func TestTheDefaultOfMaxKeys(t *testing.T) {
	g := must(shaper.NewGroup(func(int) (shaper.Limits, error) { return shaper.Limits{Rate: 1.0 / 3600}, nil }))
	for key := range shaper.DefaultMaxKeys + 5 {
		if !g.Allow(key) && key < shaper.DefaultMaxKeys {
			require.FailNow(t, "refused", "key %d", key)
		}
	}
	require.Equal(t, shaper.DefaultMaxKeys, g.Stats().Keys)
	require.EqualValues(t, 5, g.Stats().Overflowed)
	require.NoError(t, g.Shutdown(context.Background()))
}
