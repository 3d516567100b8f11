package shaper_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// groupAtRate makes a Group whose keys share their levels, and whose limits function returns the
// Limits that change was given last.
func groupAtRate(t *testing.T, m *buckettest.Memory, l shaper.Limits, opts ...shaper.GroupOption) (g *shaper.Group[string], change func(shaper.Limits)) {
	t.Helper()
	var now atomic.Pointer[shaper.Limits]
	now.Store(&l)
	g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return *now.Load(), nil }, append(opts, shaper.WithBuckets(m, ownKey))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.Close() })
	return g, func(to shaper.Limits) {
		now.Store(&to)
		g.Reload()
	}
}

// A process that lifted the limit for itself alone would let everything leave, while the others keep
// to the rate that they share.
func TestNoProcessLiftsASharedLimitForItselfAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unlimited := shaper.Limits{Rate: rate.Inf}
		const refusal = "Limits.Rate is +Inf, must be finite where a Bucket holds the level"
		m := buckettest.NewMemory()
		_, err := shaper.New(unlimited, shaper.WithBucket(m, "key"))
		require.ErrorContains(t, err, refusal)
		s, err := shaper.New(shaper.Limits{Rate: 50}, shaper.WithBucket(m, "key"))
		require.NoError(t, err)
		defer s.Close()
		require.ErrorContains(t, s.SetLimits(unlimited), refusal)
		require.EqualValues(t, 50, s.Stats().Limits.Rate)
		g, _ := groupAtRate(t, m, shaper.Limits{Rate: 50})
		require.ErrorContains(t, g.SetLimits("key", unlimited), refusal)
	})
}

// An answer that was under way when the rate became rate.Inf must not limit it again. Nor must a
// fallback that begins later.
func TestNoAnswerLimitsARateThatHasBecomeInf(t *testing.T) {
	for name, fault := range map[string]buckettest.Fault{"answered": buckettest.NoFault, "failed": buckettest.FailBefore} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := buckettest.NewMemory()
				m.SetDelay(50*ms, 50*ms)
				m.Fail(faultOf(fault))
				g, change := groupAtRate(t, m, shaper.Limits{Rate: 10, Depth: 100}, shaper.WithFallback(shaper.FallbackOpen))
				for range 3 {
					go func() { _ = g.Wait(t.Context(), "key") }()
				}
				time.Sleep(30 * ms)
				change(shaper.Limits{Rate: rate.Inf, Depth: 100})
				for range 100 {
					time.Sleep(30 * ms)
					began := time.Now()
					for range 5 {
						require.NoError(t, g.Wait(t.Context(), "key"))
					}
					require.Zero(t, time.Since(began))
				}
			})
		})
	}
}

func TestTheMeterAtInfAsksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		g, change := groupAtRate(t, m, shaper.Limits{Rate: 1}, shaper.WithBlock(time.Hour))
		require.True(t, g.Allow("key"))
		require.False(t, g.Allow("key"))
		st, ok := g.StatsOf("key")
		require.True(t, ok)
		require.False(t, st.BlockedUntil.IsZero())
		m.SetDelay(50*ms, 50*ms)
		left := make(chan bool, 1)
		change(shaper.Limits{Rate: rate.Inf})
		require.True(t, g.Allow("key"), "a change to rate.Inf ends a block")
		change(shaper.Limits{Rate: 1})
		go func() { left <- g.Allow("key") }()
		time.Sleep(30 * ms)
		change(shaper.Limits{Rate: rate.Inf})
		require.True(t, <-left)
	})
}

// Totals only grow, whatever the rate is.
func TestRefusalsAreNotForgottenAtInf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.Fail(faultOf(buckettest.FailBefore))
		g, change := groupAtRate(t, m, shaper.Limits{Rate: 10})
		for range 5 {
			require.False(t, g.Allow("key"))
		}
		change(shaper.Limits{Rate: rate.Inf})
		require.EqualValues(t, 5, g.Stats().Refused)
		require.EqualValues(t, 5, g.Stats().Unavailable)
	})
}

// A server that is silent is found to be so, even if no caller waits for as long as a call may
// take.
func TestImpatientCallersFindASilentBucketToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(time.Millisecond, time.Millisecond)
		s, err := shaper.New(shaper.Limits{Rate: 1000, Burst: 10}, shaper.WithBucket(m, "key"), shaper.WithFallback(shaper.FallbackOpen))
		require.NoError(t, err)
		defer s.Close()
		require.NoError(t, s.Wait(t.Context()))
		m.Fail(faultOf(buckettest.LoseRequest))
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 200*ms)
			require.ErrorIs(t, s.Wait(ctx), context.DeadlineExceeded)
			cancel()
		}
		require.Equal(t, shaper.BucketOpen, s.Stats().Bucket.State)
		time.Sleep(time.Second)
		require.NoError(t, s.Wait(t.Context()))
	})
}

// A key that calls rarely, so that its bucket is forgotten meanwhile, has its rate in a fallback.
func TestARareKeyLeavesInAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.Fail(faultOf(buckettest.FailBefore))
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 5, Burst: 3}, nil },
			shaper.WithBuckets(m, func(key string) string { return key }), shaper.WithFallback(shaper.FallbackOpen))
		require.NoError(t, err)
		defer g.Close()
		for range 3 {
			g.Allow("other")
		}
		for range 3 {
			time.Sleep(2500 * ms)
			require.True(t, g.Allow("rare"))
		}
	})
}

// groupOn returns a Group whose levels are in a Bucket, with a rate for each key.
func groupOn(t *testing.T, b shaper.Bucket, rates map[string]rate.Limit, opts ...shaper.GroupOption) *shaper.Group[string] {
	t.Helper()
	g, err := shaper.NewGroup(func(key string) (shaper.Limits, error) { return shaper.Limits{Rate: rates[key]}, nil },
		append(opts, shaper.WithBuckets(b, func(key string) string { return key }))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// All processes but the one that was started last would pay two round trips for each new key.
func TestANewerVersionOfTheSameRateCostsNoRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		rates := map[string]rate.Limit{"a": 12.345, "b": 12.345, "c": 9}
		older := groupOn(t, m, rates)
		time.Sleep(time.Second)
		newer := groupOn(t, m, rates)
		for i, g := range []*shaper.Group[string]{newer, older, newer, older} {
			time.Sleep(time.Second)
			for n, key := range []string{"a", "b", "c"} {
				require.True(t, g.Allow(key))
				require.EqualValues(t, 3*(i/2)+n+1, g.Stats().Bucket.RoundTrips)
			}
		}
	})
}

// A deployment that changes the rate of one key and not of the other: what an old process hears
// of the new ones at the key that has not changed must not make its old rate of the other newer.
func TestTheOldRateOfAKeyDoesNotWinBecauseAnotherKeyKeepsItsRate(t *testing.T) {
	for name, opts := range map[string][2][]shaper.GroupOption{
		"versions by time": {},
		"WithRateVersion":  {{shaper.WithRateVersion(1)}, {shaper.WithRateVersion(5)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := buckettest.NewMemory()
				older := groupOn(t, m, map[string]rate.Limit{"stays": 10, "changes": 10}, opts[0]...)
				time.Sleep(time.Second)
				newer := groupOn(t, m, map[string]rate.Limit{"stays": 10, "changes": 5}, opts[1]...)
				require.True(t, newer.Allow("stays"))
				time.Sleep(time.Second)
				require.True(t, older.Allow("stays"))
				require.True(t, older.Allow("changes"))
				time.Sleep(time.Second)
				for _, g := range []*shaper.Group[string]{newer, older} {
					require.True(t, g.Allow("changes"))
					require.EqualValues(t, 200_000, m.Level("changes").Rate.Micros, "5/s is in force")
					time.Sleep(time.Second)
				}
			})
		})
	}
}

// What the Bucket has told a meter, and that it can't be asked, is foreseen.
func TestForecastsKnowWhatTheBucketSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		limits := shaper.Limits{Rate: 0.01, Burst: 5}
		a, err := shaper.New(limits, shaper.WithBucket(m, "key"))
		require.NoError(t, err)
		defer a.Close()
		b, err := shaper.New(limits, shaper.WithBucket(m, "key"), shaper.WithRateVersion(1))
		require.NoError(t, err)
		defer b.Close()
		for range 5 {
			require.True(t, a.Allow())
		}
		require.False(t, b.Allow())
		_, err = b.Forecast(1)
		require.ErrorIs(t, err, shaper.ErrQueueFull)
		require.InDelta(t, 5, b.Stats().Level, 0.01)

		m.Fail(faultOf(buckettest.FailBefore))
		for range 3 {
			require.False(t, b.Allow())
		}
		_, err = b.Forecast(1)
		require.ErrorIs(t, err, shaper.ErrUnavailable)
	})
}
