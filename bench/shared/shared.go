// Package shared measures processes that share one rate through a Redis server: whether
// they reach it together, how evenly the merged stream of their departures leaves, how the
// slots are divided among them, and how often the server is asked. The rivals are meters on
// Redis, in the loop of a caller that wants to wait: it asks, sleeps for as long as the meter
// says, and asks again.
package shared

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"golang.org/x/time/rate"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// Experiment is "shared".
var Experiment = run.Experiment{
	Name:  "shared",
	What:  "four processes and one Redis: is the rate reached, how evenly, in which shares, with how many round trips?",
	Needs: []run.Program{{Name: "redis-server", GetIt: "Debian: apt-get install redis-server"}},
	Note: "Closed loop: each caller waits again as soon as it has left. Figures are of the merged departures, at the instants at which callers ran again. " +
		"share-off: the largest difference between the share of a process and an equal one, in percent of that. " +
		"overtaken: in the line of its own process. Round trips are counted at the clients. rtt: what the network adds to one. " +
		"redis_rate and throttled sleep for the RetryAfter that they were told, and ask again.",
	Goals:  goals,
	Groups: groups,
	Conclude: func(r *report.Report, o run.Options) error {
		const rate = 1_000
		return r.DrawSpacings(report.Spacings{
			Name: "shared", Title: "Four processes, one rate: how even is what reaches the upstream?", Rate: rate,
			Caption:  fmt.Sprintf("%d processes with %d callers each share a bucket on one Redis server. %s.", processes, waiters, o.Machine),
			Limiters: limiters, Line: func(limiter string) string { return input{Limiter: limiter, Rate: rate, Network: "loopback"}.name() },
		}, ours)
	},
}

// limiters are compared on loopback.
var limiters = []string{ours, "redis_rate", "throttled"}

const (
	processes = 4
	waiters   = 32 // in each process, unless the network is slow
	ours      = "shaper"
)

// An input describes a measurement: processes that share a rate, with callers that wait again as
// soon as they have left.
type input struct {
	Limiter     string
	Waiters     int           // in each process
	Rate        float64       // of all processes together, per second
	Network     string        // as the name says it
	RTT, Jitter time.Duration // added to a round trip by the network
	Warm        time.Duration
	Window      time.Duration
}

// A result has the figures of the processes together.
type result struct {
	measure.Spacing         // of the merged departures; Overtaken is within each process, as no order among them is promised
	ShareOff        float64 `unit:"share-off-%"`           // the largest difference between the share of a process and an equal one, in percent of that
	RoundTrips      float64 `unit:"round-trips/departure"` // of all processes
	CPU             float64 `unit:"cpu-ns/departure"`      // of all processes
	RedisCPU        float64 `unit:"redis-cpu-ns/departure"`
}

// groups are the measurements. Where the network is slow only ours is measured: the rivals'
// round trips would bound them.
func groups(o run.Options) []run.Group {
	window, rounds := 5*time.Second, o.Times(3, 1)
	if o.Quick {
		window = time.Second
	}
	var all []run.Group
	for _, rate := range []float64{100, 1_000, 10_000} {
		var group run.Group
		within := window
		if rate == 100 && !o.Quick {
			within = 2 * window // One slot more or less must be less than 2 % of a share.
		}
		for _, limiter := range limiters {
			group.Cases = append(group.Cases, caseOf(input{Limiter: limiter, Waiters: waiters, Rate: rate, Network: "loopback", Warm: time.Second, Window: within}, rounds))
		}
		all = append(all, group)
	}
	for _, slow := range []input{{Network: "2ms", RTT: 2 * time.Millisecond}, {Network: "20ms+-10ms", RTT: 20 * time.Millisecond, Jitter: 10 * time.Millisecond}} {
		var group run.Group
		for _, rate := range []float64{100, 1_000, 10_000} {
			slow.Limiter, slow.Rate, slow.Warm, slow.Window = ours, rate, time.Second, window
			// As many as leave within a few round trips: fewer callers would bound the rate.
			slow.Waiters = max(waiters, int(4*rate*(slow.RTT+slow.Jitter).Seconds()/processes))
			group.Cases = append(group.Cases, caseOf(slow, 1))
		}
		if !o.Quick {
			all = append(all, group)
		}
	}
	return all
}

func caseOf(in input, rounds int) run.Case {
	return run.One(in.name(), rounds, func(t *testing.T) result { return measureFleet(t, in) })
}

// name is the name of the benchmark lines.
func (in input) name() string {
	return fmt.Sprintf("Shared/limiter=%s/rate=%.0f/rtt=%s", in.Limiter, in.Rate, in.Network)
}

// goals judge ours on loopback, and that it reaches the rate where the network is slow.
var goals = []report.Goal{
	{What: "share of the shared rate that is reached at $1/s, network: $2", Ours: "Shared/limiter=shaper/rate=(.*)/rtt=(.*) of-rate", Least: 0.99},
	{What: "shares of the processes at $1/s, in % off", Ours: "Shared/limiter=shaper/rate=(.*)/rtt=loopback share-off-%", Most: 2},
	{What: "round trips per departure at 1000/s", Ours: "Shared/limiter=shaper/rate=1000/rtt=loopback round-trips/departure", Most: 0.15},
}

// starting is the time in which all processes start on a machine that is not busy.
const starting = 500 * time.Millisecond

// measureFleet measures again, up to ten times in all, and gives the processes more time to
// start, if that was too short for one of them.
func measureFleet(t *testing.T, in input) result {
	within := starting
	for range 10 {
		if found, late := measureOnce(t, in, within); !late {
			return found
		}
		within = min(2*within, 8*starting)
	}
	t.Fatal("a process was not there when the window began")
	return result{}
}

// measureOnce starts a server and the processes, and measures their common departures. late reports whether a process
// began after the window, as on a busy machine.
func measureOnce(t *testing.T, in input, within time.Duration) (found result, late bool) {
	server := servers.StartRedis(t)
	address := server.Addr
	if in.RTT > 0 {
		network := servers.StartProxy(t, server.Addr)
		network.SetDelay(in.RTT, in.Jitter)
		address = network.Addr
	}
	before := cpuOf(t, server)
	todo := workerInput{Input: in, Address: address, Begin: time.Now().Add(within)}
	outputs, errs := make([]workerOutput, processes), make([]error, processes)
	var all sync.WaitGroup
	for i := range processes {
		all.Go(func() { outputs[i], errs[i] = worker.Take(t.Context(), todo) })
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	if slices.ContainsFunc(outputs, func(o workerOutput) bool { return o.Late }) {
		return found, true
	}
	return resultOf(in, outputs, cpuOf(t, server)-before), false
}

// resultOf merges the departures of the processes. redisCPU is the processor time of the server
// meanwhile, in nanoseconds.
func resultOf(in input, outputs []workerOutput, redisCPU float64) result {
	from, to := in.Warm, in.Warm+in.Window
	interval := measure.Interval(in.Rate)
	var merged []measure.Departure
	var counts []float64
	var overtaken, trips, cpu, total float64
	for _, o := range outputs {
		merged = append(merged, o.Departures...)
		within := measure.DeparturesWithin(from, to, interval, o.Departures)
		counts = append(counts, float64(within.Count()))
		overtaken += within.Spacing().Overtaken * float64(within.Count())
		trips, cpu, total = trips+float64(o.RoundTrips), cpu+o.CPU, total+float64(len(o.Departures))
	}
	all := measure.DeparturesWithin(from, to, interval, merged)
	sum, off := 0.0, 0.0
	for _, n := range counts {
		sum += n
	}
	for _, n := range counts {
		off = max(off, 100*math.Abs(n*processes/max(sum, 1)-1))
	}
	total = max(total, 1)
	found := result{
		Spacing: all.Spacing(), ShareOff: off, RoundTrips: trips / total, CPU: cpu / total, RedisCPU: redisCPU / total,
	}
	found.Overtaken = overtaken / max(sum, 1)
	return found
}

// cpuOf returns the CPU time that a server has used, in nanoseconds.
func cpuOf(t *testing.T, server *servers.Redis) (used float64) {
	for _, m := range regexp.MustCompile(`used_cpu_(?:sys|user):(\S+)`).FindAllStringSubmatch(server.MustDo("INFO", "cpu").(string), -1) {
		seconds, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		used += 1e9 * seconds
	}
	return used
}

// worker is a process that shares the rate.
var worker = run.NewChild("shared-worker", work)

// A workerInput is the task of one process.
type workerInput struct {
	Input   input
	Address string // of the server, or of the network before it
	Begin   time.Time
}

// A workerOutput is the record of one process.
type workerOutput struct {
	Departures []measure.Departure // since all began, by the machine's clock
	RoundTrips int64
	CPU        float64 // in nanoseconds
	Late       bool    // it was not there when the window began, and has done nothing
}

// patience bounds the time for a response of the server. It is long because the machine may be busy;
// only a server that has failed takes all of it.
const patience = time.Minute

// work is the body of a process.
func work(todo workerInput) (found workerOutput, err error) {
	var trips counter
	client := redis.NewClient(&redis.Options{
		Addr: todo.Address, MaxRetries: -1, PoolSize: todo.Input.Waiters, ContextTimeoutEnabled: true,
		DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience,
	})
	defer client.Close()
	client.AddHook(&trips)
	found, err = open(todo.Input, client).loop(todo)
	found.RoundTrips, found.CPU = trips.count.Load(), measure.CPUTime()
	return found, err
}

// A limiter is asked until a caller may leave.
type limiter struct {
	// ask returns the time after which the caller is to ask again. Less than 0 says that it may leave.
	ask  func(context.Context) (retryAfter time.Duration, err error)
	stop func() error
}

// open makes a limiter of the shared rate.
func open(in input, client *redis.Client) limiter {
	nothing := func() error { return nil }
	switch in.Limiter {
	case ours:
		s := rivals.Must(shaper.New(shaper.Limits{Rate: rate.Limit(in.Rate), Depth: 2 * in.Waiters}, shaper.WithBucket(redisbucket.New(client), "bench", shared.Options{})))
		return limiter{func(ctx context.Context) (time.Duration, error) {
			err := s.Wait(ctx)
			if refusal, is := errors.AsType[*shaper.RejectError](err); is && errors.Is(err, shaper.ErrUnavailable) {
				return max(refusal.RetryAfter, time.Millisecond), nil // A busy machine let the server answer too late.
			}
			return -1, err
		}, s.Close}
	case "redis_rate":
		r := redis_rate.NewLimiter(client)
		limit := redis_rate.Limit{Rate: int(in.Rate), Burst: 1, Period: time.Second}
		return limiter{func(ctx context.Context) (time.Duration, error) {
			found, err := r.Allow(ctx, "bench", limit)
			if err != nil || found.Allowed > 0 {
				return -1, err
			}
			return found.RetryAfter, nil
		}, nothing}
	case "throttled":
		store := rivals.Must(goredisstore.NewCtx(client, "bench:"))
		t := rivals.Must(throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerSec(int(in.Rate))}))
		return limiter{func(ctx context.Context) (time.Duration, error) {
			limited, found, err := t.RateLimitCtx(ctx, "bench", 1)
			switch {
			case err != nil && ctx.Err() == nil:
				return 0, nil // It gives up after ten lost races with other callers; then it is asked again.
			case err != nil || !limited:
				return -1, err
			}
			return found.RetryAfter, nil
		}, nothing}
	}
	panic("no limiter is named " + in.Limiter)
}

// wait asks, and sleeps for as long as it is told before it asks again.
func (l limiter) wait(ctx context.Context) error {
	for {
		after, err := l.ask(ctx)
		if err != nil || after < 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(after):
		}
	}
}

// loop lets callers wait again and again, from the instant at which all processes begin to
// the end of the window. If the window has begun already, it does nothing.
func (l limiter) loop(todo workerInput) (found workerOutput, err error) {
	time.Sleep(time.Until(todo.Begin))
	if time.Since(todo.Begin) > todo.Input.Warm {
		return workerOutput{Late: true}, nil
	}
	// Four times as many as may leave, and more where these are few.
	loop := measure.NewLoop(todo.Begin, 1000+4*int(todo.Input.Rate*(todo.Input.Warm+todo.Input.Window).Seconds()))
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range todo.Input.Waiters {
		all.Go(func() { loop.Run(ctx, l.wait) })
	}
	time.Sleep(time.Until(todo.Begin.Add(todo.Input.Warm + todo.Input.Window)))
	cancel()
	all.Wait()
	stopped := l.stop()
	found.Departures, err = loop.Departures()
	return found, errors.Join(err, stopped)
}

// A counter counts the round trips of a client: each command, or pipeline of commands, is one.
type counter struct{ count atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return next(ctx, network, address)
	}
}

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count.Add(1)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.count.Add(1)
		return next(ctx, cmds)
	}
}
