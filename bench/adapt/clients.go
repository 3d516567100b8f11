package adapt

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/adaptivethrottler"
	"golang.org/x/time/rate"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/shaper"
)

// A call has left at a time after the start.
type call struct {
	left    time.Duration
	answer  answer
	latency time.Duration
}

// between returns the calls that left from an instant on and before another one.
func between(calls []call, from, to time.Duration) []call {
	at := func(instant time.Duration) int {
		i, _ := slices.BinarySearchFunc(calls, instant, func(c call, t time.Duration) int { return int(c.left - t) })
		for i > 0 && calls[i-1].left == instant {
			i--
		}
		return i
	}
	return calls[at(from):at(to)]
}

// A client lets a call leave, or says that it must not. The caller says by done what became of it.
type client func(ctx context.Context) (done func(answer, time.Duration), err error)

// An opener opens one of several clients for a scenario.
type opener func(s scenario, clients int) client

// ours is the name of this library among the limiters.
const ours = "adapt"

type limiter struct {
	name string
	open opener
}

// limiters are compared, each in the use that its documentation shows.
func limiters() []limiter {
	return []limiter{
		{ours, openAdapt}, {"fixed50", openFixed(0.5)}, {"fixed100", openFixed(1)}, {"fixed150", openFixed(1.5)},
		{"aws", openAWS}, {"aimd", openAIMD}, {"failsafe-limiter", openFailsafeLimiter}, {"failsafe-throttler", openFailsafeThrottler},
	}
}

func newShaper(perSecond float64) *shaper.Shaper {
	return rivals.Must(shaper.New(shaper.Limits{Rate: rate.Limit(perSecond), Depth: workers}))
}

func openAdapt(s scenario, clients int) client {
	line := newShaper(10 * s.rate)
	a := rivals.Must(adapt.New(line, adapt.Config{
		Min: rate.Limit(s.rate / 100), Start: rate.Limit(s.rate / 10 / float64(clients)), Slow: s.slow,
	}))
	return func(ctx context.Context) (func(answer, time.Duration), error) {
		return func(got answer, latency time.Duration) {
			switch got { // As RoundTripper classifies.
			case fine:
				a.Observe(adapt.OK, latency)
			case refused:
				a.Observe(adapt.Refused, latency)
			case silent:
				a.Observe(adapt.Failed, latency)
			}
		}, line.Wait(ctx)
	}
}

func openFixed(of float64) opener {
	return func(s scenario, clients int) client {
		line := newShaper(of * s.rate / float64(clients))
		return func(ctx context.Context) (func(answer, time.Duration), error) {
			return func(answer, time.Duration) {}, line.Wait(ctx)
		}
	}
}

var (
	errRefused = errors.New("429")
	errFailed  = errors.New("failed")
)

// errorOf returns an answer as an error, as a client library has it.
func errorOf(got answer) error {
	switch got {
	case fine:
		return nil
	case refused:
		return errRefused
	}
	return errFailed
}

// openAWS begins without a limit, as the SDK does. One worker at a time asks for a token, each millisecond. By itself
// GetAttemptToken sleeps for as long as one is missing, and where that is less than a nanosecond, it asks again at
// once: in virtual time for ever.
func openAWS(scenario, int) client {
	mode := retry.NewAdaptiveMode(func(o *retry.AdaptiveModeOptions) {
		o.FailOnNoAttemptTokens = true
		o.Throttles = append(o.Throttles, retry.IsErrorThrottleFunc(func(err error) aws.Ternary {
			if errors.Is(err, errRefused) {
				return aws.TrueTernary
			}
			return aws.UnknownTernary
		}))
	})
	turn := make(chan struct{}, 1) // Whoever has sent to it asks.
	return func(ctx context.Context) (func(answer, time.Duration), error) {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		for ctx.Err() == nil {
			if release, err := mode.GetAttemptToken(ctx); err == nil {
				return func(got answer, _ time.Duration) { _ = release(errorOf(got)) }, nil // It returns nil.
			}
			time.Sleep(time.Millisecond)
		}
		return nil, ctx.Err()
	}
}

// openAIMD is what one writes on x/time: a tenth less for each refusal or failure, and for good answers a tenth of C
// more in each second.
func openAIMD(s scenario, clients int) client {
	least, step := rate.Limit(s.rate/100), rate.Limit(s.rate/10/float64(clients))
	l := rate.NewLimiter(step, 1)
	var mu sync.Mutex
	return func(ctx context.Context) (func(answer, time.Duration), error) {
		return func(got answer, _ time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			switch got {
			case fine:
				l.SetLimit(l.Limit() + step/l.Limit())
			case refused, silent:
				l.SetLimit(max(0.9*l.Limit(), least))
			}
		}, l.Wait(ctx)
	}
}

// Its bound is on calls at once, and begins at 20. All workers find room in its queue.
func openFailsafeLimiter(scenario, int) client {
	l := adaptivelimiter.NewBuilder[any]().WithLimits(1, 2*workers, 20).WithQueueing(workers, workers).Build()
	return func(ctx context.Context) (func(answer, time.Duration), error) {
		permit, err := l.AcquirePermit(ctx)
		return func(answer, time.Duration) { permit.Record() }, err // As its executor does.
	}
}

func openFailsafeThrottler(scenario, int) client {
	t := adaptivethrottler.NewWithDefaults[any]()
	return func(context.Context) (func(answer, time.Duration), error) {
		return func(got answer, _ time.Duration) {
			if got == fine {
				t.RecordSuccess()
			} else {
				t.RecordFailure()
			}
		}, t.AcquirePermit()
	}
}

// refusedByItself is the pause of a worker that its own client refuses.
const refusedByItself = 100 * time.Millisecond

// callAll lets all workers call from now on, and returns their calls.
func (s scenario) callAll(clients int, open opener) (calls []call) {
	start, seed := time.Now(), rand.Uint64()
	ctx, cancel := context.WithTimeout(context.Background(), until)
	defer cancel()
	up := s.open(s, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex
	way := func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return 20*time.Millisecond + time.Duration(random.Int64N(int64(10*time.Millisecond)))
	}
	arrive := func() (answer, time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		return up.arrive(time.Since(start))
	}
	one := func() (got answer) {
		left := time.Now()
		time.Sleep(way())
		got, takes := arrive()
		if got == silent {
			time.Sleep(time.Until(left.Add(timeOut)))
		} else {
			time.Sleep(takes + way())
		}
		return got
	}
	var all sync.WaitGroup
	for range clients {
		enter := open(s, clients)
		for range workers / clients {
			all.Go(func() {
				for ctx.Err() == nil {
					if s.onOff && time.Since(start)/(5*time.Second)%2 == 1 {
						time.Sleep(5*time.Second - time.Since(start)%(5*time.Second))
						continue
					}
					done, err := enter(ctx)
					if err != nil {
						time.Sleep(refusedByItself)
						continue
					}
					left := time.Now()
					got := one()
					latency := time.Since(left)
					done(got, latency)
					mu.Lock()
					calls = append(calls, call{left.Sub(start), got, latency})
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	slices.SortFunc(calls, func(a, b call) int { return int(a.left - b.left) })
	return calls
}
