// Package admission measures the cost of a call that may leave at once, and of one that is refused.
package admission

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/stretchr/testify/require"
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
	Goals:  goals,
	Groups: groups,
}

// goroutines are how many call at once.
var goroutines = []int{1, 2, 64}

func groups(o run.Options) []run.Group {
	batch := 50 * time.Millisecond // how long each number of goroutines calls
	if o.Quick {
		batch /= 10
	}
	var all []run.Case
	for _, c := range calls {
		all = append(all, run.Case{Name: c.name(), Rounds: o.Times(5, 3), Measure: func(t *testing.T) []report.Line { return c.measure(t, batch) }})
	}
	return []run.Group{{Cases: all}}
}

// goals hold ours against x/time and, where a call is refused, against sethvargo too, which
// tells when to come back.
var goals = []report.Goal{
	{
		What: "conforming Wait against x-time, goroutines: 1", Most: 0.5,
		Ours:   "Admission/outcome=leaves/call=Wait/limiter=shaper/goroutines=1 ns/call",
		Theirs: []string{"Admission/outcome=leaves/call=Wait/limiter=x-time/goroutines=1 ns/call"},
	},
	{
		What: "conforming Acquire with a cap, and its release, against Wait, goroutines: 1", Most: 1.5,
		Ours:   "Admission/outcome=leaves/call=Acquire-release/limiter=shaper/goroutines=1 ns/call",
		Theirs: []string{"Admission/outcome=leaves/call=Wait/limiter=shaper/goroutines=1 ns/call"},
	},
	{
		What: "refusal that tells when to come back ($1), goroutines: $2, against x-time's Wait", Most: 0.4,
		Ours:   "Admission/outcome=refused/call=(Wait-.*)/limiter=shaper/goroutines=(.*) ns/call",
		Theirs: []string{"Admission/outcome=refused/call=Wait-deadline/limiter=x-time/goroutines=$2 ns/call"},
	},
	{
		What: "refusal that tells when to come back ($1), goroutines: $2, against sethvargo's Take", Most: 1,
		Ours:   "Admission/outcome=refused/call=(Wait-.*)/limiter=shaper/goroutines=(.*) ns/call",
		Theirs: []string{"Admission/outcome=refused/call=Take/limiter=sethvargo/goroutines=$2 ns/call"},
	},
	{ // The runtime allocates a little meanwhile, far below one per hundred calls.
		What: "allocations of a refusal ($1), goroutines: $2", Most: 1.01,
		Ours: "Admission/outcome=refused/call=(Wait-.*)/limiter=shaper/goroutines=(.*) allocs/call",
	},
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

// name returns how the names of its lines begin.
func (c call) name() string {
	outcome := "leaves"
	if c.refuses {
		outcome = "refused"
	}
	return fmt.Sprintf("Admission/outcome=%s/call=%s/limiter=%s", outcome, c.call, c.limiter)
}

// measure calls from each number of goroutines.
func (c call) measure(t *testing.T, batch time.Duration) []report.Line {
	call := c.open(t)
	return run.Timed(t, c.name(), goroutines, func() func() bool { return call }, batch)
}

// calls are everything that is compared, ours first, then in the order in
// which the limiters are known to Go programmers.
var calls = []call{
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

// saysWhen reports whether err is a refusal that tells when to come back.
func saysWhen(err error) bool {
	reject, ok := err.(*shaper.RejectError) // [shaper.Shaper.WaitN] promises this type.
	return ok && reject.RetryAfter > 0
}

// An opener makes a limiter in the state that the calls are to meet. The call reports whether it came
// out as it should.
type opener = func(t *testing.T) (call func() bool)

// contexts returns a context that could end, as any request's can, and one with a deadline that
// lies before any departure at the slow rate.
func contexts(t *testing.T) (live, soon context.Context) {
	soon, cancel := context.WithTimeout(t.Context(), time.Hour)
	t.Cleanup(cancel)
	return t.Context(), soon
}

// meetShaper makes a shaper whose burst is spent where it can be, with so many
// callers in the line.
func meetShaper(l shaper.Limits, waiting int, call func(s *shaper.Shaper, live, soon context.Context) bool) opener {
	return func(t *testing.T) func() bool {
		s := rivals.Must(shaper.New(l))
		s.Allow()
		line := measure.Gather(t, waiting, func(int) { _ = s.Wait(context.Background()) })
		require.Equal(t, waiting, s.Stats().Waiting, "so many wait in the line")
		t.Cleanup(func() {
			_ = s.Close()
			line.Wait()
		})
		live, soon := contexts(t)
		return func() bool { return call(s, live, soon) }
	}
}

func meetXTime(perSecond rate.Limit, burst int, call func(l *rate.Limiter, live, soon context.Context) bool) opener {
	return func(t *testing.T) func() bool {
		l := rate.NewLimiter(perSecond, burst)
		l.Allow()
		live, soon := contexts(t)
		return func() bool { return call(l, live, soon) }
	}
}

// meetUber takes an interval of a nanosecond, with which no call ever waits.
func meetUber(opts ...ratelimit.Option) opener {
	return func(*testing.T) func() bool {
		l := ratelimit.New(fastPerSecond, opts...)
		return func() bool { return !l.Take().IsZero() }
	}
}

type failsafeLimiter = ratelimiter.RateLimiter[any]

func meetFailsafe(interval time.Duration, call func(l failsafeLimiter, live context.Context) bool) opener {
	return func(t *testing.T) func() bool {
		l := ratelimiter.NewSmoothWithMaxRate[any](interval)
		l.TryAcquirePermit()
		live, _ := contexts(t)
		return func() bool { return call(l, live) }
	}
}

// meetSethvargo has one key, as the store has no call without. If calls are refused, they have to tell
// when to come back.
func meetSethvargo(b rivals.Bucket, leaves bool) opener {
	return func(t *testing.T) func() bool {
		live, _ := contexts(t)
		store := rivals.NewMemoryStore(b)
		t.Cleanup(func() { require.NoError(t, store.Close(context.Background())) })
		_, _, reset, _, err := store.Take(live, "key")
		require.NoError(t, err)
		require.True(t, leaves || time.Unix(0, int64(reset)).After(time.Now()), "a refusal tells when to come back")
		return func() bool {
			_, _, _, ok, err := store.Take(live, "key")
			return err == nil && ok == leaves
		}
	}
}
