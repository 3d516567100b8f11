package shaper_test

import (
	"context"
	"math"
	"strconv"
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

// Departures tell whose requests leave, also of those that came before somebody asked, and of each that
// Stats counts and of no other.
func TestDeparturesTellWhoHasLeft(t *testing.T) {
	long := strings.Repeat("k", 300)
	play(t, "10/s depth 20", func(g *stage) {
		g.comes("z", "a1", "a2", "b1")
		left, all := g.Departures(0)
		require.Empty(t, left, "nobody had asked when z left")
		require.Zero(t, all)
		g.at(350 * ms)
		g.comes("c1")
		g.cancel("c1")
		left, all = g.Departures(all)
		require.EqualValues(t, 3, all)
		require.Equal(t, []watch.Departure{
			{At: g.start.Add(100 * ms), Key: "a", Cost: 1}, {At: g.start.Add(200 * ms), Key: "b", Cost: 1}, {At: g.start.Add(300 * ms), Key: "a", Cost: 1},
		}, left)
		left, _ = g.Departures(2)
		require.Equal(t, []watch.Departure{{At: g.start.Add(300 * ms), Key: "a", Cost: 1}}, left)
		for _, since := range []uint64{all, all + 1, math.MaxUint64} {
			left, same := g.Departures(since)
			require.Empty(t, left)
			require.Equal(t, all, same)
		}
		g.at(time.Second)
		require.NoError(t, g.For(long).WaitN(context.Background(), 2), "the bucket is empty: it does not wait")
		require.False(t, g.For("d").Allow(), "it is refused")
		left, all = g.Departures(all)
		require.EqualValues(t, 4, all)
		require.Equal(t, []watch.Departure{{At: g.start.Add(time.Second), Key: long[:256], Cost: 2}}, left)
		require.EqualValues(t, 5, g.Stats().Departed, "with z")
	}, shaper.WithFairQueue(nil))
	play(t, "10/s depth 20", func(g *stage) {
		_, _ = g.Departures(0)
		g.comes("a1")
		left, all := g.Departures(0)
		require.Empty(t, left, "it knows no keys")
		require.Zero(t, all)
	})
}

// They are kept while somebody asks within a minute. Afterwards each departure costs what it costs without them.
func TestDeparturesAreForgottenAMinuteAfterSomebodyAsked(t *testing.T) {
	play(t, "10/s depth 20", func(g *stage) {
		leave := func(key string) {
			t.Helper()
			require.NoError(t, g.For(key).Wait(context.Background()))
		}
		keys := func(since uint64) (keys []string, all uint64) {
			left, all := g.Departures(since)
			for _, d := range left {
				keys = append(keys, d.Key)
			}
			return keys, all
		}
		_, _ = g.Departures(0)
		g.at(time.Minute)
		leave("a")
		got, all := keys(0)
		require.Equal(t, []string{"a"}, got)

		g.at(2*time.Minute + 1)
		leave("b") // Nobody has asked for more than a minute.
		require.False(t, shaper.WatchesDepartures(g.Shaper))
		got, again := keys(0)
		require.Empty(t, got)
		require.Equal(t, all, again)
		leave("c")
		got, all = keys(again)
		require.Equal(t, []string{"c"}, got)
		require.Equal(t, again+1, all)

		g.at(4 * time.Minute)
		got, again = keys(0) // Nothing has left meanwhile, but nobody has asked either.
		require.Empty(t, got)
		require.Equal(t, all, again)
	}, shaper.WithFairQueue(nil))
}

// The memory is bounded: there are the latest 4,096, also in a ring that is begun anew.
func TestDeparturesAreTheLatest(t *testing.T) {
	play(t, "inf", func(g *stage) {
		all := uint64(0)
		for _, n := range []int{4095, 4096, 4097, 9000} {
			g.at(time.Since(g.start) + time.Hour)
			_, begun := g.Departures(0)
			require.Equal(t, all, begun)
			for i := range n {
				require.NoError(t, g.For(strconv.Itoa(i)).Wait(context.Background()))
			}
			left, now := g.Departures(0)
			require.Equal(t, begun+uint64(n), now)
			require.Len(t, left, min(n, 4096))
			for i, d := range left {
				require.Equal(t, strconv.Itoa(n-len(left)+i), d.Key)
			}
			left, _ = g.Departures(now - 2)
			require.Equal(t, strconv.Itoa(n-2), left[0].Key)
			require.Len(t, left, 2)
			all = now
		}
	}, shaper.WithFairQueue(nil))
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
