package shaper_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A process that changes the rate goes on with the slots that it has leased, so requests leave however
// often it does, and Shutdown ends: never faster than at the greatest of the rates, and one process
// alone no slower than at the least. Of several each lengthens, by a cut, the time of what all have leased.
func TestRequestsLeaveHoweverOftenTheRateIsChanged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limits    string
		every     time.Duration
		rates     []rate.Limit
		processes int // each of which changes the rate
		cost      int
		opts      []any
		rtt       time.Duration
	}{
		{"5/s depth 99", 100 * ms, []rate.Limit{5, 6, 7, 8, 9, 10}, 1, 1, nil, 2 * ms},
		{"5/s depth 99", 100 * ms, []rate.Limit{10, 9, 8, 7, 6, 5}, 1, 1, nil, 2 * ms},
		{"5/s depth 99", 100 * ms, []rate.Limit{5, 10}, 1, 1, nil, 2 * ms},
		{"5/s depth 99", 3 * ms, []rate.Limit{5, 10}, 1, 1, nil, 20 * ms},
		{"5/s depth 99", 100 * ms, []rate.Limit{5, 10}, 1, 3, nil, 2 * ms},
		{"50/s burst 20 depth 99", 10 * ms, []rate.Limit{50, 100, 75}, 1, 2, nil, 2 * ms},
		{"50/s depth 99", 10 * ms, []rate.Limit{50, 100, 75}, 3, 1, nil, 2 * ms},
		{"5/s depth 99", 100 * ms, []rate.Limit{5, 10}, 3, 1, nil, 20 * ms},
		{"5/s depth 99", 100 * ms, []rate.Limit{5, 10}, 1, 1, []any{shaper.WithFairQueue(nil)}, 2 * ms},
	} {
		t.Run(fmt.Sprintf("%s, %v each %v, %d processes, cost %d, %v", c.limits, c.rates, c.every, c.processes, c.cost, c.rtt), func(t *testing.T) {
			t.Parallel()
			share(t, c.processes, c.limits, c.rtt, func(p *processes) {
				changes, stop := context.WithCancel(context.Background())
				var changing sync.WaitGroup
				defer func() {
					stop()
					changing.Wait()
				}()
				slowest, fastest := c.rates[0], c.rates[0]
				for _, r := range c.rates {
					slowest, fastest = min(slowest, r), max(fastest, r)
				}
				p.limits.Rate = slowest
				for i, s := range p.all {
					changing.Go(func() {
						time.Sleep(time.Duration(i) * c.every / 3)
						for k := i; changes.Err() == nil; k++ {
							l := p.limits
							l.Rate = c.rates[k%len(c.rates)]
							require.NoError(p.t, s.SetLimits(l))
							time.Sleep(c.every)
						}
					})
				}
				const each = 30
				for i := range p.all {
					for range each {
						p.arrive(i, c.cost)
					}
				}
				whole := time.Duration(float64(each*c.processes*c.cost) / float64(slowest) * float64(time.Second))
				p.at(whole / 3)
				left := len(p.departures())
				require.GreaterOrEqual(p.t, left, each*c.processes/6, "of %d", each*c.processes)
				done := make(chan error)
				for _, s := range p.all {
					go func() { done <- s.Shutdown(context.Background()) }()
				}
				for range p.all {
					require.NoError(p.t, <-done)
				}
				require.Less(p.t, time.Since(p.start), whole*time.Duration(min(2, c.processes)))
				p.limits.Rate = fastest
				p.lateness = max(20*ms, 2*c.rtt+ms, time.Duration(float64(time.Second)/float64(slowest)))
				p.check()
			}, c.opts...)
		})
	}
}

// What a process has leased leaves when it was due, whoever changes the rate. If the state is lost then,
// the process has its slots in the level all the same, so nothing leaves in their place.
func TestWhatIsLeasedLeavesWhenItWasDueThoughTheRateChanges(t *testing.T) {
	for _, limits := range []string{"100/s depth 99", "100/s burst 5 depth 99"} {
		for _, to := range []rate.Limit{1, 10, 400} {
			for _, by := range []int{0, 1} {
				for _, lost := range []bool{false, true} {
					if lost && by > 0 {
						continue // The other one has a right to what has been lost.
					}
					why := fmt.Sprintf("%s to %v/s by process %d, lost: %v", limits, to, by, lost)
					share(t, 2, limits, 2*ms, func(p *processes) {
						for range 30 {
							p.arrive(0, 1)
						}
						p.at(105 * ms)
						before := len(p.departures())
						held := p.all[0].Stats().Bucket.Held
						require.Positive(p.t, held)
						l := p.limits
						l.Rate = to
						require.NoError(p.t, p.all[by].SetLimits(l))
						if by > 0 {
							go func() { _ = p.wait(context.Background(), by, 1) }() // It tells the Bucket.
						}
						if lost {
							p.Wipe()
						}
						p.at(40 * time.Second)
						var own []time.Duration
						for _, d := range p.departures() {
							if d.Process == 0 {
								own = append(own, d.At)
							}
						}
						require.Len(p.t, own, 30, why)
						for i, at := range own[before-1 : before+int(held)] {
							require.InDelta(p.t, own[before-1]+time.Duration(i)*10*ms, at, float64(10*us), why)
						}
						last := before + int(held) - 1
						interval := time.Duration(float64(time.Second) / float64(to))
						require.GreaterOrEqual(p.t, own[last+2]-own[last], interval-10*us, why)
						require.Zero(p.t, p.all[0].Stats().Bucket.Dropped, why)
						p.limits.Rate = max(100, to)
						p.check()
					})
				}
			}
		}
	}
}
