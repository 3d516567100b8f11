package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"example.com/leakybucket/shaper"
)

// A Fair is what the files say of fair queueing.
type Fair struct {
	// By says what makes the key of a request: one part or more with blanks between them, each of
	// them client_ip, host, route, or header and the name of a field, as in "header X-Team".
	By      string
	Weights []Weight // in the order of their keys
	File    string   // as given to Parse or Open
	Line    int      // of the word fair, from 1
}

// A Weight is the share of a key where others have 1.
type Weight struct {
	Key    string // as written
	Weight int    // from 1 to 1,000
	Line   int    // of the key, from 1
}

// maxWeight is the greatest weight of a key.
const maxWeight = 1000

// fairness is [Fair] as it is looked up.
type fairness struct {
	Fair
	column int
	weight map[string]int
}

// Fair returns what makes the key of a request, and a function that returns the weight of a
// key: what it has where others have 1. ok is false if the files say nothing of fair queueing, and
// then by is "" and weight nil. Weights are those of whole keys, as [shaper.By] makes them.
// The line that all keys share has the limits of the default.
func (r *Rules) Fair() (by string, weight func(key string) int, ok bool) {
	if r.fair == nil {
		return "", nil, false
	}
	return r.fair.By, r.weightOf, true
}

// ExplainFair returns what the files say of fair queueing, with the file and the line that it stands
// on. ok is false if they say nothing.
func (r *Rules) ExplainFair() (fair Fair, ok bool) {
	if r.fair == nil {
		return Fair{}, false
	}
	fair = r.fair.Fair
	fair.Weights = slices.Clone(fair.Weights)
	return fair, true
}

// weightOf returns the weight of a key.
func (r *Rules) weightOf(key string) int {
	if r.fair == nil {
		return 1
	}
	return max(r.fair.weight[key], 1)
}

// Weight returns the weight of a key by the rules in force now, which is 1 if they don't name
// it. It is the function that [shaper.WithFairQueue] wants. It takes no lock and allocates nothing.
func (f *File) Weight(key string) int { return f.Rules().weightOf(key) }

// OpenFair is [Open] for files that say fair: the keys of requests share the rate of one line, and take
// turns. [File.NewShaper] makes that line, and [Rules.Fair] says what makes the keys.
//
// Open refuses such files, as the keys of a [shaper.Group] have a rate each, and OpenFair refuses others.
// Both hold for changes of the files too: after such a change the rules in force stay.
func OpenFair(files ...string) (*File, error) { return open(true, "OpenFair", files) }

// NewShaper returns a Shaper with the limits of the default and [shaper.WithFairQueue], whose
// weights are those of the files. When the files change, requests in line are kept and re-timed, as
// by [shaper.Shaper.SetLimits]; a key has its new weight once none of its requests is in line.
// If the Shaper can't have the new limits, the rules in force stay. NewShaper is for a File of
// [OpenFair], and otherwise an error. It also returns the errors of [shaper.New].
func (f *File) NewShaper(opts ...shaper.Option) (*shaper.Shaper, error) {
	if !f.fair {
		return nil, errors.New("config: NewShaper: the File is of Open, must be of OpenFair")
	}
	f.loading.Lock() // So that no change of the files is missed.
	defer f.loading.Unlock()
	s, err := shaper.New(f.Rules().ofLine().Limits, append(slices.Clip(opts), shaper.WithFairQueue(f.Weight))...)
	if err != nil {
		return nil, err
	}
	f.lines = append(f.lines, s)
	return s, nil
}

// ofLine returns the rule that has the limits of the line which all keys share. There must be fair.
func (r *Rules) ofLine() *Rule { return &r.rules[r.fallback] }

// accept returns the mistake if the rules are not what a File is for, or the lines that it has
// made can't have their limits. If it returns nil, the lines have them.
func (f *File) accept(rules *Rules) error {
	switch fair := rules.fair; {
	case !f.fair && fair != nil:
		return Errors{fair.mistake("the program gives each key a rate of its own, and has no line for all keys (in Go, config.OpenFair is for such a file)")}
	case f.fair && fair == nil:
		return Errors{{File: f.names[0], Message: `neither this file nor a later one says "fair", which the program needs (in Go, config.Open is for such a file)`}}
	}
	for i, s := range f.lines {
		if err := f.change(s, rules); err != nil {
			for _, changed := range f.lines[:i] {
				_ = changed.SetLimits(f.Rules().ofLine().Limits) // It had them before.
			}
			return Errors{rules.fair.mistake("the line can't have the limits of the default now: " + strings.TrimPrefix(err.Error(), "shaper: "))}
		}
	}
	return nil
}

// change gives a line the limits of changed rules. If its rate adapts, and the files have not changed it, the rate that was
// found stays.
func (f *File) change(s *shaper.Shaper, rules *Rules) error {
	to := rules.ofLine().Limits
	keepsRate := rules.adapt != nil && to.Rate == f.Rules().ofLine().Limits.Rate
	return s.UpdateLimits(func(now shaper.Limits) shaper.Limits {
		if keepsRate {
			to.Rate = now.Rate
		}
		return to
	})
}

// mistake returns a mistake that is the word fair.
func (f *fairness) mistake(message string) *Error {
	return &Error{File: f.File, Line: f.Line, Column: f.column, Field: "fair", Message: message}
}

// checkFair returns what stands in the rules beside fair, and must not.
func (r *Rules) checkFair() (mistakes Errors) {
	if r.fair == nil {
		return nil
	}
	rules := r.rules
	if r.fallback == none {
		mistakes = append(mistakes, r.fair.mistake("there is no default, which has the limits of the line that all keys share"))
	} else {
		rules = rules[1:]
		if line := r.ofLine(); line.Candidate != nil {
			mistakes = append(mistakes, r.fair.mistake(fmt.Sprintf("the default (%s:%d) has a candidate; in a dry run no request waits, so none could take turns", line.File, line.Line)))
		}
	}
	if len(rules) > 0 {
		mistakes = append(mistakes, r.fair.mistake(fmt.Sprintf("the rule %s (%s:%d) gives keys a rate of their own, but with fair all keys share the rate of the default",
			quoted(shortened(rules[0].Key, maxText)), rules[0].File, rules[0].Line)))
	}
	return mistakes
}

const (
	maxBy  = 1024 // of a by, in bytes
	byPart = `(?:client_ip|host|route|header[ \t]+[!#$%&'*+.^_\x60|~0-9A-Za-z-]+)`
)

var byPattern = regexp.MustCompile(`^` + byPart + `(?:[ \t]+` + byPart + `)*$`)

// partsOf returns how many parts keys have.
func partsOf(by string) int {
	words := strings.Fields(by)
	n := 0
	for i := 0; i < len(words); i++ {
		if words[i] == "header" {
			i++
		}
		n++
	}
	return n
}

// fair reads what stands behind "fair".
func (p *parser) fair(key, value *yaml.Node) {
	switch {
	case isNull(value) && value.Value == "":
		// A file that is cut off here must not take it away.
		p.reportAt(key, "says nothing: write what makes the key of a request, as in {by: client_ip}, or ~ to take it away")
		return
	case isNull(value):
		p.layer.unfair = true
		return
	case value.Kind == yaml.AliasNode:
		return
	case value.Kind != yaml.MappingNode:
		p.reportAt(value, "expected a mapping, such as {by: header X-Team, weights: {gold: 4}}")
		return
	}
	before := len(p.errs)
	at := map[string]*yaml.Node{}
	p.fields(value, []string{"by", "weights"}, func(name string, key, value *yaml.Node) {
		at[name] = value
		if isNull(value) {
			p.reportAt(key, "has no value: write one, or leave it out")
		}
	})
	f := &fairness{Fair{File: p.name, Line: key.Line}, key.Column, map[string]int{}}
	if at["by"] == nil {
		p.within("", "fair", func() {
			p.reportAt(value, "by is missing, which says what makes the key of a request, such as client_ip")
		})
	} else {
		p.within("", "fair.by", func() { f.By = p.by(at["by"]) })
	}
	if weights := at["weights"]; weights != nil {
		p.within("", "fair.weights", func() { p.weights(f, weights) })
	}
	if len(p.errs) == before {
		p.layer.fair = f
	}
}

// by reads what makes the key of a request. It returns "" after a mistake.
func (p *parser) by(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.AliasNode || isNull(n):
	case n.Kind != yaml.ScalarNode || len(n.Value) > maxBy || !byPattern.MatchString(n.Value):
		p.reportAt(n, "expected client_ip, host, route or header and the name of a field, or several of these with blanks between them")
	default:
		return n.Value
	}
	return ""
}

// weights reads the weights of keys.
func (p *parser) weights(f *fairness, n *yaml.Node) {
	switch {
	case n.Kind == yaml.AliasNode || isNull(n):
		return
	case n.Kind != yaml.MappingNode:
		p.reportAt(n, "expected weights of keys, such as {gold: 4}")
		return
	}
	want := partsOf(f.By)
	p.keys(n, "weights", func(key, value *yaml.Node, right bool) {
		if parts := strings.Count(key.Value, "/") + 1; right && f.By != "" && parts != want {
			p.reportAt(key, fmt.Sprintf(`a key of %s, but each key has %s, which "by" says`, counted(parts), counted(want)))
		}
		weight := p.weight(key, value)
		f.weight[key.Value] = weight
		f.Weights = append(f.Weights, Weight{key.Value, weight, key.Line})
	})
	slices.SortFunc(f.Weights, func(a, b Weight) int { return strings.Compare(a.Key, b.Key) })
}

// counted returns a number of parts in words.
func counted(parts int) string {
	if parts == 1 {
		return "one part"
	}
	return strconv.Itoa(parts) + " parts"
}

// weight reads the weight of a key.
func (p *parser) weight(key, value *yaml.Node) int {
	before := len(p.errs)
	switch {
	case isNull(value):
		p.reportAt(key, fmt.Sprintf("has no weight: write a whole number from 1 to %d", maxWeight))
		return 0
	case value.Kind == yaml.AliasNode:
		return 0
	case value.Kind != yaml.ScalarNode:
		p.reportAt(value, fmt.Sprintf("expected a weight, which is a whole number from 1 to %d", maxWeight))
		return 0
	}
	weight := p.integer(value)
	if len(p.errs) == before && (weight < 1 || weight > maxWeight) {
		p.reportAt(value, fmt.Sprintf("a weight is from 1 to %d", maxWeight))
	}
	return weight
}

// marshal returns it as it stands in a file.
func (f *fairness) marshal() string {
	text := "fair:\n  by: " + strconv.Quote(f.By) + "\n"
	if len(f.Weights) > 0 {
		text += "  weights:\n"
	}
	var weights strings.Builder
	for _, w := range f.Weights {
		writeEntry(&weights, "    ", w.Key, strconv.Itoa(w.Weight))
	}
	return text + weights.String()
}
