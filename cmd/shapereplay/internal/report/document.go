// Package report prints the results of a replay or a search: as tables, as JSON, and as a list of addresses.
package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
	"example.com/leakybucket/cmd/shapereplay/internal/find"
	"example.com/leakybucket/cmd/shapereplay/internal/simulate"
)

// A Document is the whole report. Its names in JSON stay as they are; others may be
// added.
type Document struct {
	Requests    int        `json:"requests"` // that a rule matches
	From        *time.Time `json:"from"`     // the first arrival; null: there is none
	To          *time.Time `json:"to"`
	Key         string     `json:"key"`  // the parts of the keys
	Keys        int        `json:"keys"` // how many there are
	NoRule      int        `json:"no_rule"`
	Candidates  bool       `json:"candidates"`
	Interrupted bool       `json:"interrupted"`
	Goal        string     `json:"goal"` // "" without a search

	Rules         []Rule  `json:"rules"` // without a search
	RefusedMost   []Key   `json:"refused_most"`
	WaitedLongest []Key   `json:"waited_longest"`
	Found         []Found `json:"found"` // by a search

	Notes []string `json:"notes"`
	Log   Log      `json:"log"`
}

// A Rule is a rule, and the fate of the requests of its keys. The waits count the requests that
// left, also those that left at once.
type Rule struct {
	Rule   string `json:"rule"` // "" is the default
	File   string `json:"file"`
	Line   int    `json:"line"`
	Limits string `json:"limits"` // that were replayed; "": a candidate that is not there
	Keys   int    `json:"keys"`
	simulate.Count
	WaitP50 simulate.Seconds `json:"wait_p50_s"`
	WaitP95 simulate.Seconds `json:"wait_p95_s"`
	WaitP99 simulate.Seconds `json:"wait_p99_s"`
	LineMax int              `json:"line_max"` // of one key
}

// A Key is a key, and the fate of its requests.
type Key struct {
	Key  string `json:"key"` // cut as [accesslog.ShortName] does
	Rule string `json:"rule"`
	simulate.Count
}

// A Found is the result of a search for a rule.
type Found struct {
	Rule     string       `json:"rule"`
	File     string       `json:"file"`
	Line     int          `json:"line"`
	Keys     int          `json:"keys"`
	Requests int          `json:"requests"`
	Now      find.Outcome `json:"now"`
	Found    find.Outcome `json:"found"` // empty if nothing was found
}

// Replay returns a document of a replay, with the keys that were refused most and the keys that
// waited longest.
func Replay(r simulate.Result, candidates bool, keys int) *Document {
	d := newDocument(r)
	d.Candidates = candidates
	without := 0
	for _, rule := range r.Rules {
		shown := Rule{
			Rule: rule.Key, File: rule.File, Line: rule.Rule.Line, Limits: rule.Simulated.String(), Keys: len(rule.Keys), Count: rule.Count,
			WaitP50: simulate.Seconds(rule.Waits.Quantile(0.50)), WaitP95: simulate.Seconds(rule.Waits.Quantile(0.95)), WaitP99: simulate.Seconds(rule.Waits.Quantile(0.99)),
			LineMax: rule.Line,
		}
		if rule.Nothing {
			shown.Limits = ""
			without += rule.Requests
		}
		if rule.Requests > 0 {
			d.noteInFlight(rule.Key, rule.Simulated.InFlight)
		}
		d.Rules = append(d.Rules, shown)
	}
	if without > 0 {
		d.Note("the rules of %s have no candidate: here these leave at once", Count(without, "request"))
	}
	d.RefusedMost, d.WaitedLongest = keysOf(r.RefusedMost(keys)), keysOf(r.WaitedLongest(keys))
	return d
}

func keysOf(all []*simulate.Key) []Key {
	shown := []Key{}
	for _, k := range all {
		shown = append(shown, Key{accesslog.ShortName(k.Key), k.Rule.Key, k.Count})
	}
	return shown
}

// Search returns a document of a search among the rules of a result, which may have been interrupted.
func Search(r simulate.Result, goal string, all []find.Found) *Document {
	d := newDocument(r)
	d.Goal = goal
	for _, f := range all {
		shown := Found{
			Rule: f.Rule.Key, File: f.Rule.File, Line: f.Rule.Rule.Line, Keys: len(f.Rule.Keys), Requests: f.Rule.Requests,
			Now: find.Outcome{Limits: f.Rule.Limits.String(), Refused: f.Rule.Refused, Longest: f.Rule.Longest, Line: f.Rule.Line}, Found: f.Outcome,
		}
		d.Found = append(d.Found, shown)
		if f.Rule.Requests == 0 {
			continue
		}
		d.noteInFlight(f.Rule.Key, f.Rule.Limits.InFlight)
		switch {
		case !f.OK:
			d.Note("%s: no rate keeps to it: too many requests came at the same instant; a wait, more burst or -spread may help", ruleName(f.Rule.Key))
		case f.Lowest:
			what := "its burst alone is enough for each key of this log"
			if slices.ContainsFunc(f.Rule.Keys, func(k *simulate.Key) bool { return k.Requests > max(f.Limits.Burst, 1) }) {
				what = "a lower one may keep to the goal, too"
			}
			d.Note("%s: %s is the lowest rate that is tried; %s", ruleName(f.Rule.Key), f.Outcome.Limits, what)
		}
	}
	return d
}

// newDocument returns a document that says how much was replayed, and nothing else. Its arrays are never null in JSON.
func newDocument(r simulate.Result) *Document {
	d := &Document{
		Requests: r.All.Requests, Keys: r.Keys, NoRule: r.NoRule,
		Rules: []Rule{}, RefusedMost: []Key{}, WaitedLongest: []Key{}, Found: []Found{}, Notes: []string{},
	}
	if !r.First.IsZero() {
		first, last := r.First.UTC(), r.Last.UTC()
		d.From, d.To = &first, &last
	}
	if r.NoRule > 0 {
		d.Note("no rule matches the key of %s, and there is no default: a Group fails such calls", Count(r.NoRule, "request"))
	}
	return d
}

// Note adds a note.
func (d *Document) Note(format string, args ...any) {
	d.Notes = append(d.Notes, fmt.Sprintf(format, args...))
}

func (d *Document) noteInFlight(rule string, n int) {
	if n > 0 {
		d.Note("%s: inflight %d is not simulated, as a log does not tell how long a request takes that leaves at another instant: there may be more waiting", ruleName(rule), n)
	}
}

// ruleName returns the key of a rule as it is shown.
func ruleName(key string) string { return cmp.Or(key, "(default)") }

// Count returns a number with its noun, in the plural unless the number is 1.
func Count[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Number(n) + " " + noun + "s"
}

// Number returns a number with commas: 1,234,567.
func Number[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
