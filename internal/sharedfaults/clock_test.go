package sharedfaults_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper/buckettest"
)

// The clock of a server is set while processes hold slots on it. Those who notice drop what
// they hold; until each has spoken with the server once, a step forward lets it use its slots
// beside the new ones.
func TestAClockThatIsSetNeitherStallsNorBursts(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{5 * time.Second, -5 * time.Second, 20 * time.Millisecond, -20 * time.Millisecond, -100 * time.Millisecond} {
		t.Run(step.String(), func(t *testing.T) {
			t.Parallel()
			m := buckettest.NewMemory()
			f := startFleet(t, four(plan{Engine: remoteEngine, Addrs: []string{startRemote(t, m)}, Key: "clock", Rate: 1000, Waiters: 16, Slack: d}))
			p := f.plan()
			f.runsFor(500 * time.Millisecond)
			m.Step(step)
			at := time.Now()
			f.runsFor(time.Second)
			to := time.Now()
			reports, l := f.ends()
			extra := int64(0)
			if step > 0 {
				extra = 3 * p.held()
			}
			l.keepsPaceBut(t, p, extra)
			f.accounts(reports)
			require.Greater(t, l.rate(at.Add(noise), to), p.Rate*busy)
			if long {
				require.Less(t, l.gap(at, to), min(step.Abs(), 200*time.Millisecond)+d)
			}
		})
	}
}

// Clocks that run apart by 150 ppm, which is more than the worst that works, are followed.
func TestAClockThatDriftsIsFollowed(t *testing.T) {
	t.Parallel()
	m := buckettest.NewMemory()
	m.Drift(150)
	f := startFleet(t, four(plan{Engine: remoteEngine, Addrs: []string{startRemote(t, m)}, Key: "drift", Rate: 500, Waiters: 16, Slack: d}))
	f.runsFor(1500 * time.Millisecond)
	_, l := f.ends()
	p := f.plan()
	p.Rate *= 1 + 150e-6 // as the engine counts
	l.keepsPace(t, p)
}
