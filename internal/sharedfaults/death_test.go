package sharedfaults_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process that has been stopped holds slots that have passed. When it goes on it drops
// them. Meanwhile the other processes have used all slots but those.
func TestAPausedProcessDoesNotBurst(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	f := startFleet(t, four(plan{Engine: redisEngine, Addrs: []string{r.Addr}, Key: "paused", Rate: 1000, Waiters: 16, Slack: d}))
	f.warmsUp(700 * time.Millisecond)
	before := f.workers[0].does(order{Do: tell}).Stats.Bucket
	f.workers[0].pause()
	from := time.Now()
	p := f.plan()
	to := f.reaches(time.Second, from.Add(noise), p.Rate*busy, 1, 2, 3)
	f.workers[0].resume()
	f.runsFor(700 * time.Millisecond)
	f.leaves(to)
	reports, l := f.ends()
	l.keepsPace(t, p)
	f.accounts(reports)

	require.Greater(t, l.rate(from.Add(noise), to), p.Rate*busy, "the others take over")
	require.NotEmpty(t, l.of(0).only(departed).between(to, time.Now()), "it takes part again")
	dropped := reports[0].Stats.Bucket.Dropped - before.Dropped
	if unloaded {
		require.LessOrEqual(t, int64(dropped), p.held(), "more than it held")
		require.Greater(t, l.rate(from.Add(p.time(p.held())+d), to), 0.99*p.Rate)
	}
}

func TestAKilledProcessLeavesNoMoreThanAGap(t *testing.T) {
	atLength(t)
	t.Parallel()
	r := startRedis(t)
	f := startFleet(t, four(plan{Engine: redisEngine, Addrs: []string{r.Addr}, Key: "killed", Rate: 1000, Waiters: 16, Slack: d}))
	f.warmsUp(700 * time.Millisecond)
	at := time.Now()
	f.workers[0].kill()
	p := f.plan()
	to := f.reaches(1300*time.Millisecond, at.Add(noise), p.Rate*busy)
	_, l := f.ends()
	l.keepsPace(t, p)
	gap := p.time(p.held()) + d
	require.Greater(t, l.rate(at.Add(noise), to), p.Rate*busy, "the others take over")
	if unloaded {
		require.Less(t, l.gap(at, to), gap)
		require.Greater(t, l.rate(at.Add(gap), to), 0.99*p.Rate)
		for i := 1; i < 4; i++ {
			require.InDelta(t, 1./3, l.between(at.Add(gap), to).shares(4)[i], 0.02)
		}
	}
}
