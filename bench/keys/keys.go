// Package keys measures the cost of a bucket for each key: memory, and the time of a call.
package keys

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

// Experiment is "keys".
var Experiment = run.Experiment{
	Name: "keys",
	What: "a bucket for each key: memory, and the cost of a call",
	Note: "Memory is of the live heap after a collection, with the key, a string of 16 bytes. Each key has come once, its bucket is not drained, and nobody waits. " +
		"What there is once, however many keys come, stands by itself (once), with the first key. " +
		"Calls may leave at once; time is wall time over all goroutines. All keys have come before, and come again in an order that has nothing to do with the first. " +
		"Buckets are not drained. " +
		"keys=0: without a key, one Shaper, one of x/time's limiters. procs: GOMAXPROCS, if it was lower. " +
		"x-time: a map of its limiters behind a mutex, from which nothing is deleted. " +
		"KeysLeft: while the buckets are not drained (full), and two seconds after the last of them is (left), when one other key has come, " +
		"for those that tidy up when they are called. sethvargo sweeps as often and as soon as its buckets allow.",
	Goals: goals(),
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		calls, err1 := run.InTurns(ctx, o, callsChild.Take, callCases(o))
		left, err2 := run.AtOnce(ctx, o, leftChild.Take, leftCases(o))
		r := report.Report{Lines: slices.Concat(run.Lines(calls), timingLines(calls), run.Lines(left))}
		return r, errors.Join(err1, err2, picture(&r, o.Machine))
	},
}

// goals bound the memory of a key, hold calls with one of few keys against calls without, and
// calls with many keys against rivals: of one goroutine, where locks cost little, and of 64.
func goals() []report.Goal {
	all := []report.Goal{
		{What: "memory of a bucket without waiters, with a key of 16 bytes, in bytes", Ours: "Keys/limiter=shaper/keys=* B/key", Most: 185},
		// What a process allocates by itself is below a byte for each of so many keys.
		{What: fmt.Sprintf("memory left of a key %v after draining, in bytes", leftAfter), Ours: "KeysLeft/limiter=shaper/keys=* left-B/key", Most: 1},
	}
	for _, call := range []string{"Wait", "Allow"} {
		on := " on 100,000 keys, goroutines: "
		all = append(all,
			report.Goal{
				What: "conforming " + call + " with one of 1,000 keys, against one without", Most: 2,
				Ours: timingName(rivals.Ours, 1_000, call, 1), Theirs: []string{timingName(rivals.Ours, 0, call, 1)},
			},
			report.Goal{
				What: call + on + "1, against a map of x-time's", Most: 1,
				Ours: timingName(rivals.Ours, manyKeys, call, 1), Theirs: []string{timingName("x-time", manyKeys, call, 1)},
			},
			report.Goal{
				What: call + on + "64, against sethvargo", Most: 1.2,
				Ours: timingName(rivals.Ours, manyKeys, call, 64), Theirs: []string{timingName("sethvargo", manyKeys, "Take", 64)},
			})
	}
	return all
}

// timingName is the name of the lines of a call, followed by their unit.
func timingName(limiter string, keys int, call string, goroutines int) string {
	return fmt.Sprintf("Keys/limiter=%s/keys=%d/call=%s/goroutines=%d ns/call", limiter, keys, call, goroutines)
}

// picture draws the cost of a key: the first call of each limiter without a key, with few keys and
// with many, and the memory of a key.
func picture(r *report.Report, machine string) error {
	calls := report.Panel{Title: "a call that may leave at once, on one goroutine", Axis: "ns", Settings: []string{"without a key", "1,000 keys", "100,000 keys"}}
	memory := report.Panel{Title: "the memory of a key whose bucket is not drained", Axis: "bytes", Settings: []string{"1,000 keys", "100,000 keys"}}
	for _, c := range rivals.AllKeyed {
		time, bytes := report.Row{Name: c.Name}, report.Row{Name: c.Name}
		for _, keys := range []int{0, 1_000, manyKeys} {
			name, unit, _ := strings.Cut(timingName(c.Name, keys, c.Calls[0], 1), " ")
			time.Values = append(time.Values, report.Median(r.Lines, name, unit))
			if keys > 0 {
				bytes.Values = append(bytes.Values, report.Median(r.Lines, fmt.Sprintf("Keys/limiter=%s/keys=%d", c.Name, keys), "B/key"))
			}
		}
		calls.Rows, memory.Rows = append(calls.Rows, time), append(memory.Rows, bytes)
	}
	p := report.Bars{
		Name: "keys", Title: "What does a key cost?", Panels: []report.Panel{calls, memory},
		Caption: "Keys come in random order. x-time: a map of its limiters behind a mutex. " + machine + ".",
	}
	drawn, err := p.Draw(rivals.Ours)
	r.Pictures = append(r.Pictures, drawn)
	return err
}

// manyKeys is where a call is measured that has others beside it.
const manyKeys = 100_000

// keyName returns the key of a number below 10^11, of 16 bytes.
func keyName(i int) string { return fmt.Sprintf("user-%011d", i) }

// comeOnce lets the keys from one to before another come once. The rival is
// the only one that keeps their names.
func comeOnce(k rivals.Keyed, from, to int) error {
	call := k.Each[0]
	for i := from; i < to; i++ {
		if !call(keyName(i)) {
			return fmt.Errorf("key %d of %d may not leave", i, to)
		}
	}
	return nil
}

type leftInput struct {
	Limiter string
	Keys    int
	Drains  time.Duration // of each bucket, after its call
}

// A leftFound is the memory that keys take while their buckets are not drained, and the rest of it
// later, in bytes per key.
type leftFound struct {
	Full float64 `unit:"full-B/key"`
	Left float64 `unit:"left-B/key"`
}

// leftAfter is how long after the draining nothing is to be left.
const leftAfter = 2 * time.Second

var leftChild = run.NewMeasurement("keys-left", left)

// left lets all keys come once and waits. Before it looks, one more key comes, for
// those that tidy up when they are called.
func left(in leftInput) (leftFound, error) {
	before := measure.LiveHeap()
	k := rivals.KeyedNamed(in.Limiter).Open(context.Background(), in.Keys, rivals.Bucket{Every: in.Drains, Burst: 1})
	defer k.Stop()
	if err := comeOnce(k, 0, in.Keys); err != nil {
		return leftFound{}, err
	}
	drained := time.Now().Add(in.Drains)
	perKey := func() float64 { return float64(measure.LiveHeap()-before) / float64(in.Keys) }
	found := leftFound{Full: perKey()}
	time.Sleep(time.Until(drained.Add(leftAfter)))
	call := k.Each[0]
	if !call("one more") {
		return leftFound{}, errors.New("the last key may not leave")
	}
	found.Left = perKey()
	runtime.KeepAlive(call) // Otherwise a collection would take it, keys and all.
	return found, nil
}

// leftCases are measured at the same time: they do nothing for most of it, and their figures are
// not times.
func leftCases(o run.Options) (all []run.Case[leftInput]) {
	keys, drains := manyKeys, 2*time.Second
	if o.Quick {
		keys, drains = manyKeys/4, 500*time.Millisecond
	}
	for _, c := range rivals.AllKeyed {
		all = append(all, run.Case[leftInput]{
			Name:  fmt.Sprintf("KeysLeft/limiter=%s/keys=%d", c.Name, keys),
			Input: leftInput{c.Name, keys, drains}, Rounds: 1,
		})
	}
	return all
}

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
	for _, call := range k.Each {
		timings, err := measure.TimeFrom(in.Goroutines, func() func() bool { return goingRound(call, keys) }, in.Batch)
		if err != nil {
			return callsFound{}, err
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
			var rounds [][]measure.Timing
			for _, round := range r.Found {
				rounds = append(rounds, round.Timings[i])
			}
			lines = append(lines, run.TimingLines(r.Name+"/call="+call, r.Input.Goroutines, rounds)...)
		}
	}
	return lines
}
