// Package admission measures the cost of a call that may leave at once, and of one that is refused.
package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/shaper"
)

// Experiment is "admission".
var Experiment = run.Experiment{
	Name: "admission",
	What: "what a call costs that may leave at once, and one that is refused",
	Note: "Wall time over all goroutines, per call. leaves: no call ever waits, as the rate is 1e9 per second. " +
		"failsafe builds a timer for a wait of 0. " + acquire + " has a cap of 100 in flight, which is never reached. " +
		"refused: the rate is three a day. Wait-full-line is met by 100 waiters, Wait-deadline of the shaper by 99. " +
		"Both tell when to come back, as do Reserve-Delay-Cancel and sethvargo, and no other.",
	Goals: goals(),
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		results, err := run.InTurns(ctx, o, child.Take, cases(o))
		var r report.Report
		for _, one := range results {
			r.Lines = append(r.Lines, run.TimingLines(one.Name, goroutines, one.Found)...)
		}
		return r, err
	},
}

// goroutines are how many call at once.
var goroutines = []int{1, 2, 64}

// An input names one of the calls.
type input struct {
	Limiter, Call string
	Refused       bool
	Batch         time.Duration // how long each number of goroutines calls
}

var child = run.NewMeasurement("admission", func(in input) ([]measure.Timing, error) {
	call, stop, err := in.call().open()
	if err != nil {
		return nil, err
	}
	defer stop()
	return measure.TimeFrom(goroutines, func() func() bool { return call }, in.Batch)
})

// call returns the call that is named. It panics if there is none.
func (in input) call() call {
	for _, c := range calls() {
		if c.limiter == in.Limiter && c.call == in.Call && c.refuses == in.Refused {
			return c
		}
	}
	panic(in.Limiter + " has no call " + in.Call)
}

func cases(o run.Options) []run.Case[input] {
	batch := 50 * time.Millisecond
	if o.Quick {
		batch /= 10
	}
	var all []run.Case[input]
	for _, c := range calls() {
		outcome := "leaves"
		if c.refuses {
			outcome = "refused"
		}
		all = append(all, run.Case[input]{
			Name:   fmt.Sprintf("Admission/outcome=%s/call=%s/limiter=%s", outcome, c.call, c.limiter),
			Input:  input{c.limiter, c.call, c.refuses, batch},
			Rounds: o.Times(5, 3),
		})
	}
	return all
}

// goals holds ours against x/time and, where a call is refused, against sethvargo too, which
// tells when to come back.
func goals() []report.Goal {
	of := func(outcome, call, limiter string, goroutines int) string {
		return fmt.Sprintf("Admission/outcome=%s/call=%s/limiter=%s/goroutines=%d ns/call", outcome, call, limiter, goroutines)
	}
	wait := of("leaves", "Wait", rivals.Ours, 1)
	all := []report.Goal{
		{What: "conforming Wait against x-time, goroutines: 1", Ours: wait, Theirs: []string{of("leaves", "Wait", "x-time", 1)}, Most: 0.5},
		{
			What: "conforming Acquire with a cap, and its release, against Wait, goroutines: 1",
			Ours: of("leaves", acquire, rivals.Ours, 1), Theirs: []string{wait}, Most: 1.5,
		},
	}
	for _, refusal := range []struct{ what, call string }{{"line full", "Wait-full-line"}, {"deadline too soon", "Wait-deadline"}} {
		for _, n := range goroutines {
			what := fmt.Sprintf("refusal that tells when to come back (%s), goroutines: %d, against ", refusal.what, n)
			ours := of("refused", refusal.call, rivals.Ours, n)
			all = append(all,
				report.Goal{What: what + "x-time's Wait", Ours: ours, Theirs: []string{of("refused", "Wait-deadline", "x-time", n)}, Most: 0.4},
				report.Goal{What: what + "sethvargo's Take", Ours: ours, Theirs: []string{of("refused", "Take", "sethvargo", n)}, Most: 1})
		}
	}
	// The runtime allocates a little meanwhile, far below one per hundred calls.
	return append(all, report.Goal{
		What: "allocations of a refusal", Ours: "Admission/outcome=refused/call=Wait-*/limiter=shaper/goroutines=* allocs/call", Most: 1.01,
	})
}

// A call is one way in which a limiter lets a caller in, or refuses it.
type call struct {
	limiter string
	call    string
	refuses bool // otherwise the caller may leave at once
	open    opener
}

const (
	// At the fast rate no call ever waits, and at the slow one, three a day, none
	// leaves while this runs.
	fastPerSecond, fastBurst = 1e9, 1e9
	slowPerSecond            = 3. / (24 * 60 * 60)
	slowInterval             = 8 * time.Hour

	fullLine = 100 // waiters

	acquire = "Acquire-release"
)

var (
	fast   = shaper.Limits{Rate: fastPerSecond, Burst: fastBurst, Depth: 1}
	capped = shaper.Limits{Rate: fastPerSecond, Burst: fastBurst, Depth: 1, InFlight: 100}
	slow   = shaper.Limits{Rate: slowPerSecond, Depth: fullLine}

	fastBucket = rivals.Bucket{Every: time.Nanosecond, Burst: fastBurst}
	slowBucket = rivals.Bucket{Every: slowInterval, Burst: 1}
)

// calls returns everything that is compared, ours first, then in the order in
// which the limiters are known to Go programmers.
func calls() []call {
	return []call{
		{limiter: rivals.Ours, call: "Wait", open: meetShaper(fast, 0, func(s *shaper.Shaper, live, _ context.Context) bool {
			return s.Wait(live) == nil
		})},
		{limiter: rivals.Ours, call: "Allow", open: meetShaper(fast, 0, func(s *shaper.Shaper, _, _ context.Context) bool {
			return s.Allow()
		})},
		{limiter: rivals.Ours, call: acquire, open: meetShaper(capped, 0, func(s *shaper.Shaper, live, _ context.Context) bool {
			release, err := s.Acquire(live, 1)
			release()
			return err == nil
		})},
		{limiter: "x-time", call: "Wait", open: meetXTime(fastPerSecond, fastBurst, func(l *rate.Limiter, live, _ context.Context) bool {
			return l.Wait(live) == nil
		})},
		{limiter: "x-time", call: "Allow", open: meetXTime(fastPerSecond, fastBurst, func(l *rate.Limiter, _, _ context.Context) bool {
			return l.Allow()
		})},
		{limiter: "uber", call: "Take", open: meetUber()},
		{limiter: "uber-noslack", call: "Take", open: meetUber(ratelimit.WithoutSlack)},
		{limiter: "failsafe", call: "AcquirePermit", open: meetFailsafe(time.Nanosecond, func(l failsafeLimiter, live context.Context) bool {
			return l.AcquirePermit(live) == nil
		})},
		{limiter: "sethvargo", call: "Take", open: meetSethvargo(fastBucket, true)},

		{limiter: rivals.Ours, call: "Wait-full-line", refuses: true, open: meetShaper(slow, fullLine, func(s *shaper.Shaper, live, _ context.Context) bool {
			return saysWhen(s.Wait(live))
		})},
		{limiter: rivals.Ours, call: "Wait-deadline", refuses: true, open: meetShaper(slow, fullLine-1, func(s *shaper.Shaper, _, soon context.Context) bool {
			return saysWhen(s.Wait(soon))
		})},
		{limiter: rivals.Ours, call: "Allow", refuses: true, open: meetShaper(slow, 0, func(s *shaper.Shaper, _, _ context.Context) bool {
			return !s.Allow()
		})},
		{limiter: "x-time", call: "Wait-deadline", refuses: true, open: meetXTime(slowPerSecond, 1, func(l *rate.Limiter, _, soon context.Context) bool {
			return l.Wait(soon) != nil
		})},
		{limiter: "x-time", call: "Allow", refuses: true, open: meetXTime(slowPerSecond, 1, func(l *rate.Limiter, _, _ context.Context) bool {
			return !l.Allow()
		})},
		{limiter: "x-time", call: "Reserve-Delay-Cancel", refuses: true, open: meetXTime(slowPerSecond, 1, func(l *rate.Limiter, _, _ context.Context) bool {
			r := l.Reserve()
			delay := r.Delay()
			r.Cancel()
			return delay > 0
		})},
		{limiter: "failsafe", call: "TryAcquirePermit", refuses: true, open: meetFailsafe(slowInterval, func(l failsafeLimiter, _ context.Context) bool {
			return !l.TryAcquirePermit()
		})},
		{limiter: "failsafe", call: "AcquirePermitWithMaxWait", refuses: true, open: meetFailsafe(slowInterval, func(l failsafeLimiter, live context.Context) bool {
			return errors.Is(l.AcquirePermitWithMaxWait(live, time.Second), ratelimiter.ErrExceeded)
		})},
		{limiter: "sethvargo", call: "Take", refuses: true, open: meetSethvargo(slowBucket, false)},
	}
}

// saysWhen reports whether err is a refusal that tells when to come back.
func saysWhen(err error) bool {
	reject, ok := err.(*shaper.RejectError) // [shaper.Shaper.WaitN] promises this type.
	return ok && reject.RetryAfter > 0
}

// An opener makes a limiter in the state that the calls are to meet. The call reports whether it came
// out as it should.
type opener = func() (call func() bool, stop func(), err error)

// contexts returns a context that could end, as any request's can, and one with a deadline that
// lies before any departure at the slow rate.
func contexts() (live, soon context.Context, cancel func()) {
	live, cancelLive := context.WithCancel(context.Background())
	soon, cancelSoon := context.WithTimeout(context.Background(), time.Hour)
	return live, soon, func() { cancelLive(); cancelSoon() }
}

// meetShaper makes a shaper whose burst is spent where it can be, with so many
// callers in the line.
func meetShaper(l shaper.Limits, waiting int, call func(s *shaper.Shaper, live, soon context.Context) bool) opener {
	return func() (func() bool, func(), error) {
		s := rivals.Must(shaper.New(l))
		s.Allow()
		line, err := measure.Gather(waiting, func(int) { _ = s.Wait(context.Background()) })
		if err != nil {
			return nil, nil, err
		}
		if n := s.Stats().Waiting; n != waiting {
			return nil, nil, fmt.Errorf("%d wait in the line of the shaper, not %d", n, waiting)
		}
		live, soon, cancel := contexts()
		return func() bool { return call(s, live, soon) }, func() {
			cancel()
			_ = s.Close()
			line.All.Wait()
		}, nil
	}
}

func meetXTime(perSecond rate.Limit, burst int, call func(l *rate.Limiter, live, soon context.Context) bool) opener {
	return func() (func() bool, func(), error) {
		l := rate.NewLimiter(perSecond, burst)
		l.Allow()
		live, soon, cancel := contexts()
		return func() bool { return call(l, live, soon) }, cancel, nil
	}
}

// meetUber takes an interval of a nanosecond, with which no call ever waits.
func meetUber(opts ...ratelimit.Option) opener {
	return func() (func() bool, func(), error) {
		l := ratelimit.New(fastPerSecond, opts...)
		return func() bool { return !l.Take().IsZero() }, func() {}, nil
	}
}

type failsafeLimiter = ratelimiter.RateLimiter[any]

func meetFailsafe(interval time.Duration, call func(l failsafeLimiter, live context.Context) bool) opener {
	return func() (func() bool, func(), error) {
		l := ratelimiter.NewSmoothWithMaxRate[any](interval)
		l.TryAcquirePermit()
		live, _, cancel := contexts()
		return func() bool { return call(l, live) }, cancel, nil
	}
}

// meetSethvargo has one key, as the store has no call without. If calls are refused, they have to tell
// when to come back.
func meetSethvargo(b rivals.Bucket, leaves bool) opener {
	return func() (func() bool, func(), error) {
		live, _, cancel := contexts()
		store := rivals.NewMemoryStore(b)
		stop := func() {
			cancel()
			_ = store.Close(context.Background()) // It returns nil.
		}
		_, _, reset, _, err := store.Take(live, "key")
		if err == nil && !leaves && !time.Unix(0, int64(reset)).After(time.Now()) {
			err = errors.New("a refusal of sethvargo does not tell when to come back")
		}
		return func() bool {
			_, _, _, ok, err := store.Take(live, "key")
			return err == nil && ok == leaves
		}, stop, err
	}
}
