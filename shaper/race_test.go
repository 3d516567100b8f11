package shaper_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// The tests of this file run on real threads and are meant for -race. None
// asserts how long anything takes, but for the pace, which no machine may
// break; a call that never returns is shown by the time-out of go test.

// A racer is the context of one call, and keeps what the hooks were told of
// that call. Its counts are plain integers: a hook that ran on any goroutine
// but the call's would be a data race.
type racer struct {
	context.Context
	cancel context.CancelFunc
	ending ending
	over   bool // Err says so, though Done does not

	enqueued, departed, refused, abandoned int
	at                                     time.Time // of the departure
}

// ending is how the context of a racer ends.
type ending int

const (
	endsNever     ending = iota
	endsInLine           // cancelled from another goroutine, a little after the entry
	endsAtSlot           // cancelled from another goroutine when somebody else has just left
	endsInTime           // by a deadline near the predicted departure
	endsUnnoticed        // Err turns non-nil in the line, and nothing wakes the call
	endings              // how many there are
)

func newRacer(e ending, predicted time.Duration) *racer {
	r := &racer{ending: e}
	if e == endsInTime {
		around := predicted/2 + rand.N(predicted+time.Millisecond)
		r.Context, r.cancel = context.WithTimeout(context.Background(), around)
	} else {
		r.Context, r.cancel = context.WithCancel(context.Background())
	}
	return r
}

// Err is asked at entry and once after the slot; in between those that end
// unnoticed are over.
func (r *racer) Err() error {
	if r.over {
		return context.Canceled
	}
	return r.Context.Err()
}

// A contest is calls that race on one shaper, and what came of them.
type contest struct {
	s *shaper.Shaper

	// targets are contexts of calls in line that whoever leaves may cancel.
	targets [16]atomic.Pointer[racer]
	cancels sync.WaitGroup
	races   atomic.Int64 // calls that entered the line

	cap      int // Limits.InFlight
	upstream atomic.Int64

	mu            sync.Mutex
	departures    []departure
	refused, gone uint64
	wrong         map[string]int // what was, and how often
}

func newContest(t *testing.T, l shaper.Limits) *contest {
	c := &contest{wrong: map[string]int{}}
	s, err := shaper.New(l, shaper.WithTrace(&shaper.Trace{
		Enqueued: func(ctx context.Context, _ shaper.Event) {
			r := ctx.(*racer)
			r.enqueued++
			c.races.Add(1)
			switch r.ending {
			case endsInLine:
				c.cancels.Go(func() {
					for range rand.N(20) {
						runtime.Gosched()
					}
					r.cancel()
				})
			case endsAtSlot:
				c.targets[rand.N(len(c.targets))].Store(r)
			case endsUnnoticed:
				r.over = true
			}
		},
		Departed: func(ctx context.Context, e shaper.Event) {
			r := ctx.(*racer)
			r.departed++
			r.at = e.At
			if target := c.targets[rand.N(len(c.targets))].Swap(nil); target != nil {
				target.cancel()
			}
		},
		Refused:   func(ctx context.Context, _ shaper.Event) { ctx.(*racer).refused++ },
		Abandoned: func(ctx context.Context, _ shaper.Event) { ctx.(*racer).abandoned++ },
	}))
	require.NoError(t, err)
	c.s, c.cap = s, l.InFlight
	return c
}

// pass is Wait, or with a cap a visit upstream, where others must not be too
// many.
func (c *contest) pass(ctx context.Context, cost int) error {
	if c.cap == 0 {
		return c.s.WaitN(ctx, cost)
	}
	release, err := c.s.Acquire(ctx, cost)
	if err != nil {
		release()
		return err
	}
	crowd := c.upstream.Add(1)
	for range rand.N(3) {
		runtime.Gosched()
	}
	c.upstream.Add(-1)
	var both sync.WaitGroup
	for range rand.N(3) { // Once more than once, and at once.
		both.Go(release)
	}
	release()
	both.Wait()
	if crowd > int64(c.cap) {
		return errCrowded
	}
	return nil
}

var errCrowded = errors.New("more are upstream than may be")

// call makes one call and checks that the hooks were told of exactly the
// outcome that its caller sees.
func (c *contest) call(e ending, cost int) {
	predicted, _ := c.s.Forecast(cost)
	r := newRacer(e, predicted)
	defer r.cancel()
	err := c.pass(r, cost)
	if err != nil {
		runtime.Gosched() // Rather let somebody leave than be refused again.
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	var reject *shaper.RejectError
	told := [3]int{r.departed, r.refused, r.abandoned}
	switch {
	case err == nil:
		c.departures = append(c.departures, departure{r.at, cost})
		if told != [3]int{1, 0, 0} || r.over {
			c.wrong["returned nil, but was not told of one departure, or was over"]++
		}
	case errors.As(err, &reject):
		c.refused++
		if told != [3]int{0, 1, 0} {
			c.wrong["was refused, but not told of one refusal"]++
		}
	case err != r.Err():
		c.wrong["returned "+err.Error()]++
	case r.enqueued == 0:
		// The context was done before the call, which is counted nowhere.
		if told != [3]int{} {
			c.wrong["never entered the line, but was told of an outcome"]++
		}
	default:
		c.gone++
		if told != [3]int{0, 0, 1} {
			c.wrong["was abandoned, but not told of one abandonment"]++
		}
	}
}

// requireAccounts compares the Stats with what the callers saw, when all calls
// have returned.
func (c *contest) requireAccounts(t *testing.T) {
	t.Helper()
	c.cancels.Wait()
	require.Empty(t, c.wrong)
	stats := c.s.Stats()
	require.Zero(t, stats.Waiting)
	require.Zero(t, stats.InFlight)
	require.EqualValues(t, len(c.departures), stats.Departed)
	require.Equal(t, c.refused, stats.Refused)
	require.Equal(t, c.gone, stats.Abandoned)
	require.Equal(t, stats.Refused, stats.QueueFull+stats.TooLate+stats.TooCostly+stats.Closed)
}

// Contexts end around the instant at which their calls would leave, in every
// way in which a context can end. Each call has one outcome, which caller,
// hooks and Stats agree on, and what really left keeps the pace, so that no
// slot was used twice.
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
	const callers, perContest = 32, 1000
	races := 20_000
	if long {
		races = 1_000_000
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// Several contests, so that the bucket starts and rests often.
			for done := 0; done < races/len(tests); done += perContest {
				c := newContest(t, tt.limits)
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						for c.races.Load() < perContest {
							c.call(rand.N(endings), 1+rand.N(tt.costs))
						}
					})
				}
				wg.Wait()
				c.requireAccounts(t)
				interval := time.Duration(float64(time.Second) / float64(tt.limits.Rate))
				slack := tt.limits.Slack
				if slack == 0 {
					slack = shaper.DefaultSlack
				}
				i := firstAbovePace(c.departures, interval, slack, tt.limits.Burst)
				require.Equal(t, -1, i, "departures above the pace")
				require.NoError(t, c.s.Close())
			}
		})
	}
}
