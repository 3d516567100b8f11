package sharedfaults_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// The clock of a server is set while processes hold slots on it. Those who notice drop what
// they hold; until each has spoken with the server once, a step forward lets it use its slots
// beside the new ones.
func TestAClockThatIsSetNeitherStallsNorBursts(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{time.Hour, -time.Hour, 20 * time.Millisecond, -20 * time.Millisecond, -100 * time.Millisecond} {
		t.Run(step.String(), func(t *testing.T) {
			t.Parallel()
			m := buckettest.NewMemory()
			f := startFleet(t, four(plan{Engine: remoteEngine, Addrs: []string{startRemote(t, m)}, Key: "clock", Rate: 1000, Waiters: 16, Slack: d}))
			p := f.plan()
			f.warmsUp(500 * time.Millisecond)
			m.Step(step)
			at := time.Now()
			to := f.reaches(time.Second, at.Add(noise), p.Rate*busy)
			reports, l := f.ends()
			extra := int64(0)
			if step > 0 {
				extra = 3 * p.held()
			}
			l.keepsPaceBut(t, p, extra)
			f.accounts(reports)
			require.Greater(t, l.rate(at.Add(noise), to), p.Rate*busy)
			if unloaded {
				require.Less(t, l.gap(at, to), min(step.Abs(), 200*time.Millisecond)+d)
			}
		})
	}
}

// Clocks that run apart by 150 ppm are 90 ms apart after ten minutes: several times the
// lateness. Processes that did not follow would be nine slots too late or too early by then.
func TestAClockThatDriftsIsFollowed(t *testing.T) {
	t.Parallel()
	for _, ppm := range []float64{150, -150} {
		t.Run(fmt.Sprint(ppm), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const span = 10 * time.Minute
				m := buckettest.NewMemory()
				m.SetDelay(time.Millisecond, time.Millisecond)
				m.Drift(ppm)
				p := plan{Rate: 100, Slack: d}
				ctx, stop := context.WithCancel(t.Context())
				var all sync.WaitGroup
				var mu sync.Mutex
				var left []model.Departure
				begun := time.Now()
				for process := range 4 {
					trace := &shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
						mu.Lock()
						defer mu.Unlock()
						left = append(left, model.Departure{At: e.At.Sub(begun), Process: process, Number: len(left), Cost: 1})
					}}
					s := newShared(t, m, p.limits(), shaper.WithTrace(trace))
					for range 4 {
						all.Go(func() {
							for s.Wait(ctx) == nil {
							}
						})
					}
				}
				time.Sleep(span)
				stop()
				all.Wait()
				p.Rate *= 1 + ppm*1e-6 // as the engine counts
				pace := p.pace()
				pace.Lateness += time.Millisecond // what a clock may drift while a slot is held
				require.NoError(t, pace.Check(left))
				require.InDelta(t, span.Seconds()*p.Rate, len(left), 3)
			})
		})
	}
}
