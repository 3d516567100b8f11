package shaper_test

import (
	"math/big"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
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
					p.add(p.Memory, shaper.WithRateVersion(1))
				}
				stop := p.saturate(40)
				defer stop()
				p.at(time.Second)
				p.limits.Rate = rates[1]
				p.add(p.Memory, shaper.WithRateVersion(2))
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
				p.add(p.Memory, shaper.WithRateVersion(1))
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

// Without WithRateVersion the rate that was set last is in force, for all; also if the call of
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
		perSecond := rate.Limit(100)
		group := func() *shaper.Group[string] {
			g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: perSecond, Depth: 99}, nil },
				shaper.WithBuckets(m, func(k string) string { return "user:" + k }))
			require.NoError(t, err)
			return g
		}
		a, b := group(), group()
		logs := map[string][]model.Departure{}
		start := time.Now()
		both := func(key string, n int) {
			t.Helper()
			times := [2][]time.Duration{}
			done := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
			for i, g := range []*shaper.Group[string]{a, b} {
				go func() {
					defer close(done[i])
					for range n {
						if err := g.Wait(t.Context(), key); err != nil {
							t.Error(err)
							return
						}
						times[i] = append(times[i], time.Since(start))
					}
				}()
			}
			<-done[0]
			<-done[1]
			for i := range times {
				for _, at := range times[i] {
					logs[key] = append(logs[key], model.Departure{At: at, Process: i, Number: int(at), Cost: 1})
				}
			}
		}
		began := time.Now()
		both("u", 50)
		require.InDelta(t, 990*ms, time.Since(began), float64(15*ms))
		both("v", 50)
		require.NoError(t, a.SetLimits("u", shaper.Limits{Rate: 50, Depth: 9}))
		began = time.Now()
		both("u", 50)
		require.InDelta(t, 1980*ms, time.Since(began), float64(60*ms))
		require.NoError(t, a.ResetLimits("u"))
		perSecond = 200
		a.Reload()
		began = time.Now()
		both("u", 100)
		require.InDelta(t, 1000*ms, time.Since(began), float64(60*ms))
		for key, log := range logs {
			pace := model.SharedPace{Interval: big.NewRat(int64(5*ms), 1), Burst: 1, Lateness: 20 * ms}
			worst := pace.Worst(log)
			require.LessOrEqual(t, worst.Excess(), int64(0), "%s: %v", key, worst)
		}
		st := a.Stats()
		require.Equal(t, shaper.BucketShared, st.Bucket.State)
		require.Equal(t, st.Departed, st.Bucket.Leased-st.Bucket.Dropped-st.Bucket.GivenBack)
		time.Sleep(time.Minute)
		require.Zero(t, a.Stats().Keys)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}
