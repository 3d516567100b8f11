package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// The limits that one key is given are in force at once, also for those that wait, and so are the
// limits of the function when they come back.
func TestLimitsOfOneKeyReTimeItsLine(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.arriveAll("a1", "a2", "a3", "a4", "b1", "b2")
		g.at(500 * ms)
		require.NoError(t, g.Group.SetLimits("a", shaper.Limits{Rate: 2, Depth: 3}))
		require.Equal(t, map[string]float64{"a": 0.5, "b": 0.5}, g.levels(), "the level is kept")
		g.arriveAll("a5")
		g.at(1500 * ms)
		require.NoError(t, g.ResetLimits("a"))
		require.NoError(t, g.ResetLimits("a"), "again")
		require.NoError(t, g.ResetLimits("b"), "it has none")
		g.at(time.Minute)
		g.saw("0s a1 left", "0s b1 left", "500ms a5 full, retry 250ms",
			"750ms a2 left", "1s b2 left", "1.25s a3 left", "2s a4 left")
	})
}

// The limits of one key count until they are reset: while its bucket is gone, over a Reload,
// before it has ever had one, and while it shares one.
func TestLimitsOfOneKeyStayUntilReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := map[string]int{}
		g, err := shaper.NewGroup(func(key string) (shaper.Limits, error) {
			asked[key]++
			return shaper.Limits{Rate: 1}, nil
		}, shaper.WithMaxKeys(1))
		require.NoError(t, err)
		three := shaper.Limits{Rate: 1, Burst: 3}
		require.NoError(t, g.SetLimits("a", three))
		require.Zero(t, g.Stats().Keys)
		full := func(key string, burst int) {
			t.Helper()
			for range burst {
				require.True(t, g.Allow(key))
			}
			require.False(t, g.Allow(key))
		}
		full("a", 3)
		g.Reload()
		wait, err := g.Limiter("a").Forecast(3)
		require.ErrorIs(t, err, shaper.ErrQueueFull)
		require.Zero(t, wait)
		require.False(t, g.Allow("a"))
		time.Sleep(10 * time.Second)
		require.Zero(t, g.Stats().Keys, "its bucket is gone")
		full("a", 3)
		require.Zero(t, asked["a"])
		time.Sleep(10 * time.Second)
		full("b", 1) // Takes the only place.
		full("a", 3) // Shares a bucket.
		require.Zero(t, asked["a"])
		require.NoError(t, g.ResetLimits("a"))
		full("a", 1)
		require.Positive(t, asked["a"])
		time.Sleep(10 * time.Second)
		require.NoError(t, g.SetLimits("a", shaper.Limits{Rate: rate.Inf}))
		for range 9 {
			require.True(t, g.Allow("a"))
		}
		require.NoError(t, g.SetLimits("a", three), "a key without a bucket to remember")
		full("a", 3)
		require.NoError(t, g.Close())
		require.NoError(t, g.SetLimits("a", three))
		require.NoError(t, g.ResetLimits("a"))
		require.False(t, g.Allow("a"))
	})
}

// Limits that cannot be are refused with the errors of Shaper.SetLimits, and change nothing.
func TestImpossibleLimitsOfOneKeyChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("no limits")
		var fails error
		g := must(shaper.NewGroup(func(float64) (shaper.Limits, error) { return shaper.Limits{Rate: 1, Depth: 5}, fails }))
		bad := shaper.Limits{Rate: -1}
		require.Equal(t, bad.Validate(), g.SetLimits(1, bad))
		require.ErrorContains(t, g.SetLimits(math.NaN(), shaper.Limits{Rate: 1}), "does not equal itself")
		require.NoError(t, g.ResetLimits(math.NaN()))

		require.True(t, g.Allow(1))
		capped := shaper.Limits{Rate: 1, InFlight: 2}
		require.ErrorContains(t, g.SetLimits(1, capped), "InFlight is 0 and can't become 2")
		require.False(t, g.Allow(1), "as before")
		require.NoError(t, g.SetLimits(2, capped), "it is not in use")
		release, err := g.Acquire(t.Context(), 2, 1)
		require.NoError(t, err)
		require.ErrorContains(t, g.ResetLimits(2), "InFlight is 2 and can't become 0")
		_, err = g.Limiter(2).Forecast(1)
		require.ErrorIs(t, err, shaper.ErrQueueFull, "still without Depth")
		fails = failure
		require.ErrorIs(t, g.ResetLimits(2), failure)
		require.NoError(t, g.SetLimits(2, shaper.Limits{Rate: 1, InFlight: 3}))
		release()
		time.Sleep(5 * time.Second)
		require.NoError(t, g.ResetLimits(2), "its bucket is gone, so the limits function is not asked")
	})
}

// Whoever can set limits of keys cannot fill the memory with them.
func TestLimitsOfSingleKeysAreBounded(t *testing.T) {
	g := must(shaper.NewGroup(func(int) (shaper.Limits, error) { return shaper.Limits{Rate: 1}, nil }))
	l := shaper.Limits{Rate: 1, Burst: 2}
	for key := range 1000 {
		require.NoError(t, g.SetLimits(key, l))
	}
	require.ErrorContains(t, g.SetLimits(1000, l), "1000 keys")
	require.NoError(t, g.SetLimits(7, shaper.Limits{Rate: 2}), "a key that has them already")
	require.NoError(t, g.ResetLimits(7))
	require.NoError(t, g.SetLimits(1000, l))
}

// Limits that the limits function is still returning when a key is given others must not
// replace those: neither for the first call of the key, nor for one that waited for the same
// result, nor in a Reload.
func TestASlowLimitsFunctionDoesNotUndoSetLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Bool
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
			if slow.Load() {
				time.Sleep(time.Second)
			}
			return shaper.Limits{Rate: 1, Depth: 5}, nil
		})
		require.NoError(t, err)
		two := shaper.Limits{Rate: 0.1, Burst: 2}
		limits := func(key string) shaper.Limits {
			st, _ := g.StatsOf(key)
			return st.Limits
		}
		slow.Store(true)
		enters(g.Limiter("a").WaitN, 1, 1, 1)
		require.NoError(t, g.SetLimits("a", two))
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, two, limits("a"))

		go g.Reload()
		synctest.Wait()
		require.NoError(t, g.SetLimits("a", shaper.Limits{Rate: 0.1, Burst: 3}))
		go g.Reload() // Waits for the first.
		time.Sleep(100 * msec)
		require.Equal(t, 3, limits("a").Burst)

		reset := make(chan error)
		go func() { reset <- g.ResetLimits("a") }()
		synctest.Wait()
		require.NoError(t, g.SetLimits("a", two), "while ResetLimits asks the limits function")
		require.NoError(t, <-reset, "it begins anew, and resets these too")
		require.Equal(t, 5, limits("a").Depth)
	})
}

// Limits of single keys that are set and reset again and again do not keep a new key from
// getting its own.
func TestLimitsOfOtherKeysDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
			asked++
			time.Sleep(time.Second)
			return shaper.Limits{Rate: 1}, nil
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for n := 0; ctx.Err() == nil; n++ {
				_ = g.SetLimits(fmt.Sprint(n%9), shaper.Limits{Rate: 2, Burst: 1 + n%7})
				_ = g.ResetLimits(fmt.Sprint(n % 5))
				time.Sleep(10 * msec)
			}
		}()
		begun := time.Now()
		require.NoError(t, g.Wait(t.Context(), "new"))
		require.Equal(t, time.Second, time.Since(begun))
		require.Equal(t, 1, asked)
		cancel()
		time.Sleep(time.Second) // It ends.
	})
}

// A Reload that runs while ResetLimits asks the limits function finds that the key still has
// limits of its own, and passes it over. What the function returned before that Reload must not
// be put in force after it: nothing would ever replace it.
func TestResetLimitsDoesNotUndoAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var burst, asked atomic.Int64
		burst.Store(1000)
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
			asked.Add(1)
			b := burst.Load()
			time.Sleep(time.Second)
			return shaper.Limits{Rate: 1, Burst: int(b)}, nil
		})
		require.NoError(t, err)
		require.NoError(t, g.SetLimits("a", shaper.Limits{Rate: 1, Burst: 77}))
		require.True(t, g.AllowN("a", 70))
		begun := time.Now()
		var took time.Duration
		var reset error
		go func() { reset = g.ResetLimits("a"); took = time.Since(begun) }()
		time.Sleep(500 * msec)
		burst.Store(10)
		g.Reload()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.NoError(t, reset)
		require.Equal(t, 2*time.Second, took, "the limits function was called again")
		require.Equal(t, int64(2), asked.Load())
		for _, st := range g.All() {
			require.Equal(t, shaper.Limits{Rate: 1, Burst: 10}, st.Limits)
		}
	})
}

// SetLimits is what an operator turns to when the limits function hangs or fails. So neither
// a call of it that is pending nor its error must keep a key from the limits that it has been
// given.
func TestSetLimitsHelpsWhileTheLimitsFunctionHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
			time.Sleep(30 * time.Second)
			return shaper.Limits{}, errors.New("the database is down")
		})
		require.NoError(t, err)
		before := make(chan error, 2)
		for range 2 { // One calls the function, and one waits for its result.
			go func() { before <- g.Wait(context.Background(), "a") }()
			synctest.Wait()
		}
		require.NoError(t, g.SetLimits("a", shaper.Limits{Rate: 5, Burst: 3}))
		begun := time.Now()
		require.NoError(t, g.Wait(t.Context(), "a"), "a new call")
		require.True(t, g.Allow("a"))
		require.Zero(t, time.Since(begun))
		require.NoError(t, <-before, "those that came before are not told the error either")
		require.NoError(t, <-before)
		require.Equal(t, 30*time.Second, time.Since(begun))
		require.Zero(t, g.Stats().LimitErrors)
		require.Equal(t, uint64(4), g.Stats().Departed)

		require.ErrorContains(t, g.Wait(t.Context(), "b"), "the database is down")
		require.Equal(t, uint64(1), g.Stats().LimitErrors)
	})
}

// Whoever looks at a key must not wait for its limits function, which may block.
func TestALookAtABucketDoesNotCallTheLimitsFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
			calls++
			return shaper.Limits{Rate: 1, Depth: 9}, nil
		}, shaper.WithMaxKeys(1))
		require.NoError(t, err)
		defer g.Close()
		require.False(t, g.Closed())
		require.True(t, g.Allow("own"))
		require.True(t, g.Allow("shares"))
		go g.Wait(t.Context(), "own")
		go g.Wait(t.Context(), "shares")
		synctest.Wait()
		before := calls

		st, ok := g.StatsOf("own")
		require.True(t, ok)
		require.Equal(t, 1, st.Waiting)
		require.Len(t, g.LineOf("own", 9), 1)
		_, ok = g.StatsOf("shares")
		require.False(t, ok, "it has no bucket of its own")
		require.Empty(t, g.LineOf("shares", 9))
		_, ok = g.Override("own")
		require.False(t, ok)
		l, err := g.LimitsOf("own")
		require.NoError(t, err)
		require.Equal(t, shaper.Limits{Rate: 1, Depth: 9}, l)
		require.NoError(t, g.SetLimits("new", shaper.Limits{Rate: 7}))
		l, err = g.LimitsOf("new")
		require.NoError(t, err)
		require.Equal(t, shaper.Limits{Rate: 7}, l)
		l, ok = g.Override("new")
		require.True(t, ok)
		require.Equal(t, shaper.Limits{Rate: 7}, l)
		require.Equal(t, before, calls)

		require.Len(t, g.Limiter("shares").Line(9), 1)
		_, err = g.LimitsOf("another")
		require.NoError(t, err)
		require.Equal(t, before+2, calls)
		require.NoError(t, g.Close())
		require.True(t, g.Closed())
	})
}

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
		_, err := g.Limiter("a").Forecast(1)
		require.ErrorIs(t, err, shaper.ErrClosed)
		g.Limiter("a").Hold(time.Hour)
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
