package shaper_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/watch"
)

// This file holds that each key of a Group has a Shaper of its own, as far as its
// callers can tell: TestModelOfKeys says so of random calls, these of single ones.

func TestEachKeyHasItsOwnLine(t *testing.T) {
	playKeys(t, "10/s depth 2", func(g *groupStage) {
		g.arriveAll("a1", "b1", "a2", "b2", "a3", "b3", "a4")
		g.at(50 * ms)
		g.arriveAll("c1", "c2")
		require.Equal(t, 5, g.Group.Stats().Waiting)
		require.Equal(t, 3, g.Group.Stats().Keys)
		g.at(time.Minute)
		g.saw("0s a1 left", "0s b1 left", "0s a4 full, retry 100ms", "50ms c1 left",
			"100ms a2 left", "100ms b2 left", "150ms c2 left", "200ms a3 left", "200ms b3 left")
		st := g.Group.Stats()
		require.Equal(t, shaper.GroupStats{
			Departed: 8, Refused: 1, QueueFull: 1, TotalWait: 700 * ms, RefusedKeys: st.RefusedKeys,
		}, st)
	})
}

// What one key costs is nothing to another, nor are the numbers of its limits.
func TestKeysHaveTheirOwnLimits(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.limit("l", "5/s burst 3") // login
		g.limit("p", "inf")         // premium
		g.arriveAll("x1", "x2", "l1", "l2", "l3", "l4", "p1", "p2", "p3")
		g.arrive("dear", "x", 5)
		g.arriveAll("x3", "y1")
		g.saw("0s x1 left", "0s l1 left", "0s l2 left", "0s l3 left", "0s l4 full, retry 200ms",
			"0s p1 left", "0s p2 left", "0s p3 left", "0s y1 left")
		require.Equal(t, map[string]float64{"x": 1, "l": 3, "y": 1}, g.levels())
		g.at(time.Minute)
		g.saw("1s x2 left", "2s dear left", "7s x3 left")
	})
}

// The first of the checks that a call fails is the one it is told of, and what comes
// before the bucket asks for no limits, makes no bucket and is counted nowhere.
func TestACallOfAGroupIsCheckedInOrder(t *testing.T) {
	playKeys(t, "1/s burst 2", func(g *groupStage) {
		ctx := context.Background()
		require.True(t, g.WaitN(closedContext(), "a", -1) == shaper.ErrNegativeCost)
		require.True(t, g.WaitN(closedContext(), "a", 0) == context.Canceled)
		require.True(t, g.Wait(closedContext(), "a") == context.Canceled)
		require.NoError(t, g.WaitN(ctx, "a", 0))
		require.True(t, g.AllowN("a", 0))
		require.False(t, g.AllowN("a", -1))
		_, err := g.Limiter("a").Forecast(-1)
		require.True(t, err == shaper.ErrNegativeCost)
		wait, err := g.Limiter("a").Forecast(0)
		require.NoError(t, err)
		require.Zero(t, wait)
		for _, n := range []int{-1, 0} {
			release, err := g.Acquire(ctx, "a", n)
			require.Equal(t, n < 0, err == shaper.ErrNegativeCost)
			release()
		}
		require.NoError(t, g.Do(ctx, "a", 0, func(context.Context) error { return nil }))
		g.Limiter("a").Hold(-1)
		g.Limiter("a").Hold(0)
		require.Empty(t, g.wasAsked())
		require.Equal(t, shaper.GroupStats{}, g.Group.Stats())

		require.ErrorIs(t, g.WaitN(ctx, "a", 3), shaper.ErrTooCostly)
		require.NoError(t, g.WaitN(ctx, "a", 2))
		require.ErrorIs(t, g.Wait(ctx, "a"), shaper.ErrQueueFull)
		require.False(t, g.Allow("a"))
		require.NoError(t, g.Close())
		require.ErrorIs(t, g.WaitN(ctx, "a", 3), shaper.ErrClosed)
		require.NoError(t, g.WaitN(ctx, "a", 0))
		require.True(t, g.AllowN("a", 0))
		st := g.Group.Stats()
		require.Equal(t, [5]uint64{1, 4, 1, 2, 1}, [5]uint64{st.Departed, st.Refused, st.TooCostly, st.QueueFull, st.Closed})
	})
}

// For a key without a bucket Forecast gives the prediction of a new one, and makes none.
func TestForecastMakesNoBucket(t *testing.T) {
	playKeys(t, "1/s burst 3", func(g *groupStage) {
		for range 2 {
			_, err := g.Limiter("a").Forecast(3)
			require.NoError(t, err)
			_, err = g.Limiter("a").Forecast(4)
			require.ErrorIs(t, err, shaper.ErrTooCostly)
		}
		require.Len(t, g.wasAsked(), 4)
		require.Equal(t, shaper.GroupStats{}, g.Group.Stats())
		require.True(t, g.AllowN("a", 2))
		require.Len(t, g.wasAsked(), 1)
		_, err := g.Limiter("a").Forecast(2)
		require.ErrorIs(t, err, shaper.ErrQueueFull)
		require.Empty(t, g.wasAsked(), "it has a bucket, which knows")
	})
}

// A key as a Limiter is the same bucket, whether it is there or not.
func TestAKeyAsALimiter(t *testing.T) {
	playKeys(t, "1/s burst 2 depth 1", func(g *groupStage) {
		a := g.Limiter("a")
		fresh := shaper.Stats{Name: "api", Limits: g.usual, Free: 2}
		require.Equal(t, fresh, a.Stats())
		require.Zero(t, g.Group.Stats().Keys)
		require.NoError(t, a.WaitN(context.Background(), 1))
		release, err := a.Acquire(context.Background(), 1)
		require.NoError(t, err)
		release()
		wait, err := a.Forecast(1)
		require.NoError(t, err)
		require.Equal(t, time.Second, wait)
		require.Equal(t, shaper.Stats{Name: "api", Limits: g.usual, Level: 2, EmptyAt: g.start.Add(2 * time.Second), Departed: 2, LastCall: g.start}, a.Stats())
		require.Equal(t, fresh, g.Limiter("b").Stats())
		a.Hold(time.Minute)
		st, _ := g.StatsOf("a")
		require.Equal(t, g.start.Add(time.Minute), st.HeldUntil)
		g.at(time.Minute)
		require.Equal(t, fresh, a.Stats(), "it is drained, and as a new one")

		g.says("bad", func() (shaper.Limits, error) { return shaper.Limits{}, errors.New("no such user") })
		require.Equal(t, shaper.Stats{Name: "api"}, g.Limiter("bad").Stats())
	}, shaper.WithName("api"))
}

func TestNewGroupRefusesWhatCannotBe(t *testing.T) {
	_, err := shaper.NewGroup[string](nil)
	require.ErrorContains(t, err, "limits is nil")
	limits := func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 1}, nil }
	for _, n := range []int{0, -1} {
		_, err = shaper.NewGroup(limits, shaper.WithMaxKeys(n))
		require.ErrorContains(t, err, "WithMaxKeys is "+map[int]string{0: "0", -1: "-1"}[n])
	}
	_, err = shaper.NewGroup(limits, nil, shaper.WithMaxKeys(1))
	require.NoError(t, err)
}

func TestTheZeroGroupSaysToUseNewGroup(t *testing.T) {
	for _, g := range []*shaper.Group[string]{nil, new(shaper.Group[string])} {
		for name, use := range map[string]func(){
			"Wait":     func() { _ = g.Wait(closedContext(), "") },
			"Allow":    func() { g.AllowN("", 0) },
			"Acquire":  func() { _, _ = g.Acquire(closedContext(), "", 0) },
			"Do":       func() { _ = g.Do(closedContext(), "", 0, nil) },
			"Forecast": func() { _, _ = g.Limiter("").Forecast(0) },
			"Hold":     func() { g.Limiter("").Hold(-1) },
			"Limiter":  func() { g.Limiter("") },
			"Reload":   func() { g.Reload() },
			"All":      func() { g.All() },
			"Stats":    func() { g.Stats() },
			"Shutdown": func() { _ = g.Shutdown(closedContext()) },
			"Close":    func() { _ = g.Close() },
		} {
			require.PanicsWithValue(t,
				"shaper: this Group is nil or zero and can't be used; make one with shaper.NewGroup", use, name)
		}
	}
}

// The ticker looks at a bucket when it may have drained, and hardly ever before.
// Otherwise a line of 300 days would take minutes of real processor time.
func TestAYearInLineIsNotAYearOfLooking(t *testing.T) {
	t.Parallel()
	days := rounds(10, 300, 300)
	line := time.Duration(days) * 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
			return shaper.Limits{Rate: rate.Every(line), Depth: 1}, nil
		})
		require.NoError(t, err)
		begun := time.Now()
		require.NoError(t, g.Wait(t.Context(), "a"))
		require.NoError(t, g.Wait(t.Context(), "a"))
		require.Equal(t, line, time.Since(begun))
		require.Equal(t, 1, g.Stats().Keys)
		time.Sleep(line + time.Second)
		require.Equal(t, 0, g.Stats().Keys)
	})
}

// heapInUse returns how many bytes are in use after a garbage collection.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // The first one may have left finalizers to run.
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A Group whose buckets have all been deleted keeps next to no memory, whether they
// all had the same Limits or each had its own. What other tests have left, as the buffers of connections, may go in
// the mean time, so each is measured up to five times, and must be right once.
func TestIdleKeysKeepNoMemory(t *testing.T) {
	keys := rounds(12_000, 100_000, 100_000)
	for name, limits := range map[string]func(int) shaper.Limits{
		"one rule":           func(int) shaper.Limits { return shaper.Limits{Rate: 1} },
		"each has its own":   func(key int) shaper.Limits { return shaper.Limits{Rate: 1, Burst: 1 + key} },
		"each of two in one": func(key int) shaper.Limits { return shaper.Limits{Rate: 1, Burst: 1 + key/2} },
		"unlimited":          func(int) shaper.Limits { return shaper.Limits{Rate: rate.Inf} },
		"each unlimited":     func(key int) shaper.Limits { return shaper.Limits{Rate: rate.Inf, Depth: key} },
	} {
		bubble(t, name, func(t *testing.T) {
			for try := 1; ; try++ {
				used, kept := memoryOfIdleKeys(t, keys, limits)
				// Each of up to 33 shards keeps the plan of the last key, and maps for a few.
				if used > 1<<20 && kept < 128<<10 {
					return
				}
				require.Less(t, try, 5, "bytes in use with %d keys, and without: %d, %d", keys, used, kept)
			}
		})
	}
}

// memoryOfIdleKeys returns how many bytes a Group takes when each of its keys has a bucket, and when all have been
// deleted again.
func memoryOfIdleKeys(t *testing.T, keys int, limits func(int) shaper.Limits) (used, kept int64) {
	g := must(shaper.NewGroup(func(key int) (shaper.Limits, error) { return limits(key), nil }))
	defer g.Close()
	time.Sleep(time.Millisecond) // What is made at the instant of a sweep may go with it.
	before := heapInUse()
	for key := range keys {
		require.True(t, g.Allow(key), "its bucket is full: key %d", key)
	}
	if limits(0).Rate != rate.Inf {
		require.Equal(t, keys, g.Stats().Keys)
	}
	used = heapInUse() - before
	time.Sleep(2 * time.Second)
	require.Zero(t, g.Stats().Keys)
	kept = heapInUse() - before
	runtime.KeepAlive(g)
	return used, kept
}

// BenchmarkGroupManyKeys is a call of a Group in which 100,000 keys have a bucket, with the
// keys in random order, from one goroutine and from 64.
func BenchmarkGroupManyKeys(b *testing.B) {
	keys := make([]string, 100_000)
	for i := range keys {
		keys[i] = "client-" + strconv.Itoa(i)
	}
	rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, goroutines := range []int{1, 64} {
		b.Run("goroutines="+strconv.Itoa(goroutines), func(b *testing.B) {
			g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
				return shaper.Limits{Rate: 1. / 60, Burst: 500_000}, nil
			})
			require.NoError(b, err)
			defer g.Close()
			for _, key := range keys {
				require.NoError(b, g.Wait(context.Background(), key))
			}
			b.ResetTimer()
			var callers sync.WaitGroup
			for i := range goroutines {
				callers.Go(func() {
					at := i * len(keys) / goroutines
					for range b.N / goroutines {
						if at++; at == len(keys) {
							at = 0
						}
						if g.Wait(context.Background(), keys[at]) != nil {
							b.Error("refused")
							return
						}
					}
				})
			}
			callers.Wait()
		})
	}
}

// Calls of all kinds on few keys of a Group that has room for fewer, changes of
// their limits and an end, all at once: every call returns with one outcome, on
// which caller, hooks and Stats agree.
func TestAStormOfKeysLeavesNobodyBehind(t *testing.T) {
	t.Parallel()
	least := rounds(6, 100, 100)
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			var overflowed, broken uint64
			for round, began := 0, time.Now(); round < least || time.Since(began) < enough && (overflowed == 0 || broken == 0); round++ {
				st := newKeyStorm(t)
				st.blow()
				time.Sleep(rand.N(2 * time.Millisecond))
				require.NoError(t, end(st.g))
				st.blowOver(t)
				stats := st.g.Stats()
				st.requireAgreement(t, totalsOf(stats))
				require.Zero(t, stats.Keys)
				require.ErrorIs(t, st.g.Wait(t.Context(), 9), shaper.ErrClosed)
				overflowed += stats.Overflowed
				broken += stats.LimitErrors
			}
			require.Positive(t, overflowed, "no key has ever shared a bucket")
			require.Positive(t, broken, "the limits of a key were never an error")
		})
	}
}

type keyStorm struct {
	storm
	g     *shaper.Group[float64]
	turns atomic.Int64 // of limits
}

// stormKeys are more than there is room for. The limits of all change; the limits of capKey have a
// cap now and then, and the limits of badKey are an error now and then.
var stormKeys = []float64{0, 1, 2, capKey, badKey, math.NaN()}

const (
	capKey = 3
	badKey = 4
)

func newKeyStorm(t *testing.T) *keyStorm {
	st := new(keyStorm)
	st.asks = true
	st.also = func(_ *call, _ hookKind, e shaper.Event) {
		if _, keyed := e.Key.(float64); !keyed {
			st.fault("a hook was told the key %v", e.Key)
		}
	}
	var err error
	st.g, err = shaper.NewGroup(st.limits, shaper.WithMaxKeys(3), st.trace())
	require.NoError(t, err)
	return st
}

func (st *keyStorm) limits(key float64) (shaper.Limits, error) {
	for range rand.N(3) {
		runtime.Gosched()
	}
	turn := int(st.turns.Add(1))
	l := stormLimits[turn%len(stormLimits)]
	switch {
	case key == capKey && turn/len(stormLimits)%2 == 0:
		l.InFlight = 1 + turn%stormCap
	case key == badKey && turn%3 == 0:
		return shaper.Limits{}, errNoUser
	}
	return l, nil
}

// pass is one call in one of the ways there are.
func (st *keyStorm) pass(key float64, c *call) error {
	switch way := rand.N(3); {
	case way == 0 && key != capKey:
		return st.g.WaitN(c, key, c.cost)
	case way == 1:
		return st.g.Do(c, key, c.cost, func(context.Context) error {
			st.stay()
			return nil
		})
	}
	return st.visit(st.g.Limiter(key), c, c)
}

// blow begins all that goes on at once.
func (st *keyStorm) blow() {
	for _, key := range stormKeys {
		st.calls(3, func() (closed bool) {
			c := st.someCall()
			err := st.pass(key, c)
			if key == badKey && errors.Is(err, errNoUser) { // Which is counted nowhere.
				c.cancel()
				return false
			}
			return st.note(c, err)
		})
	}
	for key := range 2 {
		st.meddle(func() { st.noteAllow(st.g.AllowN(float64(key), 1+rand.N(3))) })
	}
	st.meddle(func() { st.g.Reload() })
	st.meddleWith(func() meddled { return st.g.Limiter(stormKeys[rand.N(len(stormKeys))]) })
	st.meddle(st.looks(func() shaper.Stats { return totalsOf(st.g.Stats()) }))
	w := looker{fault: st.fault}
	st.meddle(func() {
		key := stormKeys[rand.N(len(stormKeys))]
		w.look(st.g, func(most int) []watch.Waiter { return st.g.Limiter(key).Line(most) })
		_ = st.g.SetLimits(key, stormLimits[rand.N(len(stormLimits))])
		_ = st.g.ResetLimits(stormKeys[rand.N(len(stormKeys))])
	})
	overflowed := uint64(0)
	st.meddle(func() {
		now := st.g.Stats()
		if now.Keys > 3 || now.Overflowed < overflowed {
			st.fault("Stats are %+v, after %d overflowed", now, overflowed)
		}
		overflowed = now.Overflowed
		for key, one := range st.g.All() {
			if key != key || one.Waiting < 0 || one.InFlight < 0 || one.InFlight > stormCap {
				st.fault("of key %v Stats are %+v", key, one)
			}
		}
	})
}
