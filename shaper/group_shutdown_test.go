package shaper_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// This file holds guarantee 9 (end) for a Group, and what its hooks are told.

func TestCloseRefusesThoseInAllLines(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.arriveAll("a1", "a2", "a3", "b1", "b2", "c1")
		g.at(500 * ms)
		require.NoError(t, g.Close())
		g.alone()
		require.NoError(t, g.Close())
		g.arriveAll("a4", "d1")
		require.False(t, g.Allow("d"))
		_, err := g.Forecast("a", 1)
		require.ErrorIs(t, err, shaper.ErrClosed)
		g.Hold("a", time.Hour)
		require.Zero(t, g.Limiter("b").Stats().HeldUntil, "there is no bucket to hold")
		g.saw("0s a1 left", "0s b1 left", "0s c1 left", "500ms a2 closed, retry 0s", "500ms a3 closed, retry 0s",
			"500ms b2 closed, retry 0s", "500ms a4 closed, retry 0s", "500ms d1 closed, retry 0s")
		st := g.Group.Stats()
		require.Equal(t, [5]uint64{3, 6, 6, 0, 0}, [5]uint64{st.Departed, st.Refused, st.Closed, st.Abandoned, st.LimitErrors})
		require.Zero(t, st.Keys+st.Waiting)
		require.Empty(t, g.levels())
		require.Equal(t, []string{"a", "b", "c"}, g.wasAsked())
		g.alone()
		g.at(time.Hour)
		g.alone()
	})
}

func TestShutdownLetsAllLinesLeave(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.limit("s", "1 per 10s depth 9")
		g.arriveAll("a1", "a2", "s1", "s2", "b1", "b2", "b3")
		go g.shutDown()
		synctest.Wait()
		g.at(500 * ms)
		g.arriveAll("a3", "s3", "new")
		g.saw("0s a1 left", "0s s1 left", "0s b1 left",
			"500ms a3 closed, retry 500ms", "500ms s3 closed, retry 9.5s", "500ms new closed, retry 0s")
		require.Equal(t, []string{"a", "s", "b"}, g.wasAsked(), "no new key is asked for")
		g.at(5 * time.Second)
		g.cancel("b3")
		g.at(time.Minute)
		require.Equal(t, byInstant([]string{"1s a2 left", "1s b2 left", "2s b3 left", "10s s2 left", "10s shut down: <nil>"}),
			byInstant(g.log))
		require.Zero(t, g.Group.Stats().Keys)
		g.alone()
	})
}

func TestShutdownOfAGroupWithoutLinesIsDoneAtOnce(t *testing.T) {
	playKeys(t, "1/h depth 9", func(g *groupStage) {
		g.arriveAll("a1")
		require.NoError(t, g.Shutdown(closedContext()))
		require.NoError(t, g.Shutdown(closedContext()))
		g.alone()
		g.arriveAll("a2")
		g.saw("0s a1 left", "0s a2 closed, retry 0s")
	})
}

func TestShutdownOfAGroupThatIsGivenUpGoesOn(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.arriveAll("a1", "a2", "b1", "b2", "b3")
		ctx, cancel := context.WithTimeout(context.Background(), 500*ms)
		defer cancel()
		require.True(t, g.Shutdown(ctx) == context.DeadlineExceeded)
		require.Equal(t, 500*ms, time.Since(g.start))
		require.NoError(t, g.Shutdown(context.Background()), "another waits for the rest")
		require.Equal(t, 2*time.Second, time.Since(g.start))
		g.saw("0s a1 left", "0s b1 left", "1s a2 left", "1s b2 left", "2s b3 left")
	})
	playKeys(t, "1/h depth 9", func(g *groupStage) {
		g.arriveAll("a1", "a2", "b1", "b2")
		go g.shutDown()
		g.at(time.Second)
		require.NoError(t, g.Close())
		g.alone()
		require.ElementsMatch(t, []string{"0s a1 left", "0s b1 left", "1s a2 closed, retry 0s", "1s b2 closed, retry 0s",
			"1s shut down: <nil>"}, g.log)
	})
	playKeys(t, "1/h depth 9", func(g *groupStage) {
		g.arriveAll("a1", "a2", "b1", "b2")
		go g.shutDown()
		g.at(time.Second)
		g.cancel("a2", "b2") // The last in line may end it by leaving.
		require.Contains(t, g.log, "1s shut down: <nil>")
	})
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.arriveAll("a1", "b1", "b2", "b3")
		require.ErrorIs(t, g.Shutdown(closedContext()), context.Canceled)
		require.Equal(t, 2, g.Group.Stats().Keys)
		g.at(2 * time.Second)
		g.saw("0s a1 left", "0s b1 left", "1s b2 left", "2s b3 left")
		require.Zero(t, g.Group.Stats().Keys, "nobody has to wait for the end of the lines")
	})
}

// A line of keys that share a bucket is one of those that a Shutdown lets leave.
func TestShutdownLetsTheLinesOfSharedBucketsLeave(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.arriveAll("a1", "b1", "b2", "b3")
		require.Equal(t, 1, g.Group.Stats().Keys)
		go g.shutDown()
		g.at(500 * ms)
		g.arriveAll("b4")
		g.at(time.Minute)
		g.saw("0s a1 left", "0s b1 left", "500ms b4 closed, retry 0s", "1s b2 left", "2s b3 left", "2s shut down: <nil>")
	}, shaper.WithMaxKeys(1))
}

func TestSeatsComeBackAfterClose(t *testing.T) {
	playKeys(t, "inf depth 9 inflight 1", func(g *groupStage) {
		g.acquireAll("a1", "a2", "b1")
		require.NoError(t, g.Close())
		g.release("a1", "a2", "b1", "a1")
		g.saw("0s a1 left", "0s b1 left", "0s a2 closed, retry 0s")
		g.acquireAll("a3")
		g.release("a3")
		g.saw("0s a3 closed, retry 0s")
		g.alone()
	})
}

// Close and Shutdown may be called from every hook.
func TestCloseOfAGroupFromInsideAHook(t *testing.T) {
	var g *groupStage
	end := func(context.Context, shaper.Event) {
		_ = g.Shutdown(closedContext())
		_ = g.Close()
	}
	for _, trace := range []*shaper.Trace{{Enqueued: end}, {Departed: end}, {Refused: end}, {Abandoned: end}} {
		playKeys(t, "1/s depth 1", func(stage *groupStage) {
			g = stage
			g.arriveAll("a1", "b1", "a2", "b2", "a3")
			g.cancel("a2", "b2")
			g.at(10 * time.Second)
			require.Len(t, g.log, 5)
			require.ErrorIs(t, g.Wait(context.Background(), "c"), shaper.ErrClosed)
			g.alone()
		}, shaper.WithTrace(trace))
	}
}

// The hooks of all keys are the same, and are told which it is.
func TestHooksAreToldTheKey(t *testing.T) {
	var mu sync.Mutex
	var told []string
	hook := func(what string) func(context.Context, shaper.Event) {
		return func(_ context.Context, e shaper.Event) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprintf("%s %s %v cost %d waiting %d waited %v: %v", e.Name, what, e.Key, e.Cost, e.Waiting, e.Waited, e.Err))
		}
	}
	playKeys(t, "1/s depth 1", func(g *groupStage) {
		g.arriveAll("a1")
		require.True(t, g.Allow("b"))
		g.arriveAll("b2", "a2", "a3")
		require.False(t, g.Allow("b"))
		g.cancel("b2")
		g.at(time.Second)
		g.arriveAll("a4")
		require.NoError(t, g.Close())
		synctest.Wait() // a4 runs its hook in its own goroutine, which must not race with that of c1.
		g.arriveAll("c1")
		synctest.Wait()
		require.Equal(t, []string{
			"api departed a cost 1 waiting 0 waited 0s: <nil>",
			"api departed b cost 1 waiting 0 waited 0s: <nil>",
			"api enqueued b cost 1 waiting 1 waited 0s: <nil>",
			"api enqueued a cost 1 waiting 1 waited 0s: <nil>",
			"api refused a cost 1 waiting 1 waited 0s: shaper: queue is full (retry after 1s)",
			"api refused b cost 1 waiting 1 waited 0s: shaper: queue is full (retry after 2s)",
			"api abandoned b cost 1 waiting 0 waited 0s: context canceled",
			"api departed a cost 1 waiting 0 waited 1s: <nil>",
			"api enqueued a cost 1 waiting 1 waited 0s: <nil>",
			"api refused a cost 1 waiting 0 waited 0s: shaper: closed",
			"api refused c cost 1 waiting 0 waited 0s: shaper: closed",
		}, told)
	}, shaper.WithName("api"), shaper.WithTrace(&shaper.Trace{
		Enqueued: hook("enqueued"), Departed: hook("departed"), Refused: hook("refused"), Abandoned: hook("abandoned"),
	}))
}
