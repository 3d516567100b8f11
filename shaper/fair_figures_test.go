package shaper_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/watch"
)

// The costs of a key may add up to more than an int of 32 bits counts.
func TestTheCostOfALineIsTheGreatestIntAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := shaper.New(shaper.Limits{Rate: 1e9, Depth: 9}, shaper.WithFairQueue(nil))
		require.NoError(t, err)
		defer s.Close()
		for range 4 { // The first leaves.
			go func() { _ = s.For("a").WaitN(context.Background(), 1e9) }()
		}
		synctest.Wait()
		require.EqualValues(t, min(int64(3e9), math.MaxInt), s.Keys(1, watch.ByTurn)[0].Cost)
	})
}

// Who looks for the longest lines must find them behind any number of keys that leave before.
func TestTheLongestKeysAreFoundAmongMany(t *testing.T) {
	play(t, "10/s depth 300", func(g *stage) {
		g.comes("z")
		for range 5 {
			g.comes("long1")
		}
		g.comesFor("dear1", 4)
		for i := range 200 {
			key := string([]rune{rune('a' + i%20), rune('A' + i/20)})
			go func() { _ = g.For(key).Wait(context.Background()) }()
			synctest.Wait()
		}
		g.at(50 * ms)
		require.Equal(t, []watch.KeyLine{
			{Key: "long", Weight: 1, Waiting: 5, Cost: 5, OldestWait: 50 * ms},
			{Key: "dear", Weight: 2, Waiting: 1, Cost: 4, OldestWait: 50 * ms},
			{Key: "tJ", Weight: 1, Waiting: 1, Cost: 1, OldestWait: 50 * ms},
		}, g.Keys(3, watch.ByLength))
		require.Len(t, g.Keys(1000, watch.ByLength), 202)
		require.Equal(t, []watch.KeyLine{}, g.Keys(0, watch.ByLength))
		require.NoError(t, g.Close())
		synctest.Wait()
		require.Equal(t, []watch.KeyLine{}, g.Keys(3, watch.ByLength))
	}, shaper.WithFairQueue(func(key string) int { return strings.Count(key, "e") + 1 }))
}

// A recording of a Shaper WithFairQueue tells whose requests leave, also of those that came before
// it began, and of each that Stats counts and of no other.
func TestARecordingTellsWhoHasLeft(t *testing.T) {
	long := strings.Repeat("k", 300)
	play(t, "10/s depth 20", func(g *stage) {
		g.comes("z", "a1", "a2", "b1")
		r := g.Record(3)
		g.at(350 * ms)
		g.comes("c1")
		g.cancel("c1")
		left, all := r.Departures(0)
		require.EqualValues(t, 3, all)
		require.Equal(t, []watch.Departure{
			{At: g.start.Add(100 * ms), Key: "a", Cost: 1}, {At: g.start.Add(200 * ms), Key: "b", Cost: 1}, {At: g.start.Add(300 * ms), Key: "a", Cost: 1},
		}, left)
		left, all = r.Departures(all)
		require.Empty(t, left)
		require.EqualValues(t, 3, all)
		g.at(time.Second)
		require.NoError(t, g.For(long).WaitN(context.Background(), 2), "the bucket is empty: it does not wait")
		left, all = r.Departures(all)
		require.EqualValues(t, 4, all)
		require.Equal(t, []watch.Departure{{At: g.start.Add(time.Second), Key: long[:256], Cost: 2}}, left)
		left, _ = r.Departures(0)
		require.Len(t, left, 3, "it keeps no more")
		r.Stop()
		require.NoError(t, g.For("d").Wait(context.Background()))
		_, all = r.Departures(all)
		require.EqualValues(t, 4, all)
		require.EqualValues(t, 6, g.Stats().Departed, "z before, d afterwards")
	}, shaper.WithFairQueue(nil))
	play(t, "10/s depth 20", func(g *stage) {
		r := g.Record(3)
		g.comes("a1")
		left, all := r.Departures(0)
		require.Empty(t, left, "it knows no keys")
		require.Nil(t, g.Keys(3, watch.ByLength))
		require.Zero(t, all)
	})
}

func TestTheOldestWaitIsThatOfAnyKey(t *testing.T) {
	play(t, "10/s depth 20", func(g *stage) {
		g.comes("z", "a1", "a2")
		g.at(110 * ms) // a1 has left.
		g.comes("b1")
		g.at(150 * ms)
		require.Equal(t, 150*ms, g.Stats().OldestWait)
		require.Equal(t, 2, g.Stats().Keys)
		require.NoError(t, g.Close())
	}, shaper.WithFairQueue(nil))
}
