package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/watch"
)

// This file holds what storms are made of. A storm is everything at once from many
// goroutines on real threads, and is meant for -race. No storm asserts how long
// anything takes, except for the pace, which must hold on any machine. If a call never
// returns, the test fails with the stacks of all goroutines, and goleak reports a
// goroutine that is left behind.

// A hookKind is one of the hooks of a Trace.
type hookKind int

const (
	wasEnqueued hookKind = iota
	wasDeparted
	wasRefused
	wasAbandoned
	hookKinds // how many there are
)

// A call is the context of one call, and what hooks were told of that call. Its
// counts are plain integers: a hook that ran on another goroutine than the call's
// would be a data race.
type call struct {
	context.Context
	cancel context.CancelFunc
	cost   int
	ending ending
	over   bool // Err returns an error, though Done stays open

	told [hookKinds]int
	at   time.Time // of the departure
}

// callKey is the key of the call in a context that is derived from one of its own.
type callKey struct{}

// callOf returns the call that a context belongs to, or nil.
func callOf(ctx context.Context) *call {
	if c, ok := ctx.(*call); ok {
		return c
	}
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

func (c *call) Err() error {
	if c.over {
		return context.Canceled
	}
	return c.Context.Err()
}

// someCall returns a call whose context ends by a deadline, or is cancelled, or
// does not end before the call.
func (st *storm) someCall() *call {
	c := &call{cost: 1 + rand.N(3)}
	kind := rand.N(4)
	if kind == 0 {
		c.Context, c.cancel = context.WithTimeout(context.Background(), rand.N(st.span()))
		return c
	}
	var end context.CancelFunc
	c.Context, end = context.WithCancel(context.Background())
	c.cancel = end
	if kind == 1 {
		timer := time.AfterFunc(rand.N(st.span()/5), end)
		c.cancel = func() {
			timer.Stop()
			end()
		}
	}
	return c
}

// A ledger has three accounts of what became of calls, which must agree: what
// their callers saw, what hooks were told, and Stats.
type ledger struct {
	most int                                          // requests that may be upstream at once; 0: any number
	asks bool                                         // a call may give up while it waits for the limits of its key, too
	also func(c *call, told hookKind, e shaper.Event) // is called by each hook; of AllowN without a call
	told [hookKinds]atomic.Uint64                     // by hooks

	upstream atomic.Int64

	began time.Time

	mu         sync.Mutex
	saw        [hookKinds]uint64 // by callers
	departures []model.Departure // of calls
	wrong      map[string]int    // what was wrong, and how often
}

func (l *ledger) fault(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faultLocked(format, args...)
}

func (l *ledger) faultLocked(format string, args ...any) {
	if l.wrong == nil {
		l.wrong = map[string]int{}
	}
	l.wrong[fmt.Sprintf(format, args...)]++
}

// trace returns the option with the hooks that keep the account.
func (l *ledger) trace() shaper.Option { return shaper.WithTrace(l.hooks()) }

// hooks returns the hooks that keep the account.
func (l *ledger) hooks() *shaper.Trace {
	l.began = time.Now()
	hook := func(told hookKind) func(context.Context, shaper.Event) {
		fails := told == wasRefused || told == wasAbandoned
		return func(ctx context.Context, e shaper.Event) {
			l.told[told].Add(1)
			if (e.Err != nil) != fails || e.Waited < 0 || e.Waiting < 0 {
				l.fault("hook %d was told %+v", told, e)
			}
			c := callOf(ctx)
			if c != nil {
				c.told[told]++
				if told == wasDeparted {
					c.at = e.At
				}
			}
			if l.also != nil {
				l.also(c, told, e)
			}
		}
	}
	return &shaper.Trace{
		Enqueued:  hook(wasEnqueued),
		Departed:  hook(wasDeparted),
		Refused:   hook(wasRefused),
		Abandoned: hook(wasAbandoned),
	}
}

// note enters the result of a call into the account of callers, and checks that
// hooks were told exactly the same. It reports whether the call was refused
// because the shaper is closed.
func (l *ledger) note(c *call, err error) (closed bool) {
	defer c.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	var want [hookKinds]int
	want[wasEnqueued] = min(c.told[wasEnqueued], 1)
	count := func(o hookKind) { l.saw[o]++; want[o] = 1 }
	var refusal *shaper.RejectError
	switch {
	case err == nil:
		count(wasDeparted)
		l.departures = append(l.departures, model.Departure{At: c.at.Sub(l.began), Cost: int64(c.cost)})
		if c.over {
			l.faultLocked("left, though its context had ended")
		}
	case errors.As(err, &refusal):
		count(wasRefused)
		closed = refusal.Reason == shaper.ErrClosed
	case err != c.Err():
		l.faultLocked("returned %v", err)
	case c.told[wasEnqueued] > 0 || l.asks && c.told[wasAbandoned] > 0:
		count(wasAbandoned)
	default: // The context had ended before the call, which is counted nowhere.
	}
	if c.told != want {
		l.faultLocked("returned %v, and hooks were told %v, must be %v", err, c.told, want)
	}
	return closed
}

// noteAllow enters what AllowN returned.
func (l *ledger) noteAllow(left bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if left {
		l.saw[wasDeparted]++
	} else {
		l.saw[wasRefused]++
	}
}

// stay is the time upstream.
func (l *ledger) stay() {
	if inFlight := l.upstream.Add(1); l.most > 0 && inFlight > int64(l.most) {
		l.fault("more are upstream than may be")
	}
	for range rand.N(3) {
		runtime.Gosched()
	}
	l.upstream.Add(-1)
}

// releaseOften calls a release more than once, and at once.
func releaseOften(release func()) {
	var all sync.WaitGroup
	for range rand.N(3) {
		all.Go(release)
	}
	release()
	all.Wait()
}

// visit enters by Acquire and stays upstream. ctx is c, or is derived from it.
func (l *ledger) visit(to acquiring, ctx context.Context, c *call) error {
	release, err := to.Acquire(ctx, c.cost)
	if err == nil {
		l.stay()
	}
	releaseOften(release)
	return err
}

type acquiring interface {
	Acquire(ctx context.Context, n int) (release func(), err error)
}

// requireAgreement compares the accounts when all calls have returned.
func (l *ledger) requireAgreement(t *testing.T, st shaper.Stats) {
	t.Helper()
	require.Empty(t, l.wrong)
	require.Zero(t, st.Waiting)
	require.Zero(t, st.InFlight, "all seats have been released")
	var told [hookKinds]uint64
	for o := range l.told {
		told[o] = l.told[o].Load()
	}
	l.saw[wasEnqueued] = told[wasEnqueued] // A caller cannot see it.
	require.Equal(t, l.saw, told, "what callers saw, and what hooks were told")
	counts := [hookKinds]uint64{told[wasEnqueued], st.Departed, st.Refused, st.Abandoned}
	require.Equal(t, l.saw, counts, "what callers saw, and Stats")
	require.Equal(t, st.Refused, st.QueueFull+st.TooLate+st.TooCostly+st.Closed+st.Unavailable)
}

// totalsOf returns the totals of a Group as Stats of a Shaper.
func totalsOf(g shaper.GroupStats) shaper.Stats {
	return shaper.Stats{
		Waiting: g.Waiting, Departed: g.Departed, Abandoned: g.Abandoned, Missed: g.Missed, Refused: g.Refused,
		QueueFull: g.QueueFull, TooLate: g.TooLate, TooCostly: g.TooCostly, Closed: g.Closed, Unavailable: g.Unavailable,
	}
}

// looks returns a function that looks at Stats again and again. No total of them may ever fall.
func (l *ledger) looks(stats func() shaper.Stats) func() {
	var before shaper.Stats
	return func() {
		now := stats()
		if now.Departed < before.Departed || now.Refused < before.Refused ||
			now.Abandoned < before.Abandoned || now.Missed < before.Missed || now.LastCall.Before(before.LastCall) ||
			now.Refused != now.QueueFull+now.TooLate+now.TooCostly+now.Closed+now.Unavailable ||
			now.Waiting < 0 || now.Level < 0 || now.OldestWait < 0 ||
			now.InFlight < 0 || l.most > 0 && now.InFlight > l.most {
			l.fault("Stats are %+v, after %+v", now, before)
		}
		before = now
	}
}

// A storm is callers and meddlers at one subject, and their ledger.
type storm struct {
	ledger
	inBubble          bool
	over              atomic.Bool // for meddlers
	callers, meddlers sync.WaitGroup
}

// span returns how long contexts last at most that end by themselves. In a bubble time passes only
// while all goroutines sleep, so they do for longer.
func (st *storm) span() time.Duration {
	if st.inBubble {
		return 400 * time.Millisecond
	}
	return time.Millisecond
}

// rest lets other goroutines run. In a bubble it sleeps for up to d.
func (st *storm) rest(d time.Duration) {
	if st.inBubble {
		time.Sleep(rand.N(d))
		return
	}
	runtime.Gosched()
}

// calls starts goroutines. Each makes one call after the other until one reports that the shaper is
// closed. After each call it lets other goroutines run.
func (st *storm) calls(goroutines int, one func() (closed bool)) {
	for range goroutines {
		st.callers.Go(func() {
			for closed := false; !closed; st.rest(st.span() / 10) {
				closed = one()
			}
		})
	}
}

// meddle does something again and again until the storm is over.
func (st *storm) meddle(do func()) {
	st.meddlers.Go(func() {
		for !st.over.Load() {
			do()
			st.rest(5 * st.span()) // More often, and a shared level would never be leased.
		}
	})
}

// A meddled is a Shaper, or one key of a Group, as far as meddlers need it.
type meddled interface {
	Forecast(n int) (time.Duration, error)
	Hold(d time.Duration)
	Stats() shaper.Stats
}

// meddleWith holds the line and asks for forecasts.
func (st *storm) meddleWith(choose func() meddled) {
	st.meddle(func() {
		to := choose()
		to.Hold(rand.N(st.span() / 20))
		if rand.N(4) == 0 {
			to.Hold(0)
		}
	})
	st.meddle(func() {
		to := choose()
		var refusal *shaper.RejectError
		wait, err := to.Forecast(1 + rand.N(3))
		if wait < 0 || err != nil && wait != 0 || err != nil && !errors.As(err, &refusal) && !errors.Is(err, errNoUser) {
			st.fault("Forecast returned %v, %v", wait, err)
		}
		_ = to.Stats()
	})
}

// blowOver returns when all callers and meddlers have ended. The callers end when
// the shaper is closed.
func (st *storm) blowOver(t *testing.T) {
	t.Helper()
	end := func(who string, all *sync.WaitGroup) {
		t.Helper()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			all.Wait()
		}()
		select {
		case <-ended:
		case <-time.After(enough):
			stacks := make([]byte, 1<<20)
			t.Fatalf("%s never end\n%s", who, stacks[:runtime.Stack(stacks, true)])
		}
	}
	end("callers", &st.callers)
	st.over.Store(true)
	end("meddlers", &st.meddlers)
}

// A closer is what an end can be put to: a Shaper or a Group.
type closer interface {
	Close() error
	Shutdown(ctx context.Context) error
}

// ends are the ways to end a closer.
var ends = map[string]func(closer) error{
	"Close": closer.Close,
	"Close from all sides": func(c closer) error {
		return atOnce(c.Close, c.Close, c.Close, c.Close)
	},
	"Shutdown": func(c closer) error { return c.Shutdown(context.Background()) },
	"Shutdown out of patience, then Close": func(c closer) error {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Microsecond)
		defer cancel()
		if err := c.Shutdown(ctx); err != nil && err != context.DeadlineExceeded {
			return err
		}
		return c.Close()
	},
	"Shutdown overtaken by Close": func(c closer) error {
		shutdown := func() error { return c.Shutdown(context.Background()) }
		return atOnce(shutdown, shutdown, c.Close)
	},
}

// atOnce calls all functions at once, and joins their errors.
func atOnce(all ...func() error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, f := range all {
		wg.Go(func() { errs[i] = f() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// watched has the methods of a Shaper and of a Group for those who watch it.
type watched interface {
	Histograms() watch.Histograms
	Refusals() []watch.Refusal
}

// A watch looks at all that is told while a storm blows, from one goroutine, and says what
// cannot be.
type looker struct {
	fault func(format string, args ...any)
	waits uint64 // the most that a Histogram has counted so far
}

// look takes one look. line is the method of the Shaper or of a key.
func (w *looker) look(at watched, line func(int) []watch.Waiter) {
	before := w.waits
	h := at.Histograms()
	w.waits = h.Wait.Count()
	if h.Wait.Count() < before || counted(h.Wait.Buckets()) != h.Wait.Count() || counted(h.Spacing.Buckets()) != h.Spacing.Count() {
		w.fault("Histograms are %+v, after %d waits", h, before)
	}
	refusals := at.Refusals()
	for i, r := range refusals {
		if r.Reason == nil || r.Cost < 1 || len(refusals) > 64 || i > 0 && r.At.IsZero() {
			w.fault("refusal %d of %d is %+v", i, len(refusals), r)
		}
	}
	most := rand.N(6)
	waiters := line(most)
	for i, waiter := range waiters {
		if len(waiters) > most || waiter.Cost < 1 || waiter.Leaves.Before(waiter.Since) || i > 0 && waiter.Leaves.Before(waiters[i-1].Leaves) {
			w.fault("in line are %+v", waiters)
		}
	}
}

// counted adds up the counts of a Histogram.
func counted(buckets iter.Seq2[float64, uint64]) (sum uint64) {
	for _, n := range buckets {
		sum += n
	}
	return sum
}
