package find

import (
	"time"

	"example.com/leakybucket/config"
)

// Arrivals are the requests of a log, by rule and by key, for searches. They are kept in
// memory: 8 bytes for each request, up to twice as many while they are added, and some
// 200 bytes for each key. [NewArrivals] makes them. They are for one goroutine.
type Arrivals struct {
	rules *config.Rules

	first, last time.Time
	noRule      int
	byRule      map[string]*Rule
	keys        map[string]*keyArrivals
}

// A keyArrivals are the requests of a key.
type keyArrivals struct {
	rule *Rule           // nil: none matches the key
	at   []time.Duration // since the first arrival of the log
}

// A Rule is a rule, with the arrivals of its keys.
type Rule struct {
	config.Rule
	Requests int

	keys []*keyArrivals
}

// NewArrivals returns Arrivals to which no request has come yet.
func NewArrivals(rules *config.Rules) *Arrivals {
	return &Arrivals{rules: rules, byRule: map[string]*Rule{}, keys: map[string]*keyArrivals{}}
}

// Add adds an arrival. Its instant must not be before that of the arrival before it; if it
// is, it is taken for the same.
func (a *Arrivals) Add(at time.Time, key string) {
	if a.first.IsZero() {
		a.first, a.last = at, at
	}
	if at.After(a.last) {
		a.last = at
	}
	k := a.keys[key]
	if k == nil {
		k = &keyArrivals{rule: a.ruleOf(key)}
		a.keys[key] = k
		if k.rule != nil {
			k.rule.keys = append(k.rule.keys, k)
		}
	}
	if k.rule == nil {
		a.noRule++
		return
	}
	k.rule.Requests++
	k.at = append(k.at, a.last.Sub(a.first))
}

// ruleOf returns the rule of a key that has not come before, or nil.
func (a *Arrivals) ruleOf(key string) *Rule {
	rule, ok := a.rules.Explain(key)
	if !ok {
		return nil
	}
	r := a.byRule[rule.Key]
	if r == nil {
		r = &Rule{Rule: rule}
		a.byRule[rule.Key] = r
	}
	return r
}

// Span returns the first and the last arrival; zero if there was none.
func (a *Arrivals) Span() (first, last time.Time) { return a.first, a.last }

// Keys returns how many keys have come.
func (a *Arrivals) Keys() int { return len(a.keys) }

// NoRule returns how many requests had a key that no rule matches.
func (a *Arrivals) NoRule() int { return a.noRule }

// Rules returns the rules in the order of their keys, also those that no request has met.
func (a *Arrivals) Rules() []*Rule {
	var all []*Rule
	for rule := range a.rules.All() {
		r := a.byRule[rule.Key]
		if r == nil {
			r = &Rule{Rule: rule}
		}
		all = append(all, r)
	}
	return all
}

// Keys returns how many keys of the rule have come.
func (r *Rule) Keys() int { return len(r.keys) }
