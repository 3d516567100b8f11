package sharedfaults_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// 70 % of the requests come to one process, and more come than can leave. Each process with
// a line gets slots in turn, so the others are not starved, and wait no longer than G2 says.
func TestABusyProcessDoesNotStarveTheOthers(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	p := plan{Engine: redisEngine, Addrs: []string{r.Addr}, Key: "skewed", Rate: 600, Depth: 100, Slack: d}
	plans := four(p)
	for i, part := range []float64{0.7, 0.1, 0.1, 0.1} {
		plans[i].Arrivals = 1.5 * p.Rate * part
	}
	f := startFleet(t, plans)
	length := 2500 * time.Millisecond
	if long {
		length = 10 * time.Second
	}
	f.runsFor(length)
	to := time.Now()
	reports, l := f.ends()
	l.keepsPace(t, p)
	f.accounts(reports)

	require.NotEmpty(t, l.of(0).only(refused), "its line is full")
	require.Greater(t, l.of(0).rate(f.began.Add(noise), to), p.Rate*busy, "who has more to do gets what the others leave")
	allowed := 3 * noise
	if long {
		allowed = 20 * time.Millisecond
	}
	for i := range 4 {
		own := l.of(i).only(departed)
		for j, e := range own {
			ahead := int64(0) // in its line when it came
			for k := j - 1; k >= 0 && own[k].at.After(e.came()); k-- {
				ahead++
			}
			require.LessOrEqual(t, e.waited, p.time((ahead+1)*4)+4*longestBatch+allowed, "worker %d, %d ahead", i, ahead)
		}
		if i > 0 {
			require.Empty(t, l.of(i).only(refused))
		}
	}
}
