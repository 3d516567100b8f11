package admission

import (
	"context"
	"fmt"
	"time"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/shaper"
)

// An opener makes a limiter in the state that the calls are to meet. Each
// goroutine calls each once, and what that returned over and over. Such a call
// reports whether it came out as it should.
type opener = func() (each func() (call func() bool), stop func(), err error)

// shared is for limiters of which all goroutines make the same call.
func shared(call func() bool) func() func() bool {
	return func() func() bool { return call }
}

// contexts returns one that could end, as that of any request can, and one with
// a deadline that lies before any departure at the slow rate.
func contexts() (live, soon context.Context, cancel func()) {
	live, cancelLive := context.WithCancel(context.Background())
	soon, cancelSoon := context.WithTimeout(context.Background(), time.Hour)
	return live, soon, func() { cancelLive(); cancelSoon() }
}

// meetShaper makes a shaper whose burst is spent where it can be, with so many
// callers in the line.
func meetShaper(l shaper.Limits, waiting int, call func(s *shaper.Shaper, live, soon context.Context) bool) opener {
	return func() (func() func() bool, func(), error) {
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
		return shared(func() bool { return call(s, live, soon) }), func() {
			cancel()
			_ = s.Close()
			line.All.Wait()
		}, nil
	}
}

func meetXTime(perSecond rate.Limit, burst int, call func(l *rate.Limiter, live, soon context.Context) bool) opener {
	return func() (func() func() bool, func(), error) {
		l := rate.NewLimiter(perSecond, burst)
		l.Allow()
		live, soon, cancel := contexts()
		return shared(func() bool { return call(l, live, soon) }), cancel, nil
	}
}

// meetUber takes an interval of a nanosecond, with which no call ever waits.
func meetUber(opts ...ratelimit.Option) opener {
	return func() (func() func() bool, func(), error) {
		l := ratelimit.New(fastPerSecond, opts...)
		return shared(func() bool { return !l.Take().IsZero() }), func() {}, nil
	}
}

type failsafeLimiter = ratelimiter.RateLimiter[any]

func meetFailsafe(interval time.Duration, call func(l failsafeLimiter, live context.Context) bool) opener {
	return func() (func() func() bool, func(), error) {
		l := ratelimiter.NewSmoothWithMaxRate[any](interval)
		l.TryAcquirePermit()
		live, _, cancel := contexts()
		return shared(func() bool { return call(l, live) }), cancel, nil
	}
}

// meetKeyed is for limiters that have no call without a key. The one that is used needs
// no bound on keys. If calls are refused, they have to tell when to come back.
func meetKeyed(name string, b rivals.Bucket, leaves bool) opener {
	return func() (func() func() bool, func(), error) {
		live, _, cancel := contexts()
		k := rivals.KeyedNamed(name).Open(live, 1, b)
		stop := func() { cancel(); k.Stop() }
		k.Each[0]()("key")
		if !leaves && !k.TellsWhen("key") {
			stop()
			return nil, nil, fmt.Errorf("a refusal of %s does not tell when to come back", name)
		}
		each := func() func() bool {
			call := k.Each[0]()
			return func() bool { return call("key") == leaves }
		}
		return each, stop, nil
	}
}
