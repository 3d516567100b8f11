package simulate

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"example.com/leakybucket/config"
	"example.com/leakybucket/shaper"
)

// A Result is what became of all requests. It is valid until the next arrival.
type Result struct {
	First, Last time.Time // arrivals; zero if there was none
	All         Count     // of requests that have a rule
	NoRule      int       // requests whose key no rule matches; a Group fails their calls
	Keys        int
	Rules       []Rule // in the order of their keys, also those that no request has met
	keys        map[string]*keyState
	refused     map[string]int // requests by address
}

// A Rule is a rule, and what its keys have met.
type Rule struct {
	config.Rule
	Simulated shaper.Limits // or those of the candidate
	Keys      int
	Count
	Waits   *Waits  // of those that left
	Line    int     // the longest of one key
	Series  *Series // nil unless Options.Series, and if no request has met the rule
	Nothing bool    // candidates are simulated, and the rule has none
}

// A Key is a key, and what it has met.
type Key struct {
	Key  string
	Rule string // its key
	Count
}

// Result returns what became of all requests so far.
func (s *Simulation) Result() Result {
	result := Result{First: s.first, Last: s.last, NoRule: s.noRule.Requests, Keys: len(s.keys), keys: s.keys, refused: s.refused}
	for rule := range s.rules.All() {
		r := s.byRule[rule.Key]
		if r == nil {
			r = s.newRuleState(rule)
		}
		result.All.plus(r.count)
		result.Rules = append(result.Rules, Rule{
			Rule: r.rule, Simulated: r.limits, Keys: r.keys, Count: r.count, Waits: &r.waits, Line: r.longest, Series: r.series,
			Nothing: s.options.Candidates && r.rule.Candidate == nil,
		})
	}
	return result
}

// RefusedMost returns the keys that were refused most, at most n.
func (r *Result) RefusedMost(n int) []Key {
	return r.first(n, func(k *keyState) bool { return k.count.Refused() > 0 }, func(a, b *keyState) int {
		return cmp.Or(cmp.Compare(b.count.Refused(), a.count.Refused()), cmp.Compare(b.count.Requests, a.count.Requests), cmp.Compare(a.name, b.name))
	})
}

// WaitedLongest returns the keys with the longest waits, at most n.
func (r *Result) WaitedLongest(n int) []Key {
	return r.first(n, func(k *keyState) bool { return k.count.Waited > 0 }, func(a, b *keyState) int {
		return cmp.Or(cmp.Compare(b.count.Longest, a.count.Longest), cmp.Compare(b.count.TotalWait, a.count.TotalWait), cmp.Compare(a.name, b.name))
	})
}

// first returns the first n, in the order of compare, of those keys that are wanted. There
// may be many more that are not.
func (r *Result) first(n int, wanted func(*keyState) bool, compare func(a, b *keyState) int) []Key {
	var some []*keyState
	for _, k := range r.keys {
		if wanted(k) {
			some = append(some, k)
		}
	}
	slices.SortFunc(some, compare)
	var all []Key
	for _, k := range some[:min(n, len(some))] {
		all = append(all, Key{k.name, k.rule.rule.Key, k.count})
	}
	return all
}

// AddressesRefusedMost returns the addresses whose requests were refused most, at most n.
// An address may be that of several keys, as of several routes, and a key may be that of
// several addresses.
func (r *Result) AddressesRefusedMost(n int) []string {
	all := slices.SortedFunc(maps.Keys(r.refused), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.refused[b], r.refused[a]), cmp.Compare(a, b))
	})
	return all[:min(n, len(all))]
}
