// Package simulate tells how the requests of a log would have fared under rules: which would
// have waited, how long, and which would have been refused.
//
// Every key has a bucket of its own, in virtual time, with the limits that the rules give
// it. The buckets do exactly the same as the buckets of a [shaper.Group]; package
// internal/replay of the root module computes them, and its tests hold it to a Group. Some
// things are not in a log, and are not simulated:
//
//   - No client gives up while it waits, which would make room for the requests behind it.
//   - No client retries a request that the simulation refuses. Retries after failures in
//     the past are in the log.
//   - Caps on requests in flight (inflight) hold no request up. A request at another instant,
//     beside other requests, takes another time than in the log, where the durations are the
//     upstream's under the load that it had.
//   - A Group bounds its buckets ([shaper.WithMaxKeys]), and with more keys some share a bucket.
//     Here every key has its own.
//   - Every request costs 1.
package simulate

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"math/bits"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/config"
	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/internal/replay"
	"example.com/leakybucket/shaper"
)

// Options are the options of a simulation.
type Options struct {
	Candidates bool // the candidates of the rules instead of their limits
	Arrivals   bool // keep [Key.Arrivals], for searches
}

// A Simulation lets requests arrive, one after another, at the buckets of their keys.
// [New] makes one, [Simulation.Arrive] is an arrival, and [Simulation.Result] returns the fates
// of all so far. It remembers the keys and the requests in line, and all requests only
// for [Options.Arrivals]. It is for one goroutine.
type Simulation struct {
	rules   *config.Rules
	options Options

	now    time.Duration
	byRule map[string]*Rule // the rules that were met, by their keys
	result Result           // without Keys and Rules
}

// A Key is a key, and the fate of its requests.
type Key struct {
	Key  string
	Rule *Rule // nil: none matches
	Count
	Arrivals []time.Duration // since the first arrival of the log; nil unless Options.Arrivals

	bucket replay.Bucket
}

// A Rule is a rule, and the fate of its keys' requests.
type Rule struct {
	config.Rule
	Simulated shaper.Limits // or the candidate's
	Nothing   bool          // candidates are simulated, and the rule has none
	Keys      []*Key
	Count
	Waits Waits // of those that left
	Line  int   // the longest of one key

	plan *replay.Plan
}

// New returns a Simulation to which no request has come yet.
func New(rules *config.Rules, o Options) *Simulation {
	return &Simulation{rules: rules, options: o, byRule: map[string]*Rule{}, result: Result{keys: map[string]*Key{}, refused: map[string]int{}}}
}

// Arrive is the arrival of a request. Its instant must not be before the instant of the
// request before it; an earlier one counts as the same. address is the client's
// address for the export, or "".
func (s *Simulation) Arrive(at time.Time, key, address string) {
	result := &s.result
	if result.First.IsZero() {
		result.First, result.Last = at, at
	}
	if at.After(result.Last) {
		result.Last, s.now = at, at.Sub(result.First)
	}
	k := result.keys[key]
	if k == nil {
		k = &Key{Key: key, Rule: s.ruleOf(key)}
		result.keys[key] = k
		if k.Rule != nil {
			k.Rule.Keys = append(k.Rule.Keys, k)
		}
	}
	if k.Rule == nil {
		k.Requests++
		result.NoRule++
		return
	}
	if s.options.Arrivals {
		k.Arrivals = append(k.Arrivals, s.now)
	}
	fate := k.arrive(s.now)
	result.All.add(fate)
	if fate.Result != replay.Departed && address != "" {
		result.refused[address]++
	}
}

// arrive is the arrival of a request with the key, and returns its fate.
func (k *Key) arrive(now time.Duration) replay.Fate {
	r := k.Rule
	fate := k.bucket.Arrive(r.plan, now, 1)
	k.add(fate)
	r.add(fate)
	if fate.Result == replay.Departed {
		r.Waits.Add(fate.Waited)
	}
	r.Line = max(r.Line, k.bucket.Line())
	return fate
}

// ruleOf returns the rule of a key that has not come before, or nil.
func (s *Simulation) ruleOf(key string) *Rule {
	rule, ok := s.rules.Explain(key)
	if !ok {
		return nil
	}
	r := s.byRule[rule.Key]
	if r == nil {
		r = s.newRule(rule)
		r.plan = replay.NewPlan(r.Simulated)
		s.byRule[rule.Key] = r
	}
	return r
}

// newRule returns a rule that no request has met.
func (s *Simulation) newRule(rule config.Rule) *Rule {
	r := &Rule{Rule: rule, Simulated: rule.Limits}
	if s.options.Candidates {
		r.Simulated, r.Nothing = shaper.Limits{Rate: rate.Inf}, rule.Candidate == nil
		if !r.Nothing {
			r.Simulated = *rule.Candidate
		}
	}
	return r
}

// A Result is the fate of all requests. It is valid until the next arrival.
type Result struct {
	First, Last time.Time // arrivals; zero if there was none
	All         Count     // of requests that have a rule
	NoRule      int       // requests whose key no rule matches; a Group fails their calls
	Keys        int
	Rules       []*Rule // in the order of their keys, also those that no request has met

	keys    map[string]*Key
	refused map[string]int // requests by the address of the client
}

// Result returns the fate of all requests so far.
func (s *Simulation) Result() Result {
	result := s.result
	result.Keys = len(result.keys)
	for rule := range s.rules.All() {
		r := s.byRule[rule.Key]
		if r == nil {
			r = s.newRule(rule)
		}
		result.Rules = append(result.Rules, r)
	}
	return result
}

// RefusedMost returns the keys that were refused most, at most n.
func (r *Result) RefusedMost(n int) []*Key {
	return r.first(n, func(k *Key) bool { return k.Refused > 0 }, func(a, b *Key) int {
		return cmp.Or(cmp.Compare(b.Refused, a.Refused), cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Key, b.Key))
	})
}

// WaitedLongest returns the keys with the longest waits, at most n.
func (r *Result) WaitedLongest(n int) []*Key {
	return r.first(n, func(k *Key) bool { return k.Waited > 0 }, func(a, b *Key) int {
		return cmp.Or(cmp.Compare(b.Longest, a.Longest), cmp.Compare(b.TotalWait, a.TotalWait), cmp.Compare(a.Key, b.Key))
	})
}

// first returns the first n, in the order of compare, of those keys that are wanted. There
// may be many more that are not.
func (r *Result) first(n int, wanted func(*Key) bool, compare func(a, b *Key) int) []*Key {
	var some []*Key
	for _, k := range r.keys {
		if wanted(k) {
			some = append(some, k)
		}
	}
	slices.SortFunc(some, compare)
	return some[:min(n, len(some))]
}

// AddressesRefusedMost returns the addresses whose requests were refused most, at most n.
// An address may have several keys, as of several routes, and a key may have several
// addresses.
func (r *Result) AddressesRefusedMost(n int) []string {
	all := slices.SortedFunc(maps.Keys(r.refused), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.refused[b], r.refused[a]), cmp.Compare(a, b))
	})
	return all[:min(n, len(all))]
}

// A Count counts requests by their fates: each in one of AtOnce, Waited, QueueFull and
// TooLate. Its names in JSON stay as they are.
type Count struct {
	Requests  int     `json:"requests"`
	AtOnce    int     `json:"at_once"`    // left at once
	Waited    int     `json:"waited"`     // left after a wait
	Refused   int     `json:"refused"`    // QueueFull + TooLate
	QueueFull int     `json:"queue_full"` // as the line was full
	TooLate   int     `json:"too_late"`   // as the wait would have been longer than the limits allow
	TotalWait Total   `json:"total_wait_s"`
	Longest   Seconds `json:"wait_max_s"`
}

func (c *Count) add(f replay.Fate) {
	c.Requests++
	switch {
	case f.Result == replay.QueueFull:
		c.Refused++
		c.QueueFull++
	case f.Result == replay.TooLate:
		c.Refused++
		c.TooLate++
	case f.Waited > 0:
		c.Waited++
		c.TotalWait += Total(f.Waited)
		c.Longest = max(c.Longest, Seconds(f.Waited))
	default:
		c.AtOnce++
	}
}

// A Total is the sum of many waits in nanoseconds, which may exceed the 292 years of a
// [time.Duration].
type Total float64

// Mean returns the mean of n waits, and 0 of none.
func (t Total) Mean(n int) Seconds { return Seconds(float64(t) / float64(max(n, 1))) }

// MarshalJSON returns the seconds as a number.
func (t Total) MarshalJSON() ([]byte, error) { return json.Marshal(float64(t) / float64(time.Second)) }

// A Seconds is a duration that is shown with three digits, and in JSON in seconds.
type Seconds time.Duration

func (s Seconds) String() string {
	if s == 0 {
		return "0"
	}
	return limitwords.Seconds(time.Duration(s).Seconds())
}

// MarshalJSON returns the seconds as a number.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

// fineness is how many bits of a wait are kept: its bucket is narrower than 1/128 of it.
const fineness = 7

// Waits counts waits in buckets whose width grows with the wait, so that a million of
// them take no more room than a thousand. Of each bucket it remembers the longest wait, so
// its quantiles are exact where all waits of a bucket are the same, and never more than
// 0.8 % too long.
type Waits struct {
	buckets []waitBucket // by index
	n       int
}

type waitBucket struct {
	n       int
	longest time.Duration
}

// Add counts a wait.
func (w *Waits) Add(d time.Duration) {
	i := index(d)
	for len(w.buckets) <= i {
		w.buckets = append(w.buckets, waitBucket{})
	}
	b := &w.buckets[i]
	b.n++
	b.longest = max(b.longest, d)
	w.n++
}

// index returns the number of the bucket of a wait. The buckets up to 2⁸ ns are a
// nanosecond wide, and from each power of two on twice as wide.
func index(d time.Duration) int {
	shift := max(0, bits.Len64(uint64(d))-fineness-1)
	return shift<<fineness + int(d>>shift)
}

// Quantile returns a wait that a share q of all waits did not exceed: the shortest such
// wait, or up to 0.8 % more. So the longest is the quantile 1. Without waits it is 0.
func (w *Waits) Quantile(q float64) time.Duration {
	rank := max(1, int(math.Ceil(q*float64(w.n))))
	for _, b := range w.buckets {
		if rank -= b.n; rank <= 0 {
			return b.longest
		}
	}
	return 0
}
