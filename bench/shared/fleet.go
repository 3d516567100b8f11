package shared

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/run"
)

var child = run.NewMeasurement("shared", measureFleet)

// starting is within what time all processes have started, on a machine that is not busy.
const starting = 500 * time.Millisecond

// errStartedLate is for a machine so busy that a process had not begun when the window did.
var errStartedLate = errors.New("a process was not there when the window began")

// measureFleet measures again, up to ten times in all, and gives the processes more time to
// start, if that was too short for one of them.
func measureFleet(in input) (found result, err error) {
	within := starting
	for range 10 {
		if found, err = measureOnce(in, within); !errors.Is(err, errStartedLate) {
			return found, err
		}
		within = min(2*within, 8*starting)
	}
	return found, err
}

// measureOnce starts a server and the processes, and looks at what they did together.
func measureOnce(in input, within time.Duration) (found result, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server, err := startRedis(ctx)
	if err != nil {
		return found, err
	}
	defer server.stop()
	address := server.address
	if in.RTT > 0 {
		n, err := openNetwork(server.address, in.RTT, in.Jitter)
		if err != nil {
			return found, err
		}
		defer n.close()
		address = n.address
	}
	admin := redis.NewClient(&redis.Options{Addr: server.address, ReadTimeout: patience})
	defer admin.Close()
	before, err := cpuOf(ctx, admin)
	if err != nil {
		return found, err
	}
	begin := time.Now().Add(within)
	outputs, err := runWorkers(ctx, workerInput{Input: in, Address: address, Begin: begin})
	if err != nil {
		return found, err
	}
	for _, o := range outputs {
		if o.Late {
			return found, fmt.Errorf("%w, %v after it was started", errStartedLate, within+in.Warm)
		}
	}
	after, err := cpuOf(ctx, admin)
	if err != nil {
		return found, err
	}
	return resultOf(in, begin, outputs, after-before), nil
}

// runWorkers runs the processes to their end.
func runWorkers(ctx context.Context, todo workerInput) ([]workerOutput, error) {
	outputs, errs := make([]workerOutput, processes), make([]error, processes)
	var all sync.WaitGroup
	for i := range processes {
		all.Go(func() { outputs[i], errs[i] = worker.Take(ctx, todo) })
	}
	all.Wait()
	return outputs, errors.Join(errs...)
}

// resultOf merges what the processes did. redisCPU is what the server used meanwhile, in
// nanoseconds.
func resultOf(in input, begin time.Time, outputs []workerOutput, redisCPU float64) result {
	from, to := in.Warm, in.Warm+in.Window
	interval := measure.Interval(in.Rate)
	var merged []measure.Departure
	var counts []float64
	var overtaken, trips, cpu, total float64
	for _, o := range outputs {
		var own []measure.Departure
		for i, at := range o.At {
			own = append(own, measure.Departure{Entered: o.Entered[i], At: time.Duration(at - begin.UnixNano())})
		}
		merged = append(merged, own...)
		within := measure.DeparturesWithin(from, to, interval, own)
		counts = append(counts, float64(within.Count()))
		overtaken += within.Spacing().Overtaken * float64(within.Count())
		trips, cpu, total = trips+float64(o.RoundTrips), cpu+o.CPU, total+float64(len(o.At))
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
		Spread: all.Spread(), ShareOff: off, RoundTrips: trips / total, CPU: cpu / total, RedisCPU: redisCPU / total,
	}
	found.Overtaken = overtaken / max(sum, 1)
	return found
}

// cpuOf returns the CPU time that a server has used, in nanoseconds.
func cpuOf(ctx context.Context, admin *redis.Client) (used float64, err error) {
	info, err := admin.Info(ctx, "cpu").Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, fmt.Errorf("INFO cpu: %w", err)
			}
			used += 1e9 * seconds
		}
	}
	return used, nil
}
