package sharedfaults_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// skewed returns four plans: 70 % of the requests come to one process, and more come than can
// leave.
func skewed(p plan) []plan {
	plans := four(p)
	for i, part := range []float64{0.7, 0.1, 0.1, 0.1} {
		plans[i].Arrivals = 1.5 * p.Rate * part
	}
	return plans
}

// isFair requires that the busy process does not starve the others: each process with a line
// gets slots in turn, so the others wait no longer than G2 says, and refuse nobody.
func (l log) isFair(t *testing.T, p plan, allowed time.Duration) {
	t.Helper()
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

// A busy machine lets requests wait, and come in crowds, so that they do not wait is only
// asserted in the long form, and in a bubble.
func TestABusyProcessDoesNotStarveTheOthers(t *testing.T) {
	atLength(t)
	t.Parallel()
	r := startRedis(t)
	p := plan{Engine: redisEngine, Addrs: []string{r.Addr}, Key: "skewed", Rate: 600, Depth: 100, Slack: d}
	f := startFleet(t, skewed(p))
	length := 2500 * time.Millisecond
	if long {
		length = 10 * time.Second
	}
	to := f.reaches(length, f.began.Add(noise), p.Rate*busy, 0)
	realtime.Until(t, func() bool { return len(f.log().of(0).only(refused)) > 0 }, "the line of the busy one is full")
	f.leaves(f.began)
	reports, l := f.ends()
	l.keepsPace(t, p)
	f.accounts(reports)
	require.Greater(t, l.of(0).rate(f.began.Add(noise), to), p.Rate*busy, "who has more to do gets what the others leave")
	if unloaded {
		l.isFair(t, p, 20*time.Millisecond)
	}
}

func TestABusyShaperDoesNotStarveTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(time.Millisecond, time.Millisecond)
		p := plan{Rate: 600, Depth: 100, Slack: d}
		var mu sync.Mutex
		var l log
		begun := time.Now()
		var requests sync.WaitGroup
		for i, own := range skewed(p) {
			note := func(o outcome) func(context.Context, shaper.Event) {
				return func(_ context.Context, e shaper.Event) {
					mu.Lock()
					defer mu.Unlock()
					l = append(l, entry{i, o, e.At, e.Waited})
				}
			}
			s := newShared(t, m, own.limits(), shaper.WithTrace(&shaper.Trace{Departed: note(departed), Refused: note(refused)}))
			requests.Go(func() {
				for n := 0; time.Since(begun) < 20*time.Second; n++ {
					time.Sleep(time.Until(begun.Add(time.Duration(float64(n) / own.Arrivals * float64(time.Second)))))
					requests.Go(func() { s.Wait(t.Context()) })
				}
			})
		}
		requests.Wait()
		l = merge(l)
		l.keepsPace(t, p)
		require.NotEmpty(t, l.of(0).only(refused), "its line is full")
		require.Greater(t, l.rate(begun, begun.Add(20*time.Second)), 0.98*p.Rate)
		require.Greater(t, l.of(0).rate(begun, begun.Add(20*time.Second)), 0.98*p.Rate*(1-3*0.15), "who has more to do gets what the others leave")
		l.isFair(t, p, 5*time.Millisecond)
	})
}
