package model

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/leakybucket/shaper"
)

// A Subject is the object that a script is played on: a [shaper.Shaper], one key
// of a [shaper.Group], or a bucket whose state is kept elsewhere. Its methods
// promise the same as the methods of Shaper.
type Subject interface {
	caller
	AtMost(n int)
	Hold(d time.Duration)
	Limits() shaper.Limits
	SetLimits(l shaper.Limits) error
	Stats() shaper.Stats
	Shutdown(ctx context.Context) error
	Close() error
}

// A caller has the calls of a subject that may be made for a key.
type caller interface {
	shaper.Limiter
	Acquire(ctx context.Context, n int) (release func(), err error)
	Reserve(ctx context.Context, estimate int) (settle func(actual int), err error)
	AllowN(n int) bool
	Forecast(n int) (time.Duration, error)
}

// An eacher is a caller with several levels.
type eacher interface {
	WaitEach(ctx context.Context, costs ...int) error
	ReserveEach(ctx context.Context, estimates ...int) (settle func(actual ...int), err error)
	AtMostEach(left ...int)
}

// A meterer is a Subject with several levels.
type meterer interface {
	SetMeters(ms ...shaper.Meter) error
	Meters() []shaper.MeterStats
	Snapshot() ([]byte, error)
	Restore(data []byte) error
}

// An Open makes a subject with its first limits. It must pass the options on, because
// they contain the player's hooks.
type Open func(l shaper.Limits, options ...shaper.Option) (Subject, error)

// A Retrier is a Subject that lets requests enter again that the upstream has refused, as a
// Transport does: by a method like Acquire that is told when the request has asked for the first time.
type Retrier interface {
	Retry(ctx context.Context, n int, asked time.Time) (release func(), err error)
}

// Name is the name that a subject must have, by [shaper.WithName], so that its
// events carry it.
const Name = "script"

// Play plays a script in a bubble of its own, on a subject that it opens and
// closes there, and returns the subject's answers. If problem is not empty, the
// subject could not be opened or a call never returned. Play takes a [*testing.T]
// because [synctest.Test] does.
func Play(t *testing.T, s Script, open Open) (answers []Answer, problem string) {
	t.Helper()
	defer func() {
		// A bubble panics if goroutines are left in it that can never go on.
		if r := recover(); r != nil && problem == "" {
			problem = fmt.Sprint("panic: ", r)
		}
	}()
	synctest.Test(t, func(*testing.T) {
		p := NewPlayer(s)
		options := []shaper.Option{shaper.WithName(Name), shaper.WithTrace(p.Trace())}
		if s.Fair {
			options = append(options, shaper.WithFairQueue(p.weight))
		}
		if s.Bounded {
			options = append(options, shaper.WithLineTimeout(s.Timeout))
		}
		if len(s.Meters) > 0 {
			options = append(options, shaper.WithMeters(s.Meters...))
		}
		if s.DryRun {
			options = append(options, shaper.WithDryRun())
		}
		subject, err := open(s.Limits, options...)
		if err != nil {
			problem = err.Error()
			return
		}
		p.Subject = subject
		for i := range s.Ops {
			p.Step(i)
		}
		answers, problem = p.End()
	})
	return answers, problem
}

// Compare plays a script and returns where the subject first differs from want,
// the model's answers; "" if nowhere.
func Compare(t *testing.T, s Script, want []Answer, open Open) (difference string) {
	t.Helper()
	got, problem := Play(t, s, open)
	if problem != "" {
		return problem
	}
	return Difference(s, got, want)
}

// Shrink takes a script and the difference that Compare returned for it. It returns the
// script without every operation that can be left out while a difference remains, and
// that difference.
func Shrink(t *testing.T, s Script, difference string, open Open) (Script, string) {
	t.Helper()
	for i := len(s.Ops) - 1; i >= 0; i-- {
		less := s.Without(i)
		want, ambiguous := less.Predict(NoMistake)
		if ambiguous != "" {
			continue
		}
		if still := Compare(t, less, want, open); still != "" {
			s, difference = less, still
		}
	}
	return s, difference
}

// A Player does the operations of a script on a subject, one after the other. For a
// script on one subject [Play] is enough; players are for several subjects at once. A
// Player must be used inside a bubble.
type Player struct {
	Subject Subject // to be set before the first Step

	script  Script
	start   time.Time
	answers []Answer
	ends    []context.CancelFunc // of the contexts of calls, by operation
	current int                  // the operation that is being done
	calls   atomic.Int64         // that have not returned

	mu       sync.Mutex
	settlers []func(o *Op) // calls what calls of Acquire and Reserve have returned, by operation
	saves    map[int][]byte
}

// NewPlayer returns a player of s, whose instants count from now on.
func NewPlayer(s Script) *Player {
	return &Player{
		script:   s,
		start:    time.Now(),
		answers:  make([]Answer, len(s.Ops)),
		ends:     make([]context.CancelFunc, len(s.Ops)),
		settlers: make([]func(*Op), len(s.Ops)),
		saves:    make(map[int][]byte),
	}
}

// Trace returns the hooks that the subject must call.
func (p *Player) Trace() *shaper.Trace {
	ended := func(hook string) func(context.Context, shaper.Event) {
		return func(ctx context.Context, e shaper.Event) { p.answer(ctx).Ended = p.event(hook, e) }
	}
	return &shaper.Trace{
		Enqueued:  func(ctx context.Context, e shaper.Event) { p.answer(ctx).Entered = p.event(HookEnqueued, e) },
		Departed:  ended(HookDeparted),
		Refused:   ended(HookRefused),
		Abandoned: ended(HookAbandoned),
	}
}

// Step waits for the instant of operation i and does it.
func (p *Player) Step(i int) {
	o := &p.script.Ops[i]
	time.Sleep(time.Until(p.start.Add(o.At)))
	if !o.Race {
		synctest.Wait()
	}
	p.current = i
	p.do(i, o)
	synctest.Wait()
}

// End closes the subject if any call still waits, and returns the answers. problem is
// not empty if a call never returned.
func (p *Player) End() (answers []Answer, problem string) {
	if p.calls.Load() > 0 {
		_ = p.Subject.Close()
		synctest.Wait()
	}
	for i := range p.answers {
		if !p.answers[i].Returned && problem == "" {
			problem = fmt.Sprintf("operation %d %s never returned", i, p.script.Ops[i].literal())
		}
		if p.ends[i] != nil {
			p.ends[i]()
		}
	}
	return p.answers, problem
}

// weight is the weight function of a fair subject.
func (p *Player) weight(string) int { return p.script.Ops[p.current].Weight }

// caller returns the subject as the key of an operation sees it.
func (p *Player) caller(o *Op) caller {
	if s, ok := p.Subject.(interface {
		For(key string) *shaper.KeyLimiter
	}); ok && o.Key != "" {
		return s.For(o.Key)
	}
	return p.Subject
}

// do starts operation i.
func (p *Player) do(i int, o *Op) {
	a, caller := &p.answers[i], p.caller(o)
	switch o.Kind {
	case OpWait:
		ctx := p.context(i, o)
		p.call(func() {
			if o.More != nil {
				p.finish(a, caller.(eacher).WaitEach(ctx, o.costs()...))
			} else {
				p.finish(a, caller.WaitN(ctx, o.N))
			}
		})
	case OpAcquire, OpReserve, OpRetry:
		ctx := p.context(i, o)
		p.call(func() {
			settle, err := p.enter(ctx, caller, o)
			if settle == nil {
				err = errors.New("model: the call returned no function")
			}
			p.finish(a, err)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.settlers[i] = settle
		})
	case OpRelease, OpSettle:
		p.settle(o)
		p.finish(a, nil)
	case OpAtMost:
		if o.More != nil {
			p.Subject.(eacher).AtMostEach(o.costs()...)
		} else {
			p.Subject.AtMost(o.N)
		}
		p.finish(a, nil)
	case OpSetMeters:
		err := p.Subject.(meterer).SetMeters(o.Meters...)
		if p.finish(a, err); err != nil {
			a.Result = Invalid
		}
	case OpSave:
		data, err := p.Subject.(meterer).Snapshot()
		p.saves[i] = data
		p.finish(a, err)
	case OpRestore:
		var err error
		if o.Target >= 0 {
			err = p.Subject.(meterer).Restore(p.saves[o.Target])
		}
		p.finish(a, err)
	case OpHold:
		p.Subject.Hold(o.Hold)
		p.finish(a, nil)
	case OpShutdown:
		ctx := p.context(i, o)
		p.call(func() { p.finish(a, p.Subject.Shutdown(ctx)) })
	case OpAllow:
		left := caller.AllowN(o.N)
		p.allowed(a, o.N, left)
	case OpForecast:
		predicted, err := caller.Forecast(o.N)
		p.finish(a, err)
		a.Wait = predicted
	case OpLook:
		a.Look = p.look(p.Subject.Stats(), o.Race)
		p.finish(a, nil)
	case OpSet:
		err := p.Subject.SetLimits(o.Limits)
		p.finish(a, err)
		if err != nil {
			a.Result = Invalid
		} else if p.Subject.Limits() != o.Limits {
			a.Result = "other limits"
		}
	case OpCancel:
		if o.Target >= 0 {
			p.ends[o.Target]()
		}
		p.finish(a, nil)
	case OpClose:
		p.finish(a, p.Subject.Close())
	}
}

// costs returns the costs at all levels.
func (o *Op) costs() []int { return append([]int{o.N}, o.More...) }

// enter calls Acquire, Reserve or Retry, and returns a function that calls the one that the call returned; nil if that was
// nil. Only the functions of Reserve and ReserveEach take actual costs.
func (p *Player) enter(ctx context.Context, c caller, o *Op) (settle func(o *Op), err error) {
	var release func()
	switch {
	case o.Kind == OpReserve && o.More != nil:
		settle, err := c.(eacher).ReserveEach(ctx, o.costs()...)
		if settle == nil {
			return nil, err
		}
		return func(o *Op) { settle(o.costs()...) }, err
	case o.Kind == OpReserve:
		settle, err := c.Reserve(ctx, o.N)
		if settle == nil {
			return nil, err
		}
		return func(o *Op) { settle(o.N) }, err
	case o.Kind == OpRetry:
		release, err = p.Subject.(Retrier).Retry(ctx, o.N, p.start.Add(o.Asked))
	default:
		release, err = c.Acquire(ctx, o.N)
	}
	if release == nil {
		return nil, err
	}
	return func(*Op) { release() }, err
}

// settle releases or settles the request of an earlier operation, if its call has returned. The
// function of a call that failed is called too, and must do nothing. Only calls of Reserve are settled,
// and only others are released.
func (p *Player) settle(o *Op) {
	if o.Target < 0 || (o.Kind == OpSettle) != (p.script.Ops[o.Target].Kind == OpReserve) {
		return
	}
	p.mu.Lock()
	settle := p.settlers[o.Target]
	p.mu.Unlock()
	if settle != nil {
		settle(o)
	}
}

func (p *Player) call(f func()) {
	p.calls.Add(1)
	go func() {
		defer p.calls.Add(-1)
		f()
	}()
}

// finish notes that a call returned err.
func (p *Player) finish(a *Answer, err error) {
	a.Returned, a.At = true, time.Since(p.start)
	a.Result = result(err)
	if a.Ended.Err != "" && a.Ended.Err != a.Result {
		a.Result += ", but the hook was told otherwise"
	}
	a.Retry, a.Missed = retry(err)
}

// allowed notes the result of AllowN. The reason and RetryAfter of a refusal are the ones that its
// hook was told.
func (p *Player) allowed(a *Answer, n int, leaves bool) {
	a.Returned, a.At = true, time.Since(p.start)
	switch {
	case n < 0 && !leaves:
		a.Result = Negative
	case n > 0 && !leaves && p.Subject.Limits().InFlight > 0 && a.Ended.Hook == "":
		a.Result = Misused
	case n == 0 && leaves, leaves && a.Ended.Hook == HookDeparted:
		a.Result = Left
	case !leaves && a.Ended.Hook == HookRefused:
		a.Result, a.Retry = a.Ended.Err, a.Ended.Retry
	default:
		a.Result = fmt.Sprintf("%v, but the hook was told otherwise", leaves)
	}
}

// answer returns the answer in which to note the call of a hook with a context. The
// context of AllowN does not show its operation, but AllowN returns before the next
// operation begins.
func (p *Player) answer(ctx context.Context) *Answer {
	if c, is := ctx.(*scriptContext); is {
		return &p.answers[c.index]
	}
	return &p.answers[p.current]
}

func (p *Player) event(hook string, e shaper.Event) Event {
	var told string
	if e.Err != nil {
		told = result(e.Err)
	}
	if e.Name != Name {
		told += " by " + e.Name
	}
	again, _ := retry(e.Err)
	return Event{hook, e.At.Sub(p.start), e.Waited, e.Cost, e.Waiting, told, again}
}

func (p *Player) look(st shaper.Stats, race bool) Look {
	l := Look{Waiting: st.Waiting, InFlight: st.InFlight, Level: st.Level, Oldest: st.OldestWait, Last: -1, Held: -1}
	if !st.HeldUntil.IsZero() {
		l.Held = st.HeldUntil.Sub(p.start)
	}
	if !race { // Else calls may be between their slot and their return.
		if !st.LastCall.IsZero() {
			l.Last = st.LastCall.Sub(p.start)
		}
		l.Totals = Totals{
			st.Departed, st.Abandoned, st.QueueFull, st.TooLate, st.TooCostly, st.Refused, st.Closed, st.TotalWait,
			Figures{st.Reserved, st.GivenBack, st.Charged, st.Forfeited},
		}
	}
	if len(p.script.Meters) > 0 {
		for i, m := range p.Subject.(meterer).Meters() {
			l.Meters[i].Level = m.Level
			if !race {
				l.Meters[i].Figures = Figures{m.Reserved, m.GivenBack, m.Charged, m.Forfeited}
			}
		}
	}
	if st.Missed != 0 {
		l.Waiting = -1 // Nothing is late in virtual time.
	}
	return l
}

// retry returns the fields of a refusal beside its reason.
func retry(err error) (again time.Duration, missed bool) {
	var refusal *shaper.RejectError
	if errors.As(err, &refusal) {
		return refusal.RetryAfter, errors.Is(err, context.DeadlineExceeded)
	}
	return 0, false
}

// result returns the result that an error stands for.
func result(err error) string {
	if err == nil {
		return Left
	}
	if err == shaper.ErrNegativeCost {
		return Negative
	}
	if strings.Contains(err.Error(), "use Acquire") {
		return Misused
	}
	var refusal *shaper.RejectError
	if !errors.As(err, &refusal) {
		return err.Error()
	}
	var reasons []string
	for _, reason := range []struct {
		err    error
		result string
	}{
		{shaper.ErrClosed, Closed},
		{shaper.ErrTooCostly, TooCostly},
		{shaper.ErrQueueFull, QueueFull},
		{shaper.ErrTooLate, TooLate},
	} {
		if errors.Is(err, reason.err) {
			reasons = append(reasons, reason.result)
		}
	}
	return strings.Join(reasons, " and ")
}

// context makes the context of the call that operation i is.
func (p *Player) context(i int, o *Op) context.Context {
	c := &scriptContext{index: i}
	c.Context, p.ends[i] = context.WithCancel(context.Background())
	if o.Deadline != 0 {
		at := p.start.Add(o.Deadline)
		if o.Deaf {
			c.announced = at
		} else {
			c.Context, p.ends[i] = context.WithDeadline(context.Background(), at)
		}
	}
	if o.Late != 0 {
		c.late = p.start.Add(o.Late)
	}
	return c
}

// A scriptContext is a context that knows its operation. It may announce a deadline at
// which it does not end. From the instant late on, its Err returns an error although
// Done stays open, so that a call notices the end only after its wait.
type scriptContext struct {
	context.Context
	index           int
	announced, late time.Time
}

var errGone = errors.New(Gone)

func (c *scriptContext) Deadline() (time.Time, bool) {
	if !c.announced.IsZero() {
		return c.announced, true
	}
	return c.Context.Deadline()
}

func (c *scriptContext) Err() error {
	if !c.late.IsZero() && !time.Now().Before(c.late) {
		return errGone
	}
	return c.Context.Err()
}
