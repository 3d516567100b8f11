package shaper

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
)

// A twiceSent is the context of one call, and what the hooks were told of it.
// Its counts are plain integers: a hook that ran on any goroutine but the call's
// would be a data race.
type twiceSent struct {
	context.Context
	enqueued, departed, refused, abandoned int
}

// A reentryStorm is one shaper at which requests are let go, sent back, let go
// again or give up, while its limits change and somebody ends it.
type reentryStorm struct {
	*Shaper
	most     int64 // places that SetLimits ever allows; 0: no cap
	upstream atomic.Int64

	departed, refused, abandoned atomic.Uint64
	sentAgain, leftAgain         atomic.Uint64
	wrong                        atomic.Pointer[string]
}

func newReentryStorm(t *testing.T, l Limits) *reentryStorm {
	st := &reentryStorm{most: int64(l.InFlight)}
	s, err := New(l, WithTrace(&Trace{
		Enqueued:  func(ctx context.Context, _ Event) { ctx.(*twiceSent).enqueued++ },
		Departed:  func(ctx context.Context, _ Event) { ctx.(*twiceSent).departed++ },
		Refused:   func(ctx context.Context, _ Event) { ctx.(*twiceSent).refused++ },
		Abandoned: func(ctx context.Context, _ Event) { ctx.(*twiceSent).abandoned++ },
	}))
	require.NoError(t, err)
	st.Shaper = s
	return st
}

func (st *reentryStorm) fault(what string) { st.wrong.Store(&what) }

// visits are requests of one goroutine, one after the other, until the shaper
// admits no more. Each that was let go may be sent back, once or more.
func (st *reentryStorm) visits() {
	for {
		n := 1 + rand.N(3)
		left, closed := st.visit(n, newcomer)
		for left && rand.N(2) == 0 {
			st.sentAgain.Add(1)
			if left, closed = st.visit(n, reentry); left {
				st.leftAgain.Add(1)
			}
		}
		if closed {
			return
		}
	}
}

// visit is one call: it says whether the request left, and whether it was refused
// as the shaper is closed.
func (st *reentryStorm) visit(n int, kind entryKind) (left, closed bool) {
	within, cancel := context.WithCancel(context.Background())
	defer cancel()
	switch rand.N(4) {
	case 0:
		within, cancel = context.WithTimeout(within, rand.N(time.Millisecond))
		defer cancel()
	case 1:
		defer time.AfterFunc(rand.N(100*time.Microsecond), cancel).Stop()
	}
	call := &twiceSent{Context: within}
	held, err := st.wait(call, n, kind)
	told := [3]int{call.departed, call.refused, call.abandoned}
	var reject *RejectError
	switch {
	case err == nil:
		st.departed.Add(1)
		if told != [3]int{1, 0, 0} || (held != seat{}) != (st.most > 0) {
			st.fault("left, but was not told of one departure, or has no place")
		}
		st.stay(held)
		return true, false
	case held != seat{}:
		st.fault("did not leave, and has a place")
	case errors.As(err, &reject):
		st.refused.Add(1)
		if told != [3]int{0, 1, 0} {
			st.fault("was refused, but was not told of one refusal")
		}
		runtime.Gosched()
		return false, reject.Reason == ErrClosed
	case err != call.Err():
		st.fault("returned " + err.Error())
	case call.enqueued == 0: // The context had ended before the call.
		if told != [3]int{} {
			st.fault("was not in line, but was told of an outcome")
		}
	default:
		st.abandoned.Add(1)
		if told != [3]int{0, 0, 1} {
			st.fault("gave up, but was not told of one abandonment")
		}
	}
	return false, false
}

// stay is the time upstream, at whose end the place is given back, once or twice.
func (st *reentryStorm) stay(held seat) {
	if crowd := st.upstream.Add(1); st.most > 0 && crowd > st.most {
		st.fault("more are upstream than may be")
	}
	runtime.Gosched()
	st.upstream.Add(-1)
	for range 1 + rand.N(2) {
		st.releaseSeat(&st.flow, held)
	}
}

// meddle changes the limits and holds the line, until told to stop.
func (st *reentryStorm) meddle(limits []Limits, over *atomic.Bool) {
	for !over.Load() {
		l := limits[rand.N(len(limits))]
		if st.most > 0 {
			l.InFlight = 1 + rand.N(int(st.most))
		}
		if err := st.SetLimits(l); err != nil {
			st.fault(err.Error())
		}
		switch rand.N(8) {
		case 0:
			st.Hold(rand.N(20 * time.Microsecond))
		case 1:
			st.Hold(0)
		}
		if wait, err := st.Forecast(1); wait < 0 || err != nil && wait != 0 {
			st.fault("forecast a wait below 0, or one beside an error")
		}
		runtime.Gosched()
	}
}

// Newcomers, requests that are sent back, callers who give up, changes of the
// limits and an end, all at once: each call has one outcome, which caller, hook
// and Stats agree on, nobody is left in the line, and all places are free.
func TestReentriesInAStorm(t *testing.T) {
	limits := []Limits{
		{Rate: 200_000, Depth: 8},
		{Rate: 1_000_000, Burst: 4, Slack: time.Microsecond},
		{Rate: 50_000, Burst: 2, Depth: 3, MaxWait: 100 * time.Microsecond},
	}
	ends := map[string]func(s *Shaper) error{
		"Close":    (*Shaper).Close,
		"Shutdown": func(s *Shaper) error { return s.Shutdown(context.Background()) },
	}
	for name, most := range map[string]int{"no cap": 0, "a cap": 3} {
		for how, end := range ends {
			t.Run(name+", "+how, func(t *testing.T) {
				var sentAgain, leftAgain, abandoned uint64
				for range 50 {
					l := limits[0]
					l.InFlight = most
					st := newReentryStorm(t, l)
					var over atomic.Bool
					var callers, meddlers sync.WaitGroup
					for range 16 {
						callers.Go(st.visits)
					}
					meddlers.Go(func() { st.meddle(limits, &over) })
					time.Sleep(rand.N(2 * time.Millisecond))
					require.NoError(t, end(st.Shaper))
					callers.Wait()
					over.Store(true)
					meddlers.Wait()
					st.requireNobodyLeft(t)
					sentAgain += st.sentAgain.Load()
					leftAgain += st.leftAgain.Load()
					abandoned += st.abandoned.Load()
				}
				t.Logf("%d were sent again, of whom %d left; %d gave up", sentAgain, leftAgain, abandoned)
				require.NotZero(t, leftAgain)
				require.NotZero(t, abandoned)
			})
		}
	}
}

// requireNobodyLeft looks at the shaper when all calls have returned.
func (st *reentryStorm) requireNobodyLeft(t *testing.T) {
	t.Helper()
	if what := st.wrong.Load(); what != nil {
		require.FailNow(t, *what)
	}
	stats := st.Stats()
	require.Equal(t, st.departed.Load(), stats.Departed)
	require.Equal(t, st.refused.Load(), stats.Refused)
	require.Equal(t, st.abandoned.Load(), stats.Abandoned)
	require.Zero(t, stats.Waiting)
	require.Zero(t, stats.InFlight)

	st.Shaper.mu.Lock()
	defer st.Shaper.mu.Unlock()
	require.True(t, st.flow.line.head == nil && st.flow.line.tail == nil && st.flow.line.lastReentry == nil, "the line is empty")
	require.Zero(t, st.flow.line.cost.total())
}
