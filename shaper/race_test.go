package shaper_test

import (
	"cmp"
	"context"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// ending is how the context of a call ends in a contest.
type ending int

const (
	endsNever     ending = iota
	endsInLine           // cancelled from another goroutine, a little after the entry
	endsAtSlot           // cancelled from another goroutine when another request has just left
	endsInTime           // by a deadline near the predicted departure
	endsUnnoticed        // Err returns an error in the line, and nothing wakes the call
	endings              // how many there are
)

// A contest is a storm in which contexts end around the instant at which their
// calls would leave.
type contest struct {
	storm
	s *shaper.Shaper

	// targets are contexts of calls in line that a call which leaves may cancel.
	targets [16]atomic.Pointer[call]
	races   atomic.Int64 // calls that entered the line
	passes  atomic.Int64 // calls that left at once
}

func newContest(t *testing.T, l shaper.Limits) *contest {
	c := new(contest)
	c.most, c.also = l.InFlight, c.end
	var err error
	c.s, err = shaper.New(l, c.trace())
	require.NoError(t, err)
	shaper.AuditRefusals(c.s)
	return c
}

// end ends contexts when a hook is told of a call.
func (c *contest) end(one *call, told hookKind, _ shaper.Event) {
	switch told {
	case wasEnqueued:
		c.races.Add(1)
		switch one.ending {
		case endsInLine:
			c.meddlers.Go(func() {
				for range rand.N(20) {
					runtime.Gosched()
				}
				one.cancel()
			})
		case endsAtSlot:
			c.targets[rand.N(len(c.targets))].Store(one)
		case endsUnnoticed:
			one.over = true // Err is asked at entry, and once after the slot.
		}
	case wasDeparted:
		if target := c.targets[rand.N(len(c.targets))].Swap(nil); target != nil {
			target.cancel()
		}
	}
}

// call makes one call. It lets others leave if it was refused, rather than be
// refused again.
func (c *contest) call(e ending, cost int) {
	one := &call{ending: e, cost: cost}
	if e == endsInTime {
		predicted, _ := c.s.Forecast(cost)
		one.Context, one.cancel = context.WithTimeout(context.Background(), predicted/2+rand.N(predicted+time.Millisecond))
	} else {
		one.Context, one.cancel = context.WithCancel(context.Background())
	}
	var err error
	if c.most == 0 {
		err = c.s.WaitN(one, cost)
	} else {
		err = c.visit(c.s, one)
	}
	switch {
	case err != nil:
		runtime.Gosched()
	case one.told[wasEnqueued] == 0:
		c.passes.Add(1)
	}
	c.note(one, err)
}

// Contexts end around the instant at which their calls would leave, in every way in
// which a context can end. Each call has one outcome, on which caller, hooks and
// Stats agree, and what really left keeps the pace, so no slot was used twice.
func TestCancelAgainstDeparture(t *testing.T) {
	tests := []struct {
		name   string
		limits shaper.Limits
		costs  int // up to this
	}{
		{"default slack", shaper.Limits{Rate: 100_000, Depth: 30}, 1},
		{"no slack to speak of", shaper.Limits{Rate: 100_000, Depth: 30, Slack: 1}, 1},
		{"burst", shaper.Limits{Rate: 100_000, Burst: 8, Depth: 30, Slack: time.Millisecond}, 1},
		{"costs within the burst", shaper.Limits{Rate: 200_000, Burst: 5, Depth: 30, Slack: time.Millisecond}, 3},
		{"costs above the burst", shaper.Limits{Rate: 500_000, Burst: 2, Depth: 30, Slack: time.Millisecond}, 8},
		{"nearly idle", shaper.Limits{Rate: 250_000, Depth: 30, Slack: time.Microsecond}, 2},
		{"longest wait", shaper.Limits{Rate: 100_000, Depth: 40, MaxWait: 200 * time.Microsecond, Slack: time.Millisecond}, 1},
		{"a cap of one", shaper.Limits{Rate: 100_000, Depth: 30, InFlight: 1, Slack: 1}, 1},
		{"a cap and a burst", shaper.Limits{Rate: 200_000, Burst: 5, Depth: 30, InFlight: 3, Slack: time.Millisecond}, 3},
		{"a cap that is rarely reached", shaper.Limits{Rate: 100_000, Depth: 30, InFlight: 12}, 1},
	}
	const callers, perContest, passesPerContest = 32, 1000, 4000
	races := rounds(20_000, 300_000, 1_000_000)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// Several contests, so that the bucket starts and rests often.
			limits := tt.limits
			for done := 0; done < races/len(tests); {
				c := newContest(t, limits)
				c.calls(callers, func() (over bool) {
					c.call(rand.N(endings), 1+rand.N(tt.costs))
					return c.races.Load() >= perContest || c.passes.Load() >= passesPerContest
				})
				c.blowOver(t)
				c.requireAgreement(t, c.s.Stats())
				interval := time.Duration(float64(time.Second) / float64(limits.Rate))
				slack := cmp.Or(limits.Slack, shaper.DefaultSlack)
				i := firstAbovePace(c.departures, interval, slack, limits.Burst)
				require.Equal(t, -1, i, "departures above the pace")
				require.NoError(t, c.s.Close())
				done += int(c.races.Load())
				if c.races.Load() < perContest {
					// The callers are so slow, on a busy machine or with the race detector, that
					// the bucket is mostly empty and hardly anybody waits.
					require.Greater(t, float64(limits.Rate), 1.0, "hardly anybody waits, however low the rate")
					limits.Rate /= 2
					limits.MaxWait *= 2
				}
			}
		})
	}
}
