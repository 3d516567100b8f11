package shaper_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
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
	c.s = s
	return c
}

// call makes one call and checks that the hooks were told of exactly the
// outcome that its caller sees.
func (c *contest) call(e ending, cost int) {
	predicted, _ := c.s.Forecast(cost)
	r := newRacer(e, predicted)
	defer r.cancel()
	err := c.s.WaitN(r, cost)
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
	require.EqualValues(t, len(c.departures), stats.Departed)
	require.Equal(t, c.refused, stats.Refused)
	require.Equal(t, c.gone, stats.Abandoned)
	require.Equal(t, stats.Refused, stats.QueueFull+stats.TooLate+stats.TooCostly+stats.Closed)
}

// A departure is what the pace counts.
type departure struct {
	at   time.Time
	cost int
}

// firstAbovePace returns the first of the departures, which it sorts, that ends
// a window of some length W with more than burst + rate·(W + slack) in it, or
// -1. It does so in one pass: no window holds more than that exactly if a
// bucket with room for burst + rate·slack, which leaks at the rate, never
// overflows. All is counted in the time for which a cost holds the bucket, so
// that nothing is rounded.
func firstAbovePace(ds []departure, interval, slack time.Duration, burst int) int {
	slices.SortFunc(ds, func(a, b departure) int { return a.at.Compare(b.at) })
	for _, d := range ds {
		burst = max(burst, d.cost)
	}
	room := time.Duration(burst)*interval + slack
	var level time.Duration
	for i, d := range ds {
		if i > 0 {
			level = max(0, level-d.at.Sub(ds[i-1].at))
		}
		level += time.Duration(d.cost) * interval
		if level > room {
			return i
		}
	}
	return -1
}

// firstFullWindow is what firstAbovePace finds, by looking at every window.
func firstFullWindow(ds []departure, room, interval time.Duration) int {
	for last := range ds {
		var held time.Duration
		for first := last; first >= 0; first-- {
			held += time.Duration(ds[first].cost) * interval
			if held > room+ds[last].at.Sub(ds[first].at) {
				return last
			}
		}
	}
	return -1
}

func TestPaceCheckerSeesWhatIsTooFast(t *testing.T) {
	const interval = 10 * time.Nanosecond
	at := func(instants ...int) (ds []departure) {
		for _, ns := range instants {
			ds = append(ds, departure{time.Unix(0, int64(ns)), 1})
		}
		return ds
	}
	tests := []struct {
		name  string
		ds    []departure
		slack time.Duration
		burst int
		want  int
	}{
		{"a comb", at(0, 10, 20, 30), 0, 1, -1},
		{"a nanosecond early", at(0, 10, 19, 30), 0, 1, 2},
		{"unsorted", at(30, 19, 0, 10), 0, 1, 2},
		{"one slot used twice", at(0, 10, 20, 20, 40), 0, 1, 3},
		{"a burst", at(0, 0, 0, 10), 0, 3, -1},
		{"a burst and one", at(0, 0, 0, 9), 0, 3, 3},
		{"late within the slack", at(0, 15, 20, 30), 5, 1, -1},
		{"late beyond the slack", at(0, 16, 20, 30), 5, 1, 2},
		{"slow drift", at(0, 9, 18, 27, 36, 45, 54), 5, 1, 6},
		{"a cost above the burst", []departure{{time.Unix(0, 0), 3}, {time.Unix(0, 30), 1}, {time.Unix(0, 40), 3}}, 0, 1, -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, firstAbovePace(tt.ds, interval, tt.slack, tt.burst))
		})
	}

	t.Run("agrees with all windows", func(t *testing.T) {
		found := 0
		for range 2000 {
			var ds []departure
			now := 0
			for range 12 {
				now += rand.N(18)
				ds = append(ds, departure{time.Unix(0, int64(now)), 1 + rand.N(2)})
			}
			want := firstFullWindow(ds, 2*interval+15, interval)
			got := firstAbovePace(ds, interval, 15, 2)
			if want >= 0 {
				found++
			}
			require.Equal(t, want, got, "%v", ds)
		}
		require.NotZero(t, found)
		require.Less(t, found, 2000)
	})
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
