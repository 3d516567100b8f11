package fair

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/shaper"
)

type costInput struct {
	Keys    int // 0: a plain Shaper
	Waiting int
}

// A costFound is what a request in line costs, and what the keys take.
type costFound struct {
	Admission float64 `unit:"admission-ns"`
	Refusal   float64 `unit:"refusal-ns"`
	Departure float64 `unit:"departure-ns"`
	Memory    float64 `unit:"B/key"` // not known of a plain Shaper

	Heap float64 // bytes, with all in line
	Keys int
}

func (f costFound) keys() float64 { return float64(f.Keys) }

var costChild = run.NewMeasurement("fair-cost", cost)

// cost fills a line, asks for more, and lets all leave at once.
func cost(in costInput) (costFound, error) {
	found := costFound{Memory: math.NaN(), Keys: in.Keys}
	closed := shaper.Limits{Rate: rate.Every(time.Minute), Depth: in.Waiting}
	var opts []shaper.Option
	if in.Keys > 0 {
		opts = append(opts, shaper.WithFairQueue(nil))
	}
	names := make([]string, max(1, in.Keys))
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	before := measure.LiveHeap()
	s, err := shaper.New(closed, opts...)
	if err != nil {
		return found, err
	}
	defer s.Close()
	ctx := context.Background()
	if err := s.Wait(ctx); err != nil { // The first one leaves, and the line begins behind it.
		return found, err
	}
	var all sync.WaitGroup
	errs := make(chan error, in.Waiting) // has room for the one error of each request
	start := time.Now()
	for i := range in.Waiting {
		all.Go(func() { errs <- s.For(names[i%len(names)]).Wait(ctx) })
	}
	for s.Stats().Waiting < in.Waiting {
		if len(errs) > 0 {
			return found, fmt.Errorf("a request did not stay in line: %w", <-errs)
		}
		time.Sleep(time.Millisecond)
	}
	found.Admission = perCall(start, in.Waiting)
	found.Heap = float64(measure.LiveHeap() - before)

	const refusals = 100_000
	start = time.Now()
	for range refusals {
		// A key that has a request in line would leave last with one more.
		if err := s.For(names[0]).Wait(ctx); !errors.Is(err, shaper.ErrQueueFull) {
			return found, fmt.Errorf("not refused for places: %v", err)
		}
	}
	found.Refusal = perCall(start, refusals)

	start = time.Now()
	closed.Rate = rate.Inf
	if err := s.SetLimits(closed); err != nil {
		return found, err
	}
	all.Wait()
	found.Departure = perCall(start, in.Waiting)
	close(errs)
	for err := range errs {
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

func perCall(since time.Time, calls int) float64 {
	return float64(time.Since(since).Nanoseconds()) / float64(calls)
}

// costCases fill lines of one length with requests of so many keys.
func costCases(o run.Options) (all []run.Case[costInput]) {
	const waiting = 100_000
	for _, keys := range []int{0, 1, 1000, waiting} {
		all = append(all, run.Case[costInput]{
			Name: fmt.Sprintf("FairCost/keys=%d", keys), Input: costInput{keys, waiting}, Rounds: o.Times(5, 1),
		})
	}
	return all
}
