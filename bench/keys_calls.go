package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"
)

// manyKeys is where a call is measured that has others beside it.
const manyKeys = 100_000

// keysGoroutines are how many call at once, with one key and with manyKeys.
var keysGoroutines = []int{1, 2, 64}

// A keysResult is what one call costs with so many keys, each of which has come
// before, and what a key takes.
type keysResult struct {
	Contestant string            `json:"contestant"`
	Call       string            `json:"call"`
	Keys       int               `json:"keys"` // 0: it takes no key
	Bytes      float64           `json:"bytes_per_key,omitempty"`
	FirstKiB   float64           `json:"first_key_kib,omitempty"` // it takes by itself, with one key
	ByCallers  []admissionTiming `json:"by_goroutines"`
}

// ns is the time of a call of one goroutine that has nobody beside it.
func (r keysResult) ns() float64 { return r.ByCallers[0].NsPerCall }

type keysInput struct {
	Contestant string
	Keys       int // 0: what it has for one key that it need not be told
	Goroutines []int
	Batch      time.Duration // for how long each number of goroutines calls
}

// keysFound is what a cell finds: what the contestant takes of the heap with its
// first key, in KiB, and each other key, in bytes; and the timings by call and number
// of goroutines.
type keysFound struct {
	FirstKiB float64
	Bytes    float64
	Timings  [][]admissionTiming
}

// keysCell lets all keys come once, looks how much memory they take, and then
// measures the calls, with the keys in an order that is the same for all.
func keysCell(in keysInput) (keysFound, error) {
	c, err := keyedContestantNamed(in.Contestant)
	if err != nil {
		return keysFound{}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var (
		found keysFound
		k     keyed
		round = 1_000 // of keys, where they don't matter
	)
	if in.Keys == 0 {
		k, err = c.alone(ctx, keptBucket(0))
	} else {
		round = in.Keys
		before := liveHeap()
		if k, err = c.open(ctx, in.Keys, keptBucket(in.Keys)); err == nil {
			err = keysCome(k, 0, 1)
		}
		first := liveHeap()
		if err == nil {
			err = keysCome(k, 1, in.Keys)
		}
		found.FirstKiB = float64(first-before) / (1 << 10)
		found.Bytes = float64(liveHeap()-first) / float64(max(1, in.Keys-1))
	}
	if err != nil {
		return keysFound{}, err
	}
	defer k.stop()
	keys := shuffledKeys(round)
	for _, each := range k.each {
		var timings []admissionTiming
		for _, goroutines := range in.Goroutines {
			t, err := timeCalls(func() func() bool { return goingRound(each(), keys) }, goroutines, in.Batch)
			if err != nil {
				return keysFound{}, fmt.Errorf("%d goroutines: %w", goroutines, err)
			}
			timings = append(timings, t)
		}
		found.Timings = append(found.Timings, timings)
	}
	return found, nil
}

// keptBucket is one that no call finds drained, and that lets all leave at once:
// each call adds so much that it lasts until the key comes again. Where few keys
// come often it adds less, as a bucket may not take more than a year to drain.
func keptBucket(keys int) keyedBucket {
	if keys <= 1 {
		return keyedBucket{every: 100 * time.Millisecond, burst: 300_000_000}
	}
	return keyedBucket{every: time.Minute, burst: 500_000}
}

// keysCome lets the keys from one to before another come once. We keep none of their
// names.
func keysCome(k keyed, from, to int) error {
	call := k.each[0]()
	for i := from; i < to; i++ {
		if !call(keyName(i)) {
			return fmt.Errorf("key %d of %d may not leave", i, to)
		}
	}
	return nil
}

// shuffledKeys are the names of so many keys, in an order that is always the same.
func shuffledKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = keyName(i)
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys
}

// goingRound calls with one key after the other, from anywhere on.
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

// keyName is the key of a number below 10^11, of 16 bytes.
func keyName(i int) string {
	name := []byte("user-00000000000")
	for at := len(name) - 1; i > 0; at-- {
		name[at] = byte('0' + i%10)
		i /= 10
	}
	return string(name)
}

// liveHeap is the memory that the collector leaves.
func liveHeap() int64 {
	// The second time it takes what pools have kept over the first.
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// keysCounts are with how many keys calls are measured; 0 is without one.
func keysCounts(o options) []int {
	if o.quick {
		return []int{0, 1, 1_000, manyKeys}
	}
	return []int{0, 1, 1_000, 10_000, manyKeys, 1_000_000}
}

// measureKeysCalls measures all contestants.
func measureKeysCalls(ctx context.Context, o options, times int) ([]keysResult, error) {
	batch := 30 * time.Millisecond
	if o.quick {
		batch = 5 * time.Millisecond
	}
	var inputs []keysInput
	for _, keys := range keysCounts(o) {
		goroutines := keysGoroutines[:1]
		if keys == 1 || keys == manyKeys {
			goroutines = keysGoroutines
		}
		for _, c := range keyedContestants {
			if keys > 0 || c.alone != nil {
				inputs = append(inputs, keysInput{c.name, keys, goroutines, batch})
			}
		}
	}
	found := make([][]keysFound, len(inputs)) // by round
	for round := range times {
		for i, in := range inputs {
			o.say("calls, round %d of %d: %s with %s", round+1, times, in.Contestant, counted(in.Keys, "key"))
			var one keysFound
			if err := measureCell(ctx, "keys", in, &one); err != nil {
				return nil, err
			}
			found[i] = append(found[i], one)
		}
	}
	var results []keysResult
	for i, in := range inputs {
		results = append(results, keysMedians(in, found[i])...)
	}
	return results, nil
}

// keysMedians sums up the rounds of one contestant with so many keys. Allocations
// are the largest number of any round.
func keysMedians(in keysInput, rounds []keysFound) []keysResult {
	c, err := keyedContestantNamed(in.Contestant)
	if err != nil {
		panic(err) // It has been measured.
	}
	var bytes, first []float64
	for _, one := range rounds {
		bytes, first = append(bytes, one.Bytes), append(first, one.FirstKiB)
	}
	var results []keysResult
	for call, name := range c.calls {
		r := keysResult{Contestant: c.name, Call: name, Keys: in.Keys, Bytes: median(bytes...), FirstKiB: median(first...)}
		for g, goroutines := range in.Goroutines {
			t := admissionTiming{Goroutines: goroutines}
			var ns []float64
			for _, one := range rounds {
				ns = append(ns, one.Timings[call][g].NsPerCall)
				t.Allocs = max(t.Allocs, one.Timings[call][g].Allocs)
			}
			t.NsPerCall = median(ns...)
			r.ByCallers = append(r.ByCallers, t)
		}
		results = append(results, r)
	}
	return results
}

// keysOf finds the result of a call with so many keys.
func keysOf(results []keysResult, contestant, call string, keys int) (keysResult, bool) {
	i := slices.IndexFunc(results, func(r keysResult) bool {
		return r.Contestant == contestant && r.Call == call && r.Keys == keys
	})
	if i < 0 {
		return keysResult{}, false
	}
	return results[i], true
}

// keysCountsOf are the numbers of keys, from fewest on, that are more than one.
func keysCountsOf(results []keysResult) []int {
	var counts []int
	for _, r := range results {
		if r.Keys > 1 && !slices.Contains(counts, r.Keys) {
			counts = append(counts, r.Keys)
		}
	}
	slices.Sort(counts)
	return counts
}
