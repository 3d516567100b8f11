package model

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"example.com/leakybucket/shaper"
)

// A subject is what a script is played on: a Shaper, or one key of a Group.
type subject interface {
	shaper.Limiter
	Acquire(ctx context.Context, n int) (release func(), err error)
	AllowN(n int) bool
	Forecast(n int) (time.Duration, error)
	Hold(d time.Duration)
	Limits() shaper.Limits
	SetLimits(l shaper.Limits) error
	Stats() shaper.Stats
	Shutdown(ctx context.Context) error
	Close() error
}

// A player does the operations of a script on a subject, one after the other.
// It must be used inside a bubble.
type player struct {
	shaper  subject
	start   time.Time
	answers []answer
	ends    []context.CancelFunc // of the contexts of calls, by operation
	calling int                  // the operation that is being done
	calls   atomic.Int64         // that have not returned

	mu       sync.Mutex
	releases []func() // of calls of Acquire that have returned, by operation
}

func newPlayer(s script) *player {
	return &player{
		start:    time.Now(),
		answers:  make([]answer, len(s.ops)),
		ends:     make([]context.CancelFunc, len(s.ops)),
		releases: make([]func(), len(s.ops)),
	}
}

func (p *player) play(s script) (problem string) {
	var err error
	p.shaper, err = shaper.New(s.limits, shaper.WithName("script"), shaper.WithTrace(&shaper.Trace{
		Enqueued: func(ctx context.Context, e shaper.Event) {
			p.answer(ctx).entered = p.event("enqueued", e)
		},
		Departed: func(ctx context.Context, e shaper.Event) {
			p.answer(ctx).ended = p.event("departed", e)
		},
		Refused: func(ctx context.Context, e shaper.Event) {
			p.answer(ctx).ended = p.event("refused", e)
		},
		Abandoned: func(ctx context.Context, e shaper.Event) {
			p.answer(ctx).ended = p.event("abandoned", e)
		},
	}))
	if err != nil {
		return err.Error()
	}
	for i := range s.ops {
		p.step(i, &s.ops[i])
	}
	if p.calls.Load() > 0 {
		p.shaper.Close()
		synctest.Wait()
	}
	for i := range p.answers {
		if !p.answers[i].returned && problem == "" {
			problem = fmt.Sprintf("operation %d %s never returned", i, s.ops[i].literal())
		}
		if p.ends[i] != nil {
			p.ends[i]()
		}
	}
	return problem
}

// step waits for the instant of operation i and does it.
func (p *player) step(i int, o *op) {
	time.Sleep(time.Until(p.start.Add(o.at)))
	if !o.race {
		synctest.Wait()
	}
	p.calling = i
	p.do(i, o)
	synctest.Wait()
}

// do starts operation i.
func (p *player) do(i int, o *op) {
	a := &p.answers[i]
	switch o.kind {
	case opWait:
		ctx := p.context(i, o)
		p.call(func() { p.finish(a, p.shaper.WaitN(ctx, o.n)) })
	case opAcquire:
		ctx := p.context(i, o)
		p.call(func() {
			release, err := p.shaper.Acquire(ctx, o.n)
			if release == nil {
				err = errors.New("Acquire returned no release")
			}
			p.finish(a, err)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.releases[i] = release
		})
	case opRelease:
		p.release(o.target)
		p.finish(a, nil)
	case opHold:
		p.shaper.Hold(o.hold)
		p.finish(a, nil)
	case opShutdown:
		ctx := p.context(i, o)
		p.call(func() { p.finish(a, p.shaper.Shutdown(ctx)) })
	case opAllow:
		left := p.shaper.AllowN(o.n)
		p.allowed(a, o.n, left)
	case opForecast:
		predicted, err := p.shaper.Forecast(o.n)
		p.finish(a, err)
		a.wait = predicted
	case opLook:
		a.look = p.look(p.shaper.Stats(), o.race)
		p.finish(a, nil)
	case opSet:
		err := p.shaper.SetLimits(o.limits)
		p.finish(a, err)
		if err != nil {
			a.result = resultInvalid
		} else if p.shaper.Limits() != o.limits {
			a.result = "other limits"
		}
	case opCancel:
		if o.target >= 0 {
			p.ends[o.target]()
		}
		p.finish(a, nil)
	case opClose:
		p.finish(a, p.shaper.Close())
	}
}

// release ends the request of operation i, if its call has returned. What a call
// that has failed returns is called too, and does nothing.
func (p *player) release(i int) {
	if i < 0 {
		return
	}
	p.mu.Lock()
	release := p.releases[i]
	p.mu.Unlock()
	if release != nil {
		release()
	}
}

func (p *player) call(f func()) {
	p.calls.Add(1)
	go func() {
		defer p.calls.Add(-1)
		f()
	}()
}

// finish notes that a call returned err.
func (p *player) finish(a *answer, err error) {
	a.returned, a.at = true, time.Since(p.start)
	a.result = word(err)
	if a.ended.err != "" && a.ended.err != a.result {
		a.result += ", but the hook was told otherwise"
	}
	a.retry, a.missed = retry(err)
}

// allowed notes what AllowN answered. The reason and RetryAfter of a refusal
// are what its hook was told.
func (p *player) allowed(a *answer, n int, leaves bool) {
	a.returned, a.at = true, time.Since(p.start)
	switch {
	case n < 0 && !leaves:
		a.result = resultNegative
	case n > 0 && !leaves && p.shaper.Limits().InFlight > 0 && a.ended.hook == "":
		a.result = resultMisused
	case n == 0 && leaves, leaves && a.ended.hook == "departed":
		a.result = resultLeft
	case !leaves && a.ended.hook == "refused":
		a.result, a.retry = a.ended.err, a.ended.retry
	default:
		a.result = fmt.Sprintf("%v, but the hook was told otherwise", leaves)
	}
}

// answer is where to note what a hook is told with the context given. That of
// AllowN has no mark, but AllowN is over before the next operation.
func (p *player) answer(ctx context.Context) *answer {
	if c, is := ctx.(*scriptContext); is {
		return &p.answers[c.index]
	}
	return &p.answers[p.calling]
}

func (p *player) event(hook string, e shaper.Event) event {
	var told string
	if e.Err != nil {
		told = word(e.Err)
	}
	if e.Name != "script" {
		told += " by " + e.Name
	}
	again, _ := retry(e.Err)
	return event{hook, e.At.Sub(p.start), e.Waited, e.Cost, e.Waiting, told, again}
}

func (p *player) look(s shaper.Stats, race bool) look {
	l := look{waiting: s.Waiting, inFlight: s.InFlight, level: s.Level, oldest: s.OldestWait, last: -1, held: -1}
	if !s.HeldUntil.IsZero() {
		l.held = s.HeldUntil.Sub(p.start)
	}
	if !race { // Else calls may be between their slot and their return.
		if !s.LastCall.IsZero() {
			l.last = s.LastCall.Sub(p.start)
		}
		l.totals = totals{
			s.Departed, s.Abandoned, s.QueueFull, s.TooLate, s.TooCostly, s.Refused, s.Closed, s.TotalWait,
		}
	}
	if s.Missed != 0 {
		l.waiting = -1 // nothing is late in virtual time
	}
	return l
}

// retry is what a refusal says beside its reason.
func retry(err error) (again time.Duration, missed bool) {
	var refusal *shaper.RejectError
	if errors.As(err, &refusal) {
		return refusal.RetryAfter, errors.Is(err, context.DeadlineExceeded)
	}
	return 0, false
}

// word is the result that an error stands for.
func word(err error) string {
	if err == nil {
		return resultLeft
	}
	if err == shaper.ErrNegativeCost {
		return resultNegative
	}
	if strings.Contains(err.Error(), "use Acquire") {
		return resultMisused
	}
	var refusal *shaper.RejectError
	if !errors.As(err, &refusal) {
		return err.Error()
	}
	var words []string
	for _, reason := range []struct {
		err  error
		word string
	}{
		{shaper.ErrClosed, resultClosed},
		{shaper.ErrTooCostly, resultTooCostly},
		{shaper.ErrQueueFull, resultQueueFull},
		{shaper.ErrTooLate, resultTooLate},
	} {
		if errors.Is(err, reason.err) {
			words = append(words, reason.word)
		}
	}
	return strings.Join(words, " and ")
}

// context makes the context of the call that operation i is.
func (p *player) context(i int, o *op) context.Context {
	c := &scriptContext{index: i}
	c.Context, p.ends[i] = context.WithCancel(context.Background())
	if o.deadline != 0 {
		at := p.start.Add(o.deadline)
		if o.deaf {
			c.deadline = at
		} else {
			c.Context, p.ends[i] = context.WithDeadline(context.Background(), at)
		}
	}
	if o.late != 0 {
		c.gone = p.start.Add(o.late)
	}
	return c
}

// A scriptContext is a context that knows its operation. It may announce a
// deadline by which it never ends, and from instant gone on its Err tells of
// an end of which Done says nothing: the way to be late for certain.
type scriptContext struct {
	context.Context
	index          int
	deadline, gone time.Time
}

var errGone = errors.New(resultGone)

func (c *scriptContext) Deadline() (time.Time, bool) {
	if !c.deadline.IsZero() {
		return c.deadline, true
	}
	return c.Context.Deadline()
}

func (c *scriptContext) Err() error {
	if !c.gone.IsZero() && !time.Now().Before(c.gone) {
		return errGone
	}
	return c.Context.Err()
}
