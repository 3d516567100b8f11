package config

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A Rule has the limits of the keys that begin with Key.
type Rule struct {
	Key       string // as written; "" is the default
	Limits    shaper.Limits
	Candidate *shaper.Limits // nil: none
	File      string         // as given to Parse or Open
	Line      int            // of the key, from 1

	// The windows, such as "100 in 1min", as which the rates of the limits and of the candidate
	// are written ([shaper.Window]); "": as rates.
	Window, CandidateWindow string
}

// Rules are the rules of one file, or of several in layers. [Parse] makes them, and
// [File.Rules] returns those in force.
//
// [Rules.Limits] and [Rules.Candidate] answer the questions of a [shaper.Group], and
// [Rules.Explain] says which rule the answer is from. Where no rule matches the key
// and there is no default, they answer [ErrNoRule] and false: the calls of that key then
// fail, they are not let through.
//
// Rules never change. All methods may be called at the same time.
type Rules struct {
	rules    []Rule // in the order of their keys, each key once; the default is first
	fallback int32  // index of the default, or none

	// The keys as a tree, in which each part of a key is one edge. A look-up walks
	// down the tree along the parts of the key, so it takes as many steps as the key
	// and the deepest matching rule have in common, however many rules there are and
	// however long the key is.
	edges   map[edge]node
	longest int // longest part of a rule's key, in bytes: a longer part matches nothing

	fair  *fairness // nil: the files say nothing of it
	adapt *Adapt    // the same
}

// none is the index of no rule.
const none = -1

type edge struct {
	from int32 // number of the node; the root is 0
	part string
}

type node struct {
	number int32
	rule   int32 // index of the rule whose key ends here, or none
}

// newRules returns [Rules] that hold the given rules. No two of them have the same key.
func newRules(rules []Rule) *Rules {
	slices.SortFunc(rules, func(a, b Rule) int { return strings.Compare(a.Key, b.Key) })
	r := &Rules{rules: rules, fallback: none, edges: make(map[edge]node, len(rules))}
	for i, rule := range rules {
		if rule.Key == "" {
			r.fallback = int32(i)
			continue
		}
		from := int32(0)
		parts := strings.Split(rule.Key, "/")
		for j, part := range parts {
			r.longest = max(r.longest, len(part))
			to, ok := r.edges[edge{from, part}]
			if !ok {
				to = node{number: int32(len(r.edges) + 1), rule: none}
			}
			if j == len(parts)-1 {
				to.rule = int32(i)
			}
			r.edges[edge{from, part}] = to
			from = to.number
		}
	}
	return r
}

// find returns the rule for key, or nil.
func (r *Rules) find(key string) *Rule {
	best := none
	if len(r.rules) > 0 {
		best = int(r.fallback)
	}
	for from, more := int32(0), key != ""; more; {
		// A part that is longer than all parts of rules is not read to its end.
		end := strings.IndexByte(key[:min(len(key), r.longest+1)], '/')
		part := key
		if more = end >= 0; more {
			part, key = key[:end], key[end+1:]
		} else if len(key) > r.longest {
			break
		}
		to, ok := r.edges[edge{from, part}]
		if !ok {
			break
		}
		if to.rule != none {
			best = int(to.rule)
		}
		from = to.number
	}
	if best == none {
		return nil
	}
	return &r.rules[best]
}

// Limits returns the limits of the rule for key: the rule whose key is the longest
// prefix of it that ends at a "/" or at its end, or the default. It is [ErrNoRule] if
// there is neither. It allocates nothing and takes no lock.
func (r *Rules) Limits(key string) (shaper.Limits, error) {
	rule := r.find(key)
	if rule == nil {
		return shaper.Limits{}, ErrNoRule
	}
	return rule.Limits, nil
}

// Candidate returns the candidate of the rule for key, which is the rule that
// [Rules.Limits] goes by. If that rule has none, Rate is [rate.Inf] and everything else
// is 0, so that a dry run says "leave" to all its requests. It is [ErrNoRule] if there is
// no rule for key. It allocates nothing and takes no lock.
func (r *Rules) Candidate(key string) (shaper.Limits, error) {
	rule := r.find(key)
	switch {
	case rule == nil:
		return shaper.Limits{}, ErrNoRule
	case rule.Candidate == nil:
		return shaper.Limits{Rate: rate.Inf}, nil
	}
	return *rule.Candidate, nil
}

// Explain returns the rule that [Rules.Limits] goes by for key, with the file and the
// line it stands on. ok is false if there is none.
func (r *Rules) Explain(key string) (rule Rule, ok bool) {
	found := r.find(key)
	if found == nil {
		return Rule{}, false
	}
	return found.clone(), true
}

// Where returns the key of the rule that [Rules.Limits] goes by for key, which is
// "default" for the default, with the file and the line it stands on. Without a rule all
// of it is empty. It is what WithExplain of package inspect wants.
func (r *Rules) Where(key string) (rule, file string, line int) {
	found := r.find(key)
	if found == nil {
		return "", "", 0
	}
	return cmp.Or(found.Key, "default"), found.File, found.Line
}

// All returns the rules in the order of their keys, byte by byte. The default, whose
// key is empty, is the first.
func (r *Rules) All() iter.Seq[Rule] {
	return func(yield func(Rule) bool) {
		for i := range r.rules {
			if !yield(r.rules[i].clone()) {
				return
			}
		}
	}
}

// clone returns a Rule that the caller may write to.
func (r *Rule) clone() Rule {
	copied := *r
	if r.Candidate != nil {
		candidate := *r.Candidate
		copied.Candidate = &candidate
	}
	return copied
}

// A layer is what one file says: rules, and rules of earlier layers that it takes away.
type layer struct {
	rules  []Rule
	gone   []string // keys
	fair   *fairness
	unfair bool // fair of earlier layers is taken away

	adapt   *Adapt
	unadapt bool // adapt of earlier layers is taken away
}

// merged returns the rules of several layers, or the mistakes in what they say together. A rule of
// a later layer replaces that of an earlier one whole, and so do fair and adapt.
func merged(layers []layer) (*Rules, error) {
	rules := newRules(mergedRules(layers))
	for _, l := range layers {
		if l.fair != nil || l.unfair {
			rules.fair = l.fair
		}
		if l.adapt != nil || l.unadapt {
			rules.adapt = l.adapt
		}
	}
	if mistakes := append(rules.checkFair(), rules.checkAdapt()...); mistakes != nil {
		return nil, mistakes
	}
	return rules, nil
}

// mergedRules returns the rules of several layers, in any order.
func mergedRules(layers []layer) []Rule {
	if len(layers) == 1 {
		return layers[0].rules
	}
	byKey := map[string]Rule{}
	for _, l := range layers {
		for _, key := range l.gone {
			delete(byKey, key)
		}
		for _, rule := range l.rules {
			byKey[rule.Key] = rule
		}
	}
	rules := make([]Rule, 0, len(byKey))
	for _, rule := range byKey {
		rules = append(rules, rule)
	}
	return rules
}

// Routes returns a mux that knows patterns of routes, for [shaper.ByRoute]: those that are
// given, and those that stand in the keys of the rules, and of weights, as the part with an
// index, counted from 0. With the rule "POST %2Flogin/192.0.2.1", the pattern of index 0 is
// "POST /login". A part without a "/" is no pattern, but the name of something else. A
// pattern that is there twice counts once. One that is longer than 256 bytes must be given,
// because the keys of its requests have it shortened.
//
// The mux is for finding patterns only: its handlers answer 404. If [http.ServeMux] does
// not understand a pattern, or cannot tell it from another, the error quotes the pattern,
// and names the file and the line of its rule or weight.
func (r *Rules) Routes(index int, patterns ...string) (*http.ServeMux, error) {
	mux := http.NewServeMux()
	seen := map[string]bool{}
	for _, pattern := range patterns {
		if seen[pattern] {
			continue
		}
		seen[pattern] = true
		if err := addRoute(mux, pattern); err != nil {
			return nil, err
		}
	}
	add := func(key, file string, line int) error {
		parts := strings.Split(key, "/")
		if index < 0 || index >= len(parts) {
			return nil
		}
		pattern, err := url.PathUnescape(parts[index])
		if err != nil || !strings.Contains(pattern, "/") || isBounded(pattern) || seen[pattern] {
			return nil
		}
		seen[pattern] = true
		if err := addRoute(mux, pattern); err != nil {
			return fmt.Errorf("%s:%d: %s: %w", file, line, quoted(key), err)
		}
		return nil
	}
	for i := range r.rules {
		if err := add(r.rules[i].Key, r.rules[i].File, r.rules[i].Line); err != nil {
			return nil, err
		}
	}
	if r.fair != nil {
		for _, w := range r.fair.Weights {
			if err := add(w.Key, r.fair.File, w.Line); err != nil {
				return nil, err
			}
		}
	}
	return mux, nil
}

// addRoute adds a pattern to a mux, which panics if it cannot.
func addRoute(mux *http.ServeMux, pattern string) (err error) {
	defer func() {
		if problem := recover(); problem != nil {
			why := strings.Join(strings.Fields(fmt.Sprint(problem)), " ")
			err = fmt.Errorf("%q cannot be a route: %w", pattern, errors.New(whereRegistered.ReplaceAllString(why, "")))
		}
	}()
	mux.Handle(pattern, http.NotFoundHandler())
	return nil
}

// whereRegistered matches the line of the program, which a mux names. It does not help
// whoever has written the pattern into a file.
var whereRegistered = regexp.MustCompile(` \(registered at [^)]*\)`)

// checkKey returns "" if [shaper.Join] makes keys that begin with key, else the mistake
// and how to write the key. A rule with a key that Join never makes would match
// nothing, and its author would not know.
func checkKey(key string) string {
	if key == "" {
		return `a key has at least one part: an empty part is written "-", and the rule for keys that match nothing else is "default", beside "limits"`
	}
	var reasons []string
	parts := strings.Split(key, "/")
	for i, part := range parts {
		written, reason := checkPart(part)
		parts[i] = written
		if reason != "" && (len(reasons) == 0 || reasons[len(reasons)-1] != reason) {
			reasons = append(reasons, reason)
		}
	}
	if reasons == nil {
		return ""
	}
	message := strings.Join(reasons, ", and ") + ": write " + quoted(shortened(strings.Join(parts, "/"), maxSuggestion))
	if len(reasons) == 1 && reasons[0] == emptyPart {
		// It may be a path such as /login, which is meant as one part.
		message += " or " + quoted(shortened(strings.ReplaceAll(key, "/", "%2F"), maxSuggestion))
	}
	return message
}

// maxSuggestion is how much of a right key is shown, in bytes: all of it, unless it is
// longer than what Join makes of one part and a name before it.
const maxSuggestion = 400

// emptyPart is the mistake of a key that has an empty part.
const emptyPart = `an empty part is written "-", and a "/" within a part is written "%2F"`

// checkPart returns the part as Join writes it, and the mistake if Join writes it in
// another way.
func checkPart(part string) (written, reason string) {
	plain, err := url.PathUnescape(part)
	escaped := err == nil && utf8.ValidString(plain)
	if !escaped {
		plain = part
	}
	switch {
	case part == "":
		return shaper.Join(""), emptyPart
	case part == shaper.Join(""):
		return part, ""
	case isBounded(plain) && unbounded(plain) == part:
		return part, ""
	}
	written = shaper.Join(plain)
	switch {
	case written == part:
		return part, ""
	case len(plain) > maxPart:
		return written, "of a part longer than 256 bytes a key has the beginning and a hash"
	case !escaped:
		return written, `a "%" is written "%25"`
	}
	return written, `within a part "%" is written "%25" and "/" is written "%2F", a part that is just "-" is written "%2D", and nothing else is escaped`
}

// These are the lengths that Join keeps of a part, as its comment has them.
const (
	maxPart  = 256
	keptPart = 192
	hashed   = keptPart + 1 + 64 // the kept bytes, "~", and SHA-256 in hexadecimal
)

// isBounded reports whether part can be what Join makes of a longer one.
func isBounded(part string) bool {
	return len(part) == hashed && part[keptPart] == '~' && strings.Trim(part[keptPart+1:], "0123456789abcdef") == ""
}

// unbounded returns Join's escaped form of a part that Join has bounded already.
func unbounded(part string) string {
	return strings.NewReplacer("%", "%25", "/", "%2F").Replace(part)
}
