package sharedfaults_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process that ends in order lets its line leave, and gives back what it has leased beyond.
func TestAProcessThatShutsDownLeavesNoGap(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	f := startFleet(t, four(plan{Engine: redisEngine, Addrs: []string{r.Addr}, Key: "shutdown", Rate: 1000, Waiters: 16, Slack: d}))
	p := f.plan()
	f.warmsUp(600 * time.Millisecond)
	at := time.Now()
	f.workers[0].does(order{Do: shutdown})
	down := time.Now()
	end := f.workers[0].does(order{Do: quiet}) // The calls of the last to leave may not have returned.
	require.Zero(t, end.Stats.Waiting)
	f.accounts([]report{end})
	f.workers[0].kill()
	to := f.reaches(time.Second, at.Add(noise), p.Rate*busy)
	reports, l := f.ends()
	l.keepsPace(t, p)
	f.accounts(reports)

	last := l.of(0).only(departed)
	require.Empty(t, l.of(0).only(abandoned), "all in line have left")
	for _, e := range l.of(0).only(refused) {
		require.Zero(t, e.waited, "only newcomers are refused")
	}
	require.False(t, last[len(last)-1].at.After(down))
	require.Greater(t, l.rate(at.Add(noise), to), p.Rate*busy)
	if unloaded {
		require.Less(t, l.gap(at, to), p.time(4*p.held()/2)+d)
	}
}

// The workers stop one after the other, as in a deployment, and others start.
func TestARollingRestartKeepsTheRate(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	p := plan{Engine: redisEngine, Addrs: []string{r.Addr}, Key: "rolling", Rate: 1000, Waiters: 16, Slack: d}
	f := startFleet(t, four(p))
	f.runsFor(300 * time.Millisecond)
	for i := range 4 {
		f.workers[i].does(order{Do: shutdown})
		f.workers[i].kill()
		f.adds(p)
		f.runsFor(200 * time.Millisecond)
	}
	to := f.reaches(0, f.began.Add(noise), p.Rate*busy)
	reports, l := f.ends()
	l.keepsPace(t, p)
	f.accounts(reports)
	require.Greater(t, l.rate(f.began.Add(noise), to), p.Rate*busy)
}
