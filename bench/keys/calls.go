package keys

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

// goroutines are how many call at once with manyKeys.
var goroutines = []int{1, 2, 64}

// A callsInput is a limiter with so many keys that have all come before.
type callsInput struct {
	Limiter    string
	Keys       int // at least 2; 0: what the limiter has for callers without a key
	Goroutines []int
	Batch      time.Duration // for how long each number of goroutines calls
	Procs      int           // GOMAXPROCS
}

// A callsFound is the heap that the limiter takes with its first key, in KiB,
// and for each other key, in bytes; and the timings by call and number of
// goroutines.
type callsFound struct {
	FirstKiB float64 `unit:"once-KiB"`
	Bytes    float64 `unit:"B/key"`
	Timings  [][]measure.Timing
}

type callsResult = run.Result[callsInput, callsFound]

var callsChild = run.NewMeasurement("keys", calls)

// calls lets all keys come once, looks how much memory they take, and then
// measures the calls, with the keys in an order that is the same for all.
func calls(in callsInput) (callsFound, error) {
	c := rivals.KeyedNamed(in.Limiter)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	runtime.GOMAXPROCS(in.Procs)
	var (
		found = callsFound{FirstKiB: measure.Unknown, Bytes: measure.Unknown}
		k     rivals.Keyed
		round = 1_000 // of keys, where they don't matter
	)
	if in.Keys == 0 {
		k = c.Alone(ctx, keptBucket(0))
	} else {
		round = in.Keys
		before := measure.LiveHeap()
		k = c.Open(ctx, in.Keys, keptBucket(in.Keys))
		if err := comeOnce(k, 0, 1); err != nil {
			return callsFound{}, err
		}
		first := measure.LiveHeap()
		if err := comeOnce(k, 1, in.Keys); err != nil {
			return callsFound{}, err
		}
		found.FirstKiB = float64(first-before) / (1 << 10)
		found.Bytes = float64(measure.LiveHeap()-first) / float64(in.Keys-1)
	}
	defer k.Stop()
	keys := shuffledKeys(round)
	for _, each := range k.Each {
		var timings []measure.Timing
		for _, n := range in.Goroutines {
			t, err := measure.TimeCalls(func() func() bool { return goingRound(each(), keys) }, n, in.Batch)
			if err != nil {
				return callsFound{}, fmt.Errorf("%d goroutines: %w", n, err)
			}
			timings = append(timings, t)
		}
		found.Timings = append(found.Timings, timings)
	}
	return found, nil
}

// keptBucket returns one that no call finds drained, and that lets all leave at
// once: each call adds so much that it lasts until the key comes again. What has no
// keys is called more often, and each call adds less, as a bucket may not take more
// than a year to drain.
func keptBucket(keys int) rivals.Bucket {
	if keys == 0 {
		return rivals.Bucket{Every: 100 * time.Millisecond, Burst: 300_000_000}
	}
	return rivals.Bucket{Every: time.Minute, Burst: 500_000}
}

// shuffledKeys returns the names of so many keys, in an order that is always the
// same.
func shuffledKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = keyName(i)
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys
}

// goingRound returns a call with one key after the other, from anywhere on.
func goingRound(call func(key string) bool, keys []string) func() bool {
	at := rand.IntN(len(keys))
	return func() bool {
		key := keys[at]
		if at++; at == len(keys) {
			at = 0
		}
		return call(key)
	}
}

func callCases(o run.Options) (cases []run.Case[callsInput]) {
	batch, counts := 30*time.Millisecond, []int{0, 1_000, 10_000, manyKeys, 1_000_000}
	if o.Quick {
		batch, counts = 5*time.Millisecond, []int{0, 1_000, manyKeys}
	}
	add := func(c rivals.KeyedRival, keys int, many []int, procs int, name string) {
		in := callsInput{c.Name, keys, many, batch, procs}
		cases = append(cases, run.Case[callsInput]{
			Name: fmt.Sprintf("Keys/limiter=%s/keys=%d%s", c.Name, in.Keys, name), Input: in, Rounds: o.Times(3, 1),
		})
	}
	for _, keys := range counts {
		many := goroutines[:1]
		if keys == manyKeys {
			many = goroutines
		}
		for _, c := range rivals.AllKeyed {
			if keys > 0 || c.Alone != nil {
				add(c, keys, many, runtime.GOMAXPROCS(0), "")
			}
		}
	}
	for _, procs := range fewerProcs() {
		for _, c := range rivals.AllKeyed {
			add(c, manyKeys, goroutines[len(goroutines)-1:], procs, fmt.Sprintf("/procs=%d", procs))
		}
	}
	return cases
}

// fewerProcs returns the powers of two below GOMAXPROCS.
func fewerProcs() (procs []int) {
	for p := 1; p < runtime.GOMAXPROCS(0); p *= 2 {
		procs = append(procs, p)
	}
	return procs
}

// timingLines are one for each call and number of goroutines.
func timingLines(results []callsResult) (lines []report.Line) {
	for _, r := range results {
		for i, call := range rivals.KeyedNamed(r.Input.Limiter).Calls {
			for g, n := range r.Input.Goroutines {
				var timings []measure.Timing
				for _, round := range r.Found {
					timings = append(timings, round.Timings[i][g])
				}
				lines = append(lines, report.Lines(fmt.Sprintf("%s/call=%s/goroutines=%d", r.Name, call, n), timings)...)
			}
		}
	}
	return lines
}
