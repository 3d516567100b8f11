// Package keys measures the cost of a bucket for each key: memory, and the time of a call.
package keys

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	Goals: goals,
	Groups: func(o run.Options) []run.Group {
		return []run.Group{{Cases: callCases(o)}, {Cases: leftCases(o), AtOnce: true}}
	},
	Conclude: conclude,
}

// goals bound the memory of a key, hold calls with one of few keys against calls without, and
// calls with many keys against rivals: of one goroutine, where locks cost little, and of 64.
var goals = []report.Goal{
	{What: "memory of a bucket without waiters, one of $1, with a key of 16 bytes, in bytes", Ours: "Keys/limiter=shaper/keys=([^/]*) B/key", Most: 185},
	// The process's own allocations are below a byte for each of so many keys.
	{What: fmt.Sprintf("memory left of a key %v after draining, in bytes", leftAfter), Ours: "KeysLeft/limiter=shaper/keys=.* left-B/key", Most: 1},
	{
		What: "conforming $1 with one of 1,000 keys, against one without", Most: 2,
		Ours: "Keys/limiter=shaper/keys=1000/call=(.*)/goroutines=1 ns/call", Theirs: []string{"Keys/limiter=shaper/keys=0/call=$1/goroutines=1 ns/call"},
	},
	{
		What: "$1 on 100,000 keys, goroutines: 1, against a map of x-time's", Most: 1,
		Ours: "Keys/limiter=shaper/keys=100000/call=(.*)/goroutines=1 ns/call", Theirs: []string{"Keys/limiter=x-time/keys=100000/call=$1/goroutines=1 ns/call"},
	},
	{
		What: "$1 on 100,000 keys, goroutines: 64, against sethvargo", Most: 1.2,
		Ours: "Keys/limiter=shaper/keys=100000/call=(.*)/goroutines=64 ns/call", Theirs: []string{"Keys/limiter=sethvargo/keys=100000/call=Take/goroutines=64 ns/call"},
	},
}

// conclude puts the memory of all before their calls, and draws the cost of a key: the first call of each limiter
// without a key, with few keys and with many, and the memory of a key.
func conclude(r *report.Report, o run.Options) error {
	isCall := func(l report.Line) bool { return strings.Contains(l.Name, "/call=") }
	r.Lines = append(slices.DeleteFunc(slices.Clone(r.Lines), isCall), slices.DeleteFunc(r.Lines, func(l report.Line) bool { return !isCall(l) })...)
	counts := []int{0, 1_000, manyKeys}
	return r.DrawBars(report.Bars{
		Name: "keys", Title: "What does a key cost?",
		Caption: "Keys come in random order. x-time: a map of its limiters behind a mutex. " + o.Machine + ".",
		Panels: []report.Panel{{
			Title: "a call that may leave at once, on one goroutine", Axis: "ns", Limiters: rivals.KeyedNames, Settings: []string{"without a key", "1,000 keys", "100,000 keys"},
			Figure: func(limiter string, i int) float64 {
				return report.Median(r.Lines, fmt.Sprintf("%s/call=%s/goroutines=1", nameOf(limiter, counts[i]), rivals.KeyedRivals[limiter].Calls[0]), "ns/call")
			},
		}, {
			Title: "the memory of a key whose bucket is not drained", Axis: "bytes", Limiters: rivals.KeyedNames, Settings: []string{"1,000 keys", "100,000 keys"},
			Figure: func(limiter string, i int) float64 {
				return report.Median(r.Lines, nameOf(limiter, counts[i+1]), "B/key")
			},
		}},
	}, rivals.Ours)
}

func nameOf(limiter string, keys int) string {
	return fmt.Sprintf("Keys/limiter=%s/keys=%d", limiter, keys)
}

// manyKeys is where a call is measured that has others beside it.
const manyKeys = 100_000

// keyName returns the key of a number below 10^11, of 16 bytes.
func keyName(i int) string { return fmt.Sprintf("user-%011d", i) }

// comeOnce lets the keys from one to before another come once. The rival is
// the only one that keeps their names.
func comeOnce(t *testing.T, k rivals.Keyed, from, to int) {
	call := k.Each[0]
	for i := from; i < to; i++ {
		if !call(keyName(i)) {
			t.Fatalf("key %d of %d may not leave", i, to)
		}
	}
}

// A leftFound is the memory that keys take while their buckets are not drained, and the rest of it
// later, in bytes per key.
type leftFound struct {
	Full float64 `unit:"full-B/key"`
	Left float64 `unit:"left-B/key"`
}

// leftAfter is how long after the draining nothing is to be left.
const leftAfter = 2 * time.Second

// left lets all keys come once and waits. Before it looks, one more key comes, for
// those that tidy up when they are called. A bucket drains in some time after its call.
func left(t *testing.T, limiter string, keys int, drains time.Duration) leftFound {
	before := measure.LiveHeap()
	k := rivals.KeyedRivals[limiter].Open(t.Context(), keys, rivals.Bucket{Every: drains, Burst: 1})
	defer k.Stop()
	comeOnce(t, k, 0, keys)
	drained := time.Now().Add(drains)
	perKey := func() float64 { return float64(measure.LiveHeap()-before) / float64(keys) }
	found := leftFound{Full: perKey()}
	time.Sleep(time.Until(drained.Add(leftAfter)))
	call := k.Each[0]
	require.True(t, call("one more"), "the last key may leave")
	found.Left = perKey()
	runtime.KeepAlive(call) // Otherwise a collection would take it, keys and all.
	return found
}

// leftCases are measured at the same time: they do nothing for most of it, and their figures are
// not times.
func leftCases(o run.Options) (all []run.Case) {
	keys, drains := manyKeys, 2*time.Second
	if o.Quick {
		keys, drains = manyKeys/4, 500*time.Millisecond
	}
	for _, name := range rivals.KeyedNames {
		all = append(all, run.One(fmt.Sprintf("KeysLeft/limiter=%s/keys=%d", name, keys), 1,
			func(t *testing.T) leftFound { return left(t, name, keys, drains) }))
	}
	return all
}

// goroutines are how many call at once with manyKeys.
var goroutines = []int{1, 2, 64}

// A kind is a limiter with so many keys that have all come before.
type kind struct {
	limiter    string
	keys       int // at least 2; 0: the limiter for callers without a key
	goroutines []int
	procs      int // GOMAXPROCS
}

// A memory is the heap that a limiter takes with its first key, and for each other key.
type memory struct {
	FirstKiB float64 `unit:"once-KiB"`
	Bytes    float64 `unit:"B/key"`
}

// measure lets all keys come once, looks how much memory they take, and then
// measures the calls, with the keys in an order that is the same for all.
func (d kind) measure(t *testing.T, name string, batch time.Duration) (lines []report.Line) {
	c := rivals.KeyedRivals[d.limiter]
	runtime.GOMAXPROCS(d.procs)
	var k rivals.Keyed
	round := 1_000 // of keys, where they don't matter
	if d.keys == 0 {
		k = c.Alone(t.Context(), keptBucket(0))
	} else {
		round = d.keys
		before := measure.LiveHeap()
		k = c.Open(t.Context(), d.keys, keptBucket(d.keys))
		comeOnce(t, k, 0, 1)
		first := measure.LiveHeap()
		comeOnce(t, k, 1, d.keys)
		found := memory{float64(first-before) / (1 << 10), float64(measure.LiveHeap()-first) / float64(d.keys-1)}
		lines = append(lines, report.LineOf(name, found))
	}
	defer k.Stop()
	keys := shuffledKeys(round)
	for i, call := range k.Each {
		each := func() func() bool { return goingRound(call, keys) }
		lines = append(lines, run.Timed(t, name+"/call="+c.Calls[i], d.goroutines, each, batch)...)
	}
	return lines
}

// keptBucket returns a bucket that no call finds drained, and that lets all leave at
// once: each call adds so much that it lasts until the key comes again. A limiter without
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

func callCases(o run.Options) (cases []run.Case) {
	batch, counts := 30*time.Millisecond, []int{0, 1_000, 10_000, manyKeys, 1_000_000} // a batch for each number of goroutines
	if o.Quick {
		batch, counts = 5*time.Millisecond, []int{0, 1_000, manyKeys}
	}
	add := func(d kind, name string) {
		cases = append(cases, run.Case{
			Name: name, Rounds: o.Times(3, 1),
			Measure: func(t *testing.T) []report.Line { return d.measure(t, name, batch) },
		})
	}
	procs := runtime.GOMAXPROCS(0)
	for _, keys := range counts {
		many := goroutines[:1]
		if keys == manyKeys {
			many = goroutines
		}
		for _, name := range rivals.KeyedNames {
			if keys > 0 || rivals.KeyedRivals[name].Alone != nil {
				add(kind{name, keys, many, procs}, nameOf(name, keys))
			}
		}
	}
	for fewer := 1; fewer < procs; fewer *= 2 {
		for _, name := range rivals.KeyedNames {
			add(kind{name, manyKeys, goroutines[len(goroutines)-1:], fewer}, fmt.Sprintf("%s/procs=%d", nameOf(name, manyKeys), fewer))
		}
	}
	return cases
}
