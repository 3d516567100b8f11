// Package fair measures fair queueing: how long a key that calls now and then waits beside the burst
// of another, who gets which share, and the cost of a key in line.
package fair

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/eventclock"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/queueset"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	"k8s.io/apiserver/pkg/util/flowcontrol/request"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	order "example.com/leakybucket/internal/fair"
	"example.com/leakybucket/shaper"
)

// Experiment is "fair".
var Experiment = run.Experiment{
	Name: "fair",
	What: "how long others wait beside a burst of one key, shares, and the cost of a key in line",
	Note: "Fair: in virtual time at 50/s, a burst of 1,000 beside ten keys, of which one calls every 0.4 s on average, until the burst is through; twenty times. " +
		"unused is the part of the rate that nobody got meanwhile. one-line, fair: a Shaper. group, x-time: a bucket for each of the eleven keys at 50/11 per second; " +
		"there a light key leaves at once, and the burst takes eleven times as long. round-robin: a line for each key, of which each gives one request in turn. " +
		"queueset: k8s.io/apiserver's, with one seat, which each request keeps for its cost at the rate (AdditionalLatency), and a queue for each key; it has no weights. " +
		"FairShares: two keys that always have requests in line, one of weight 3 with requests of cost 1, one of weight 1 with requests of cost 8; " +
		"share-err is by how many percentage points the share of the first is off 75. " +
		"FairCost: 100,000 requests in line, of so many keys, beside a plain Shaper (keys=0); admission and departure include the goroutine that waits, " +
		"and its wake-up. All depart at once. Refused is a newcomer that would leave last, as the line is full. Memory is what the live heap has more than beside a plain Shaper, for each key.",
	Groups: groups,
	// Memory is beyond a plain Shaper's.
	Conclude: func(r *report.Report, _ run.Options) error {
		report.Beyond(r.Lines, "heap-B", "B/key", func(name string) (string, float64) {
			keys, _ := strconv.Atoi(strings.TrimPrefix(name, "FairCost/keys=")) // 0, where there are no keys, makes it unknown.
			return "FairCost/keys=0", float64(keys)
		})
		return nil
	},
}

const (
	perSecond = 50
	burstSize = 1000
	people    = 10 // light keys
	depth     = 10_000
)

// keys share the rate: the weight of each, and the largest cost of a request.
type keys struct {
	weights map[string]int
	largest int
}

// atTheRate returns how long n cost units take at the rate.
func atTheRate(n int) time.Duration { return time.Duration(n) * time.Second / perSecond }

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

// A way is how keys share a rate. Its function makes the limiter of one run.
type way struct {
	name string
	make func(k keys) (wait func(key string, n int), stop func())
}

var ways = []way{
	{"one-line", func(k keys) (func(string, int), func()) {
		s := rivals.Must(shaper.New(k.limits(perSecond)))
		return func(_ string, n int) { check(s.WaitN(context.Background(), n)) }, func() { check(s.Close()) }
	}},
	{"fair", func(k keys) (func(string, int), func()) {
		s := rivals.Must(shaper.New(k.limits(perSecond), shaper.WithFairQueue(func(key string) int { return k.weights[key] })))
		return func(key string, n int) { check(s.For(key).WaitN(context.Background(), n)) }, func() { check(s.Close()) }
	}},
	{"group", func(k keys) (func(string, int), func()) {
		g := rivals.Must(shaper.NewGroup(func(key string) (shaper.Limits, error) { return k.limits(k.share(key)), nil }))
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
		return new(roundRobin).wait, func() {}
	}},
	{"queueset", func(k keys) (func(string, int), func()) {
		// The seat of the last request is given up by a goroutine, which has to be gone before the bubble ends.
		return newSeat(k).wait, func() { time.Sleep(atTheRate(k.largest)) }
	}},
}

// A seat is the queueset of Kubernetes' API server with one seat. A request leaves when it gets the seat, which
// stays taken for as long as the rate needs to make up for the cost of the request.
type seat struct {
	queues  fairqueuing.QueueSet
	numbers map[string]uint64 // by which a key finds its queue
}

// newSeat deals each key a hand of one queue, of more queues than there are keys. So no two keys share
// a queue, and the burst has one only.
func newSeat(k keys) seat {
	begun := rivals.Must(queueset.NewQueueSetFactory(eventclock.Real{}).BeginConstruction(
		fairqueuing.QueuingConfig{Name: "fair", DesiredNumQueues: 64, HandSize: 1, QueueLengthLimit: depth},
		metrics.RatioedGaugePair{RequestsWaiting: unseen{}, RequestsExecuting: unseen{}}, unseen{}, unseen{},
	))
	s := seat{begun.Complete(fairqueuing.DispatchingConfig{ConcurrencyLimit: 1, ConcurrencyDenominator: 1}), map[string]uint64{}}
	for i, key := range slices.Sorted(maps.Keys(k.weights)) {
		s.numbers[key] = uint64(i)
	}
	return s
}

func (s seat) wait(key string, n int) {
	takes := request.WorkEstimate{InitialSeats: 1, FinalSeats: 1, AdditionalLatency: atTheRate(n)}
	r, _ := s.queues.StartRequest(context.Background(), &takes, s.numbers[key], key, "", nil, nil, nil)
	if r == nil {
		panic("the queue of " + key + " is full")
	}
	r.Finish(func() {})
}

// unseen is a gauge that nobody reads.
type unseen struct{}

func (unseen) Set(float64)            {}
func (unseen) Inc()                   {}
func (unseen) Dec()                   {}
func (unseen) Add(float64)            {}
func (unseen) SetToCurrentTime()      {}
func (unseen) SetDenominator(float64) {}

// A roundRobin has a line for each key, and lets one request of each leave in turn: in the order that is fair if all
// cost the same. The next one leaves when the rate has made up for the cost of the last.
type roundRobin struct {
	mu    sync.Mutex
	free  time.Time // when the next request may leave
	order order.Order[pending]
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
	r.order.Push(key, 1, 1, p)
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
	p := r.order.Head().Value
	r.order.Depart()
	close(p.leave)
	took := atTheRate(p.cost)
	r.free = time.Now().Add(took)
	if r.armed = r.order.Keys() > 0; r.armed {
		time.AfterFunc(took, r.next)
	}
}

// Waits are the times of a burst and of calls of light keys beside it.
type Waits struct {
	Median  time.Duration `unit:"wait-p50-ns"` // of the light keys, as the next two
	P99     time.Duration `unit:"wait-p99-ns"`
	Longest time.Duration `unit:"wait-longest-ns"`
	Burst   time.Duration `unit:"burst-ns"` // until it was through
	Unused  float64       `unit:"unused-%"` // of the rate until then
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

// waitsOf lets bursts come, one by one, each in a bubble of virtual time. It returns quantiles of all waits beside them, and means of the rest.
func waitsOf(t *testing.T, by way, times int) (found Waits) {
	var all []time.Duration
	for seed := range times {
		synctest.Test(t, func(*testing.T) {
			light, burst, unused := besideABurst(by, uint64(seed))
			all = append(all, light...)
			found.Burst += burst / time.Duration(times)
			found.Unused += unused / float64(times)
		})
	}
	slices.Sort(all)
	at := func(q float64) time.Duration { return all[min(int(q*float64(len(all))), len(all)-1)] }
	found.Median, found.P99, found.Longest = at(0.5), at(0.99), at(1)
	return found
}

func shareOf(t *testing.T, by way) (found report.Figure) {
	synctest.Test(t, func(*testing.T) { found = report.Figure{Value: shareError(by), Unit: "share-err-%"} })
	return found
}

// shareError returns the difference between a key's share of the departures in a minute of virtual time and the
// share by its weight, in percentage points.
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

// check panics: nothing here may fail.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// A costFound is the cost of a request in line, and the memory of the keys.
type costFound struct {
	Admission float64 `unit:"admission-ns"`
	Refusal   float64 `unit:"refusal-ns"`
	Departure float64 `unit:"departure-ns"`
	Heap      float64 `unit:"heap-B"` // with all in line
}

// cost fills a line with requests of so many keys, or 0 for a plain Shaper, asks for more, and lets all leave at once.
func cost(t *testing.T, keys, waiting int) (found costFound) {
	closed := shaper.Limits{Rate: rate.Every(time.Minute), Depth: waiting}
	var opts []shaper.Option
	if keys > 0 {
		opts = append(opts, shaper.WithFairQueue(nil))
	}
	names := make([]string, max(1, keys))
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	before := measure.LiveHeap()
	s := rivals.Must(shaper.New(closed, opts...))
	defer s.Close()
	ctx := context.Background()
	check(s.Wait(ctx)) // The first one leaves, and the line begins behind it.
	var all sync.WaitGroup
	start := time.Now()
	for i := range waiting {
		all.Go(func() { check(s.For(names[i%len(names)]).Wait(ctx)) })
	}
	for s.Stats().Waiting < waiting {
		time.Sleep(time.Millisecond)
	}
	found.Admission = perCall(start, waiting)
	found.Heap = float64(measure.LiveHeap() - before)

	const refusals = 100_000
	start = time.Now()
	for range refusals {
		// A key that has a request in line would leave last with one more.
		if err := s.For(names[0]).Wait(ctx); !errors.Is(err, shaper.ErrQueueFull) {
			t.Fatalf("not refused for places: %v", err)
		}
	}
	found.Refusal = perCall(start, refusals)

	start = time.Now()
	closed.Rate = rate.Inf
	check(s.SetLimits(closed))
	all.Wait()
	found.Departure = perCall(start, waiting)
	return found
}

func perCall(since time.Time, calls int) float64 {
	return float64(time.Since(since).Nanoseconds()) / float64(calls)
}

// groups are bursts and shares in virtual time, whose figures are the same on every machine, and lines of one length with requests of so many keys.
func groups(o run.Options) []run.Group {
	const waiting = 100_000
	times := 20
	if o.Quick {
		times = 2
	}
	var virtual, costs []run.Case
	for _, by := range ways {
		virtual = append(virtual,
			run.One("Fair/limiter="+by.name, 1, func(t *testing.T) Waits { return waitsOf(t, by, times) }),
			run.One("FairShares/limiter="+by.name, 1, func(t *testing.T) report.Figure { return shareOf(t, by) }))
	}
	for _, keys := range []int{0, 1, 1000, waiting} {
		costs = append(costs, run.One(fmt.Sprintf("FairCost/keys=%d", keys), o.Times(5, 1), func(t *testing.T) costFound { return cost(t, keys, waiting) }))
	}
	return []run.Group{{Cases: virtual}, {Cases: costs}}
}
