package shaper_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

func TestStatsAreTheStateOfOneInstant(t *testing.T) {
	play(t, "10/s burst 2 depth 3 wait 1s", func(g *stage) {
		fresh := g.Stats()
		require.Equal(t, shaper.Stats{Name: "api", Limits: g.Limits()}, fresh)
		g.at(time.Second)
		g.arriveAll("a", "b", "c", "d", "e", "f") // f finds no place
		g.arrive("huge", math.MaxInt)
		g.at(1050 * ms)
		g.cancel("d")
		require.True(t, g.Wait(closedContext()) == context.Canceled)
		require.Equal(t, shaper.Stats{
			Name: "api", Limits: g.Limits(),
			Waiting: 2, Level: 1.5, OldestWait: 50 * ms,
			LastCall: g.start.Add(time.Second), LastRefusal: g.start.Add(time.Second),
			Departed: 2, Refused: 2, Abandoned: 1, QueueFull: 1, TooCostly: 1,
		}, g.Stats())
		g.at(3 * time.Second)
		require.Equal(t, shaper.Stats{
			Name: "api", Limits: g.Limits(),
			LastCall: g.start.Add(time.Second), LastRefusal: g.start.Add(time.Second),
			Departed: 4, Refused: 2, Abandoned: 1, QueueFull: 1, TooCostly: 1,
			TotalWait: 300 * ms,
		}, g.Stats())
		g.set("1/s depth 3 wait 1s")
		g.arriveAll("h", "i", "j")
		require.EqualValues(t, 1, g.Stats().TooLate)
		require.NoError(t, g.Close())
		g.at(3 * time.Second)
		st := g.Stats()
		require.EqualValues(t, 1, st.Closed)
		require.Equal(t, st.Refused, st.QueueFull+st.TooLate+st.TooCostly+st.Closed+st.Unavailable)
		require.Equal(t, g.start.Add(3*time.Second), st.LastCall)
	}, shaper.WithName("api"))
}

// A call is counted when it returns, so one that waits is not the last yet.
func TestLastCallIsTheEntryOfTheLastCountedCall(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		g.arriveAll("a")
		g.at(100 * ms)
		g.arriveAll("b", "c")
		require.Equal(t, g.start, g.Stats().LastCall)
		g.at(500 * ms)
		g.cancel("c")
		require.Equal(t, g.start.Add(100*ms), g.Stats().LastCall)
		require.False(t, g.Allow())
		g.at(2 * time.Second)
		require.Equal(t, g.start.Add(500*ms), g.Stats().LastCall, "b was counted later, and came sooner")
	})
}

// A later call that leaves must not look like one that was refused; nor may it be forgotten when
// the latest refusal was, whether it was made under the lock or without it.
func TestLastRefusalIsTheInstantOfTheLatestRefusal(t *testing.T) {
	play(t, "1/s depth 1", func(g *stage) {
		require.Zero(t, g.Stats().LastRefusal)
		g.arriveAll("a", "b")
		require.Zero(t, g.Stats().LastRefusal, "nobody was refused")
		g.at(100 * ms)
		require.False(t, g.Allow())
		require.Equal(t, g.start.Add(100*ms), g.Stats().LastRefusal)
		for k := range 20 { // From the eighth in a row on they are refused without the lock.
			g.at(200*ms + time.Duration(k)*ms)
			g.arrive("refused", 1)
		}
		require.Equal(t, g.start.Add(219*ms), g.Stats().LastRefusal)
		g.at(3 * time.Second)
		g.arriveAll("c", "d")
		require.Equal(t, g.start.Add(3*time.Second), g.Stats().LastCall)
		require.Equal(t, g.start.Add(219*ms), g.Stats().LastRefusal, "c has left")
		g.at(3100 * ms)
		require.NoError(t, g.Close())
		g.at(3200 * ms)
		require.Equal(t, g.start.Add(3100*ms), g.Stats().LastRefusal, "d, which had come before")
	})
	play(t, "1/s depth 1", func(g *stage) {
		g.arriveAll("a", "b", "c")
		g.at(50 * ms)
		g.arriveAll("d")
		require.Equal(t, g.start.Add(50*ms), g.Stats().LastRefusal, "its shadow")
	}, shaper.WithDryRun())
}

func TestTheLatestRefusalOfAKeyIsKeptWithItsBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 0.1}, nil })
		require.NoError(t, err)
		defer g.Close()
		start := time.Now()
		_, ok := g.StatsOf("a")
		require.False(t, ok)
		require.True(t, g.Allow("a"))
		st, ok := g.StatsOf("a")
		require.True(t, ok)
		require.Zero(t, st.LastRefusal)
		time.Sleep(time.Second)
		require.False(t, g.Allow("a"))
		time.Sleep(time.Second)
		require.True(t, g.Allow("b"))
		for range 100 { // More than are remembered one by one.
			require.False(t, g.Allow("b"))
		}
		st, _ = g.StatsOf("a")
		require.Equal(t, start.Add(time.Second), st.LastRefusal)
	})
}
