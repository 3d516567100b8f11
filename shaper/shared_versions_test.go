package shaper_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// While a deployment rolls, processes with two rates share a bucket. The newest is in force for
// all, and together they are never above the greater of the two.
func TestRollingDeployIsNeverAboveTheGreaterRate(t *testing.T) {
	for _, rates := range [][2]rate.Limit{{100, 400}, {400, 100}, {1000, 100}, {100, 1000}} {
		for _, burst := range []int{1, 10} {
			share(t, 0, "100/s depth 999", 0, func(p *processes) {
				p.SetDelay(ms, ms)
				p.limits.Burst = burst
				p.limits.Rate = rates[0]
				for range 3 {
					p.add(p.Memory, shared.Options{RateVersion: 1})
				}
				stop := p.saturate(40)
				defer stop()
				p.at(time.Second)
				p.limits.Rate = rates[1]
				p.add(p.Memory, shared.Options{RateVersion: 2})
				stopNew := p.saturate(40, 3)
				defer stopNew()
				p.at(3 * time.Second)
				for i, s := range p.all {
					require.Equal(t, rates[1], s.Stats().Limits.Rate, "process %d", i)
					require.Equal(t, max(1, burst), max(1, s.Stats().Limits.Burst))
					require.Equal(t, 999, s.Limits().Depth, "its own")
				}
				_, all := p.between(2*time.Second, 3*time.Second)
				require.InDelta(t, float64(rates[1]), all, 3)
				// One that is restarted with the old rate changes nothing.
				p.limits.Rate = rates[0]
				p.add(p.Memory, shared.Options{RateVersion: 1})
				p.arrive(4, 1, 1)
				p.at(4 * time.Second)
				require.Equal(t, rates[1], p.all[4].Stats().Limits.Rate)
				stop()
				stopNew()
				p.limits.Rate = max(rates[0], rates[1])
				p.lateness = 10 * ms // That of the slower rate, which those have that use its slots.
				for _, r := range rates {
					p.lateness = max(p.lateness, time.Duration(float64(time.Second)/float64(r)))
				}
				p.check()
			})
		}
	}
}

// Without a RateVersion the rate that was set last is in force, for all; also if the call of
// SetLimits comes while the Bucket answers with a rate that another has set before.
func TestLatestSetLimitsWins(t *testing.T) {
	share(t, 3, "100/s depth 999", 20*ms, func(p *processes) {
		stop := p.saturate(40)
		defer stop()
		p.at(500 * ms)
		require.NoError(t, p.all[1].SetLimits(shaper.Limits{Rate: 200, Depth: 999}))
		p.at(512 * ms) // The answers of the others have the new rate, and are on their way.
		require.NoError(t, p.all[0].SetLimits(shaper.Limits{Rate: 300, Depth: 500}))
		p.at(2 * time.Second)
		for _, s := range p.all {
			require.Equal(t, rate.Limit(300), s.Stats().Limits.Rate)
		}
		_, all := p.between(time.Second, 2*time.Second)
		require.InDelta(t, 300, all, 3)
		stop()
		p.limits.Rate = 300
		p.check()
	})
}

// A process whose clock is an hour ahead must not keep its rate in force for an hour: whoever has
// learnt of the rate can change it.
func TestTheRateOfAClockThatIsAheadCanBeChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		fast, slow := shaper.Limits{Rate: 1000, Depth: 9}, shaper.Limits{Rate: 50, Depth: 9}
		ahead := time.Now().Add(time.Hour).UnixMicro()
		first := sharedShaper(t, m, fast, shared.Options{RateVersion: ahead})
		require.NoError(t, first.Wait(t.Context()))
		s := sharedShaper(t, m, slow)
		g, _ := groupAtRate(t, m, slow)
		inForce := func(want rate.Limit) {
			t.Helper()
			for range 2 { // The first may be the one that learns it.
				require.NoError(t, first.Wait(t.Context()))
				require.NoError(t, s.Wait(t.Context()))
				require.NoError(t, g.Wait(t.Context(), "key"))
			}
			st, _ := g.StatsOf("key")
			require.Equal(t, []rate.Limit{want, want, want}, []rate.Limit{first.Limits().Rate, s.Limits().Rate, st.Limits.Rate})
		}
		require.NoError(t, s.SetLimits(slow))
		inForce(1000) // It had not asked yet.
		require.NoError(t, s.SetLimits(slow))
		inForce(50)
		require.NoError(t, g.SetLimits("key", fast))
		inForce(1000)
	})
}

// A version that no Bucket takes would be an outage of the key, for a change of its rate.
func TestARateOfTheGreatestVersionStaysInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		first := sharedShaper(t, m, shaper.Limits{Rate: 10, Depth: 9}, shared.Options{RateVersion: 1 << 53})
		other := sharedShaper(t, m, shaper.Limits{Rate: 20, Depth: 9})
		for _, s := range []*shaper.Shaper{first, other, first, other} {
			require.NoError(t, s.Wait(t.Context()))
			require.NoError(t, s.SetLimits(shaper.Limits{Rate: 30, Depth: 9}))
			require.NoError(t, s.Wait(t.Context()))
			require.Equal(t, rate.Limit(10), s.Limits().Rate)
			require.Zero(t, s.Stats().Bucket.Failures)
		}
	})
}

// Whoever changes its Depth alone must not put back an old rate.
func TestUpdateLimitsKeepsTheRateOfAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		a, b := sharedShaper(t, m, shaper.Limits{Rate: 50, Burst: 1, Depth: 9}), sharedShaper(t, m, shaper.Limits{Rate: 50, Burst: 1, Depth: 9})
		waitInTurn := func() {
			for range 2 { // The first may be the one that learns the rate.
				require.NoError(t, a.Wait(t.Context()))
				require.NoError(t, b.Wait(t.Context()))
			}
		}
		require.NoError(t, a.SetLimits(shaper.Limits{Rate: 200, Burst: 1, Depth: 9}))
		waitInTurn()
		require.NoError(t, b.UpdateLimits(func(l shaper.Limits) shaper.Limits {
			l.Depth = 5
			return l
		}))
		waitInTurn()
		require.Equal(t, shaper.Limits{Rate: 200, Burst: 1, Depth: 9}, a.Limits())
		require.Equal(t, shaper.Limits{Rate: 200, Burst: 1, Depth: 5}, b.Limits())
		require.Error(t, b.UpdateLimits(func(l shaper.Limits) shaper.Limits {
			l.Rate = rate.Inf
			return l
		}))
		require.Equal(t, shaper.Limits{Rate: 200, Burst: 1, Depth: 5}, b.Limits())
	})
}

// Free must not promise what an outage refuses.
func TestNothingIsFreeInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		s := sharedShaper(t, m, shaper.Limits{Rate: 10, Burst: 5})
		require.True(t, s.AllowN(2))
		require.Equal(t, 3, s.Stats().Free)
		time.Sleep(time.Second)
		require.Equal(t, 5, s.Stats().Free)
		m.Fail(faultOf(buckettest.FailBefore))
		for s.Stats().Bucket.State != shared.StateDown {
			require.False(t, s.Allow())
		}
		require.Zero(t, s.Stats().Free)
		require.False(t, s.Allow())
		m.Fail(nil)
		time.Sleep(5 * time.Second)
		require.True(t, s.Allow())
		require.Equal(t, 4, s.Stats().Free)
	})
}

// A Depth, a cap or a MaxWait is each process's own: to change one changes no rate, and loses no
// slot.
func TestOwnLimitsAreNobodyElses(t *testing.T) {
	share(t, 2, "1000/s depth 999", 2*ms, func(p *processes) {
		stop := p.saturate(40)
		defer stop()
		for i := range 50 {
			p.at(time.Duration(i) * 10 * ms)
			require.NoError(t, p.all[0].SetLimits(shaper.Limits{Rate: 1000, Depth: 500 + i, MaxWait: time.Minute}))
		}
		p.at(time.Second)
		require.Zero(t, p.all[0].Stats().Bucket.Dropped)
		require.Equal(t, 999, p.all[1].Stats().Limits.Depth)
		_, all := p.between(0, time.Second)
		require.InDelta(t, 1000, all, 5)
		stop()
		p.check()
	})
}

// rate.Inf, which only a limits function can give, asks nobody; and from it back to a rate that is
// shared.
func TestUnlimitedAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(2*ms, 0)
		g, change := groupAtRate(t, m, shaper.Limits{Rate: 10, Depth: 99})
		left := make(chan error, 5)
		for range 5 {
			go func() { left <- g.Wait(t.Context(), "key") }()
		}
		time.Sleep(150 * ms)
		require.Equal(t, 3, 5-len(left))
		change(shaper.Limits{Rate: rate.Inf, Depth: 99})
		synctest.Wait()
		require.Len(t, left, 5, "all leave")
		time.Sleep(50 * ms)
		m.ClearLog()
		for range 10 {
			require.NoError(t, g.Wait(t.Context(), "key"))
			require.True(t, g.Allow("key"))
		}
		require.Empty(t, m.Log())
		change(shaper.Limits{Rate: 10, Depth: 99})
		began := time.Now()
		for range 3 {
			require.NoError(t, g.Wait(t.Context(), "key"))
		}
		require.GreaterOrEqual(t, time.Since(began), 200*ms)
	})
}

// A Group gives each key a lease, with the rate that SetLimits, ResetLimits and Reload put in
// force, and forgets the lease when the key's bucket has drained.
func TestGroupLeasesEachKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(ms, ms)
		a, change := groupAtRate(t, m, shaper.Limits{Rate: 100, Depth: 99})
		b, _ := groupAtRate(t, m, shaper.Limits{Rate: 100, Depth: 99})
		both := func(key string, n int, want, tolerance time.Duration) {
			t.Helper()
			began := time.Now()
			var all sync.WaitGroup
			for _, g := range []*shaper.Group[string]{a, b} {
				all.Go(func() {
					for range n {
						if err := g.Wait(t.Context(), key); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			require.InDelta(t, want, time.Since(began), float64(tolerance))
		}
		both("u", 50, 990*ms, 15*ms)
		both("v", 50, 990*ms, 15*ms)
		require.NoError(t, a.SetLimits("u", shaper.Limits{Rate: 50, Depth: 9}))
		both("u", 50, 1980*ms, 60*ms)
		require.NoError(t, a.ResetLimits("u"))
		change(shaper.Limits{Rate: 200, Depth: 99})
		both("u", 100, 1000*ms, 60*ms)
		st := a.Stats()
		require.Equal(t, shared.StateShared, st.Bucket.State)
		require.Equal(t, st.Departed, st.Bucket.Leased-st.Bucket.Dropped-st.Bucket.GivenBack)
		time.Sleep(time.Minute)
		require.Zero(t, a.Stats().Keys)
	})
}

// One process lowers the rate of all, and another sets it to the rate before, and to the
// rate that it has been given itself. The rate that was set last is in force, or nobody
// could undo a change but the process that made it.
func TestAProcessCanSetTheRateBackThatAnotherHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		limits := shaper.Limits{Rate: 1000, Depth: 10}
		var both [2]*shaper.Shaper
		for i := range both {
			s := sharedShaper(t, m, limits)
			both[i] = s
		}
		inForce := func(want rate.Limit) {
			t.Helper()
			for range 2 { // The first may be the one that learns it.
				for _, s := range both {
					require.NoError(t, s.Wait(t.Context()))
				}
			}
			for _, s := range both {
				require.Equal(t, want, s.Limits().Rate)
			}
			time.Sleep(time.Second)
		}
		inForce(1000)
		slower := limits
		slower.Rate = 200
		require.NoError(t, both[0].SetLimits(slower))
		inForce(200)
		require.NoError(t, both[1].SetLimits(limits))
		inForce(1000)

		// A change of something else does not put an old rate in force again.
		require.NoError(t, both[0].SetLimits(slower))
		inForce(200)
		deeper := both[1].Limits()
		deeper.Depth = 20
		require.NoError(t, both[1].SetLimits(deeper))
		inForce(200)
		require.NoError(t, both[0].SetLimits(limits))
		inForce(1000)
	})
}

// groupAtRate makes a Group whose keys share their levels, and whose limits function returns the
// Limits that change was given last.
func groupAtRate(t *testing.T, m *buckettest.Memory, l shaper.Limits, opts ...any) (g *shaper.Group[string], change func(shaper.Limits)) {
	t.Helper()
	var now atomic.Pointer[shaper.Limits]
	now.Store(&l)
	g = sharedGroupOf(t, m, func(string) (shaper.Limits, error) { return *now.Load(), nil }, opts...)
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
		_, err := shaper.New(unlimited, shaper.WithBucket(m, "key", shared.Options{}))
		require.ErrorContains(t, err, refusal)
		s := sharedShaper(t, m, shaper.Limits{Rate: 50})
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
		bubble(t, name, func(t *testing.T) {
			m := buckettest.NewMemory()
			m.SetDelay(50*ms, 50*ms)
			m.Fail(faultOf(fault))
			g, change := groupAtRate(t, m, shaper.Limits{Rate: 10, Depth: 100}, shared.Options{Fallback: shared.FallbackOpen})
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
		s := sharedShaper(t, m, shaper.Limits{Rate: 1000, Burst: 10}, shared.Options{Fallback: shared.FallbackOpen})
		require.NoError(t, s.Wait(t.Context()))
		m.Fail(faultOf(buckettest.LoseRequest))
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 200*ms)
			require.ErrorIs(t, s.Wait(ctx), context.DeadlineExceeded)
			cancel()
		}
		require.Equal(t, shared.StateOpen, s.Stats().Bucket.State)
		time.Sleep(time.Second)
		require.NoError(t, s.Wait(t.Context()))
	})
}

// A key that calls rarely, so that its bucket is forgotten meanwhile, has its rate in a fallback.
func TestARareKeyLeavesInAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.Fail(faultOf(buckettest.FailBefore))
		g := sharedGroup(t, m, shaper.Limits{Rate: 5, Burst: 3}, shared.Options{Fallback: shared.FallbackOpen})
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
func groupOn(t *testing.T, b shared.Bucket, rates map[string]rate.Limit, opts ...any) *shaper.Group[string] {
	return sharedGroupOf(t, b, func(key string) (shaper.Limits, error) { return shaper.Limits{Rate: rates[key]}, nil }, opts...)
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
	for name, opts := range map[string][2]shared.Options{
		"versions by time": {},
		"RateVersion":      {{RateVersion: 1}, {RateVersion: 5}},
	} {
		bubble(t, name, func(t *testing.T) {
			m := buckettest.NewMemory()
			older := groupOn(t, m, map[string]rate.Limit{"stays": 10, "changes": 10}, opts[0])
			time.Sleep(time.Second)
			newer := groupOn(t, m, map[string]rate.Limit{"stays": 10, "changes": 5}, opts[1])
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
	}
}

// What the Bucket has told a meter, and that it can't be asked, is foreseen.
func TestForecastsKnowWhatTheBucketSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		limits := shaper.Limits{Rate: 0.01, Burst: 5}
		a := sharedShaper(t, m, limits)
		b := sharedShaper(t, m, limits, shared.Options{RateVersion: 1})
		for range 5 {
			require.True(t, a.Allow())
		}
		require.False(t, b.Allow())
		_, err := b.Forecast(1)
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
