package simulate

import (
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/config"
	"example.com/leakybucket/internal/replay"
	"example.com/leakybucket/shaper"
)

// Options are the options of a simulation.
type Options struct {
	Candidates bool // the candidates of the rules instead of their limits
	Series     bool // keep [Rule.Series], for pictures
}

// A Simulation lets requests arrive, one after another, at the buckets of their keys.
// [New] makes one, [Simulation.Arrive] is an arrival, and [Simulation.Result] says what
// became of all so far. It remembers the keys and the requests in line, not all requests.
// It is for one goroutine.
type Simulation struct {
	rules   *config.Rules
	options Options

	first, last time.Time // arrivals
	now         time.Duration
	clock       *clock // nil: no series are kept

	byRule map[string]*ruleState // the rules that were met, by their keys
	keys   map[string]*keyState
	noRule Count // only Requests

	refused map[string]int // requests by the address of the client
}

// A keyState is a key, its bucket and the fate of its requests.
type keyState struct {
	name   string
	rule   *ruleState // nil: none matches
	bucket replay.Bucket
	count  Count
}

// A ruleState is a rule, and the fate of its keys' requests.
type ruleState struct {
	rule    config.Rule
	limits  shaper.Limits // or the candidate's
	plan    *replay.Plan
	keys    int
	count   Count
	waits   Waits
	longest int // line of one key
	series  *Series
}

// New returns a Simulation to which no request has come yet.
func New(rules *config.Rules, o Options) *Simulation {
	s := &Simulation{rules: rules, options: o, byRule: map[string]*ruleState{}, keys: map[string]*keyState{}, refused: map[string]int{}}
	if o.Series {
		s.clock = newClock()
	}
	return s
}

// Arrive is the arrival of a request. Its instant must not be before the instant of the
// request before it; if it is, it is taken for the same. address is the client's
// address, as it is to be exported, or "".
func (s *Simulation) Arrive(at time.Time, key, address string) {
	if s.first.IsZero() {
		s.first, s.last = at, at
	}
	if at.After(s.last) {
		s.last, s.now = at, at.Sub(s.first)
	}
	k := s.keys[key]
	if k == nil {
		k = &keyState{name: key, rule: s.ruleOf(key)}
		s.keys[key] = k
		if k.rule != nil {
			k.rule.keys++
		}
	}
	if k.rule == nil {
		k.count.Requests++
		s.noRule.Requests++
		return
	}
	if fate := k.arrive(s.now); fate.Result != replay.Departed && address != "" {
		s.refused[address]++
	}
}

// arrive is the arrival of a request with the key, and returns its fate.
func (k *keyState) arrive(now time.Duration) replay.Fate {
	r := k.rule
	fate := k.bucket.Arrive(r.plan, now, 1)
	k.count.add(fate)
	r.count.add(fate)
	if fate.Result == replay.Departed {
		r.waits.Add(fate.Waited)
	}
	r.longest = max(r.longest, k.bucket.Line())
	if r.series != nil {
		r.series.add(now, fate)
	}
	return fate
}

// ruleOf returns the rule of a key that has not come before, or nil.
func (s *Simulation) ruleOf(key string) *ruleState {
	rule, ok := s.rules.Explain(key)
	if !ok {
		return nil
	}
	r := s.byRule[rule.Key]
	if r == nil {
		r = s.newRuleState(rule)
		r.plan = replay.NewPlan(r.limits)
		if s.clock != nil {
			r.series = s.clock.newSeries()
		}
		s.byRule[rule.Key] = r
	}
	return r
}

// newRuleState returns the state of a rule that no request has met.
func (s *Simulation) newRuleState(rule config.Rule) *ruleState {
	r := &ruleState{rule: rule, limits: rule.Limits}
	if s.options.Candidates {
		r.limits = shaper.Limits{Rate: rate.Inf}
		if rule.Candidate != nil {
			r.limits = *rule.Candidate
		}
	}
	return r
}
