package sharedfaults_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// One process changes the rate, and all follow.
func TestANewRateIsInForceForAllProcesses(t *testing.T) {
	t.Parallel()
	for _, e := range []engine{redisEngine, postgresEngine} {
		t.Run(string(e), func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, four(plan{Engine: e, Addrs: []string{startEngine(t, e)}, Key: "change", Rate: 1000, Waiters: 16, Slack: d}))
			fast, slow := f.plan(), f.plan()
			slow.Rate = 200
			f.warmsUp(500 * time.Millisecond)
			f.workers[1].does(order{Do: setLimits, Rate: slow.Rate})
			f.waitsForRate(slow.Rate)
			lower := time.Now()
			f.reaches(1600*time.Millisecond, lower.Add(2*noise), slow.Rate*busy)
			f.leaves(lower.Add(2 * noise))
			higher := time.Now()
			f.workers[2].does(order{Do: setLimits, Rate: fast.Rate})
			f.waitsForRate(fast.Rate)
			f.reaches(time.Second, higher.Add(noise), fast.Rate*busy)
			f.leaves(higher.Add(noise))
			to := time.Now()
			_, l := f.ends()
			l.keepsPace(t, fast)
			l.between(lower.Add(2*noise), higher).keepsPace(t, slow)
			require.Greater(t, l.rate(lower.Add(2*noise), higher), slow.Rate*busy)
			require.Greater(t, l.rate(higher.Add(noise), to), fast.Rate*busy)
			for i := range 4 {
				require.NotEmpty(t, l.of(i).between(lower.Add(2*noise), higher))
				require.NotEmpty(t, l.of(i).between(higher.Add(noise), to))
			}
		})
	}
}

// While old and new processes run, the rate of the new ones is in force for all as soon as
// the first has asked. It stays so if an old program is started again.
func TestARollingDeploymentNeverExceedsTheGreaterRate(t *testing.T) {
	t.Parallel()
	for name, rates := range map[string][2]float64{"slower": {1000, 300}, "faster": {300, 1000}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old := plan{Engine: redisEngine, Addrs: []string{startRedis(t).Addr}, Key: "deploy", Rate: rates[0], Waiters: 16, Slack: d, Version: 1}
			next := old
			next.Rate, next.Version = rates[1], 2
			greater := old
			greater.Rate = max(rates[0], rates[1])
			f := startFleet(t, four(old))
			f.warmsUp(300 * time.Millisecond)
			f.adds(next)
			f.waitsForRate(next.Rate)
			at := time.Now()
			for i := range 3 {
				f.runsFor(150 * time.Millisecond)
				f.workers[i].does(order{Do: shutdown})
				f.workers[i].kill()
				f.adds(next)
			}
			f.adds(old)
			to := f.reaches(1300*time.Millisecond, at.Add(2*noise), next.Rate*busy)
			reports := f.waitsForRate(next.Rate)
			_, l := f.ends()
			l.keepsPace(t, greater)
			l.between(at.Add(2*noise), to).keepsPace(t, next)
			require.Greater(t, l.rate(at.Add(2*noise), to), next.Rate*busy)
			require.Len(t, reports, 6, "the old one that was started last has the new rate too")
		})
	}
}
