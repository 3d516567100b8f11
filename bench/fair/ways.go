package fair

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

const (
	perSecond = 50
	burstSize = 1000
	people    = 10 // light keys
	depth     = 10_000
)

// keys are what shares the rate: the weight of each, and the largest cost of a request.
type keys struct {
	weights map[string]int
	largest int
}

// share returns the part of the rate that a key has if it is split beforehand.
func (k keys) share(key string) float64 {
	sum := 0
	for _, w := range k.weights {
		sum += w
	}
	return perSecond * float64(k.weights[key]) / float64(sum)
}

func (k keys) limits(perSecond float64) shaper.Limits {
	return shaper.Limits{Rate: rate.Limit(perSecond), Burst: k.largest, Depth: depth}
}

// A way is how keys share a rate. Its function makes what one run shares.
type way struct {
	name string
	make func(k keys) (wait func(key string, n int), stop func())
}

var ways = []way{
	{"one-line", func(k keys) (func(string, int), func()) {
		s := must(shaper.New(k.limits(perSecond)))
		return func(_ string, n int) { check(s.WaitN(context.Background(), n)) }, func() { check(s.Close()) }
	}},
	{"fair", func(k keys) (func(string, int), func()) {
		s := must(shaper.New(k.limits(perSecond), shaper.WithFairQueue(func(key string) int { return k.weights[key] })))
		return func(key string, n int) { check(s.For(key).WaitN(context.Background(), n)) }, func() { check(s.Close()) }
	}},
	{"group", func(k keys) (func(string, int), func()) {
		g := must(shaper.NewGroup(func(key string) (shaper.Limits, error) { return k.limits(k.share(key)), nil }))
		return func(key string, n int) { check(g.WaitN(context.Background(), key, n)) }, func() { check(g.Close()) }
	}},
	{"x-time", func(k keys) (func(string, int), func()) {
		all := map[string]*rate.Limiter{}
		for key := range k.weights {
			all[key] = rate.NewLimiter(rate.Limit(k.share(key)), k.largest)
		}
		return func(key string, n int) { check(all[key].WaitN(context.Background(), n)) }, func() {}
	}},
	{"round-robin", func(keys) (func(string, int), func()) {
		r := &roundRobin{lines: map[string][]pending{}}
		return r.wait, func() {}
	}},
}

// A roundRobin has a line for each key, and lets one request of each leave in turn. The next one leaves when the rate has made up for the cost of the last.
type roundRobin struct {
	mu    sync.Mutex
	free  time.Time // when the next request may leave
	lines map[string][]pending
	turns []string // keys with a line, the next first
	armed bool
}

// A pending request is in line.
type pending struct {
	cost  int
	leave chan struct{}
}

func (r *roundRobin) wait(key string, n int) {
	p := pending{n, make(chan struct{})}
	r.mu.Lock()
	if len(r.lines[key]) == 0 {
		r.turns = append(r.turns, key)
	}
	r.lines[key] = append(r.lines[key], p)
	if !r.armed {
		r.armed = true
		time.AfterFunc(time.Until(r.free), r.next)
	}
	r.mu.Unlock()
	<-p.leave
}

// next lets one request leave.
func (r *roundRobin) next() {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := r.turns[0]
	p := r.lines[key][0]
	r.turns, r.lines[key] = r.turns[1:], r.lines[key][1:]
	if len(r.lines[key]) > 0 {
		r.turns = append(r.turns, key)
	}
	close(p.leave)
	took := time.Duration(p.cost) * time.Second / perSecond
	r.free = time.Now().Add(took)
	if r.armed = len(r.turns) > 0; r.armed {
		time.AfterFunc(took, r.next)
	}
}

// Waits are what became of a burst and of calls of light keys beside it.
type Waits struct {
	Median, P99, Longest time.Duration // of the light keys
	Burst                time.Duration // until it was through
	Unused               float64       // of the rate until then, in percent
}

// besideABurst returns how long calls of light keys wait, until the burst of another is through, in the order of their calls.
func besideABurst(by way, seed uint64) (light []time.Duration, burst time.Duration, unused float64) {
	k := keys{map[string]int{"burst": 1}, 1}
	for i := range people {
		k.weights[fmt.Sprint(i)] = 1
	}
	wait, stop := by.make(k)
	defer stop()
	start := time.Now()
	var mu sync.Mutex
	left := 0
	var all, large sync.WaitGroup
	send := func(key string) (took time.Duration) {
		at := time.Now()
		wait(key, 1)
		mu.Lock()
		defer mu.Unlock()
		left++
		return time.Since(at)
	}
	for range burstSize {
		large.Go(func() { send("burst") })
	}
	through := make(chan struct{})
	all.Go(func() {
		random := rand.New(rand.NewPCG(seed, 1))
		for i := 0; ; i++ {
			select {
			case <-through:
				return
			case <-time.After(time.Duration(random.Int64N(int64(800 * time.Millisecond)))):
			}
			all.Go(func() {
				took := send(fmt.Sprint(i % people))
				mu.Lock()
				defer mu.Unlock()
				light = append(light, took)
			})
		}
	})
	large.Wait()
	burst = time.Since(start)
	mu.Lock()
	unused = max(0, 100*(1-float64(left)/(perSecond*burst.Seconds()+1))) // The first one leaves at 0.
	mu.Unlock()
	close(through)
	all.Wait()
	return light, burst, unused
}

// waitsOf returns quantiles of many waits, and means of the rest.
func waitsOf(light, bursts []time.Duration, unused float64) Waits {
	slices.Sort(light)
	at := func(q float64) time.Duration { return light[min(int(q*float64(len(light))), len(light)-1)] }
	var sum time.Duration
	for _, b := range bursts {
		sum += b
	}
	return Waits{at(0.5), at(0.99), at(1), sum / time.Duration(len(bursts)), unused}
}

// shareError returns by how many percentage points a key's share of what has left in a minute is off what its weight says.
func shareError(by way) float64 {
	const cheap, dear = "cheap", "dear" // keys
	wait, stop := by.make(keys{map[string]int{cheap: 3, dear: 1}, 8})
	defer stop()
	var mu sync.Mutex
	left := map[string]int{}
	end := time.Now().Add(time.Minute)
	var all sync.WaitGroup
	for key, cost := range map[string]int{cheap: 1, dear: 8} {
		for range 20 { // so that there is always one in line
			all.Go(func() {
				for {
					wait(key, cost)
					mu.Lock()
					if time.Now().After(end) {
						mu.Unlock()
						return
					}
					left[key] += cost
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	return math.Abs(100*float64(left[cheap])/float64(left[cheap]+left[dear]) - 75)
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

// check panics: nothing here may fail.
func check(err error) {
	if err != nil {
		panic(err)
	}
}
