package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"example.com/leakybucket/config"
	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

// A warning is about something legal that is surely not meant.
type warning struct {
	File    string `json:"file"`
	Line    int    `json:"line"` // 0: of no line in particular
	Key     string `json:"key"`  // of the rule; "" is the default
	Code    string `json:"code"`
	Message string `json:"message"`
}

// String returns a warning as compilers print theirs.
func (w warning) String() string {
	where := ""
	if w.File != "" {
		where = fmt.Sprintf("%s:%d: ", w.File, w.Line)
	}
	return where + "warning: " + keyText(w.Key) + ": " + w.Message
}

// sortWarnings puts warnings in the order of the files and of the lines in them.
// Warnings about KEYs come last.
func sortWarnings(all []warning, files []string) {
	layer := func(w warning) int {
		if i := slices.Index(files, w.File); i >= 0 {
			return i
		}
		return len(files)
	}
	slices.SortStableFunc(all, func(a, b warning) int {
		return cmp.Or(cmp.Compare(layer(a), layer(b)), cmp.Compare(a.Line, b.Line))
	})
}

// warningsOf returns the warnings about one rule.
func warningsOf(r config.Rule) (all []warning) {
	warn := func(code, format string, args ...any) {
		all = append(all, warning{r.File, r.Line, r.Key, code, fmt.Sprintf(format, args...)})
	}
	warnOfLimits(r.Limits, r.Window, "", warn)
	if c := r.Candidate; c != nil {
		warnOfLimits(*c, r.CandidateWindow, "candidate: ", warn)
		if c.InFlight > 0 {
			warn("no-effect", "candidate: inflight has no effect, because a dry run does not know when requests would end")
		}
		if effective(*c) == effective(r.Limits) {
			warn("same-candidate", "the candidate is what is in force already")
		}
	}
	warnOfKey(r.Key, false, warn)
	return all
}

// warnOfKey warns of the key of a rule, or of a weight, that says something else than its author means.
func warnOfKey(key string, ofWeight bool, warn func(code, format string, args ...any)) {
	if problem := addressProblem(key); problem != "" {
		warn("address", "%s", problem)
	}
	switch {
	case key == "default" && ofWeight:
		warn("nested-default", "this is the weight of the key default: keys that are not named have the weight 1")
	case key == "default":
		warn("nested-default", "this is the rule of the key default: the rule of all other keys stands beside limits, not below it")
	}
	parts := strings.Split(key, "/")
	for i, part := range parts {
		if strings.TrimSpace(part) != part {
			warn("blank", "a blank at an end is part of the key, and hardly any key has one")
		}
		switch {
		case !looksLikeWildcard(part):
		case ofWeight:
			warn("wildcard", "there are no wildcards: a weight is that of one whole key")
		case part != "*":
			warn("wildcard", "there are no wildcards: a rule is for a whole part of a key, and for all keys below it")
		case i > 0:
			warn("wildcard", "there are no wildcards: the rule of all such keys is %s", shown(strings.Join(parts[:i], "/")))
		default:
			warn("wildcard", "there are no wildcards: the rule of all such keys is default, beside limits")
		}
	}
}

// looksLikeWildcard reports whether a part of a key is written as if it stood for others. A route such
// as "/files/*" or "OPTIONS *" is not.
func looksLikeWildcard(part string) bool {
	return strings.HasSuffix(part, "*") && !strings.ContainsAny(part, "% ")
}

// warnOfLimits warns of limits, with a prefix that says which. In a window the slack has a part in the rate, and
// is written out where the file says nothing of it.
func warnOfLimits(l shaper.Limits, window, prefix string, warn func(code, format string, args ...any)) {
	burst := limitwords.BurstOf(l)
	unlimited := float64(l.Rate) == math.MaxFloat64 // which is what rate.Inf is
	interval := limitwords.Seconds(1 / float64(l.Rate))
	if l.Depth == 0 && !unlimited && l.Burst <= 1 {
		warn("refuses-second", "%sno depth and burst 1: of two requests within %s one is refused", prefix, interval)
	}
	if l.Depth > 0 && l.MaxWait > 0 && burst.Waiting == 0 {
		warn("wait-too-short", "%sthe wait is shorter than the %s between two departures: hardly any request may wait", prefix, interval)
	}
	if l.Depth == 0 && l.MaxWait > 0 {
		warn("wait-without-depth", "%swait without depth: no request waits whose wait could be bounded", prefix)
	}
	if l.Depth == 0 && l.Slack > 0 && window == "" {
		warn("slack-without-depth", "%sslack without depth: no request waits that could be late", prefix)
	}
	if l.Depth > 0 && l.MaxWait > 0 && l.Slack > l.MaxWait && (window == "" || l.Slack != shaper.DefaultSlack) {
		warn("slack-long", "%sslack longer than the wait: after a stall that long, all that wait leave at once", prefix)
	}
	if unlimited && l.Burst > 0 {
		warn("no-effect", "%sburst has no effect at rate inf", prefix)
	}
	if unlimited && l.Depth > 0 && l.Slack > 0 {
		warn("no-effect", "%sslack has no effect at rate inf", prefix)
	}
}

// effective returns limits with their defaults written out.
func effective(l shaper.Limits) shaper.Limits {
	l.Burst = max(l.Burst, 1)
	l.Slack = cmp.Or(l.Slack, shaper.DefaultSlack)
	return l
}

// neverReached returns a warning for each rule that none of the keys in use finds.
func neverReached(rules *config.Rules, used []string) (all []warning) {
	found, below := map[string]bool{}, map[string]bool{}
	for _, key := range used {
		if rule, ok := rules.Explain(key); ok {
			found[rule.Key] = true
		}
		for end := range len(key) {
			if key[end] == '/' {
				below[key[:end]] = true
			}
		}
		below[key] = true
	}
	for rule := range rules.All() {
		why := "there is no such key"
		switch {
		case found[rule.Key]:
			continue
		case rule.Key == "":
			why = "every key has a rule of its own"
		case below[rule.Key]:
			why = "every key below it has a rule of its own"
		}
		all = append(all, warning{rule.File, rule.Line, rule.Key, "never-reached", "never reached: " + why})
	}
	return all
}

// keyWarnings returns a warning if a KEY is none that [shaper.Join] makes. It asks the
// reader of files, which refuses such keys.
func keyWarnings(key string) []warning {
	quoted, err := json.Marshal(key) // YAML reads what JSON writes.
	if err != nil {
		return nil
	}
	_, err = config.Parse("", slices.Concat([]byte("limits:\n  ? "), quoted, []byte("\n  : inf\n")))
	mistake, ok := errors.AsType[*config.Error](err)
	if !ok {
		return nil
	}
	return []warning{{Key: key, Code: "not-a-key", Message: "shaper.Join makes no such key: " + mistake.Message}}
}

// takenInVain returns a warning for each ~ that takes away what no earlier layer says. The layers
// are right.
func takenInVain(layers []config.Layer) (all []warning) {
	there := map[entryName]bool{}
	for _, layer := range layers {
		for _, e := range entriesOf(layer.Text) {
			if e.taken && !there[e.entryName] {
				taken := warning{layer.Name, e.line, e.key, "takes-nothing", "~ takes nothing away: no earlier file has such a rule"}
				if e.fair {
					taken.Message = "~ takes nothing away: no earlier file says fair"
				}
				all = append(all, taken)
			}
			there[e.entryName] = !e.taken
		}
	}
	return all
}

// An entryName is the key of a rule, or says that it is fair.
type entryName struct {
	key  string
	fair bool
}

// An entry is a rule of a file, or what it says of fair queueing.
type entry struct {
	entryName
	line  int
	taken bool // it is ~
}

// entriesOf returns the entries of a file, which must be right.
func entriesOf(text []byte) (found []entry) {
	var document yaml.Node
	if yaml.Unmarshal(text, &document) != nil || len(document.Content) == 0 {
		return nil
	}
	note := func(name entryName, at, value *yaml.Node) {
		taken := value.Kind == yaml.ScalarNode && value.ShortTag() == "!!null"
		found = append(found, entry{name, at.Line, taken})
	}
	top := document.Content[0].Content
	for i := 0; i+1 < len(top); i += 2 {
		switch value := top[i+1]; top[i].Value {
		case "default":
			note(entryName{}, top[i], value)
		case "fair":
			note(entryName{key: "fair", fair: true}, top[i], value)
		default:
			for j := 0; j+1 < len(value.Content); j += 2 {
				note(entryName{key: value.Content[j].Value}, value.Content[j], value.Content[j+1])
			}
		}
	}
	return found
}

// weightWarnings returns the warnings about the weights of keys.
func weightWarnings(f *fair) (all []warning) {
	if f == nil {
		return nil
	}
	for _, w := range f.Weights {
		warn := func(code, format string, args ...any) {
			all = append(all, warning{f.File, w.Line, w.Key, code, fmt.Sprintf(format, args...)})
		}
		if w.Weight == 1 {
			warn("no-effect", "the weight is 1, which every key has")
		}
		warnOfKey(w.Key, true, warn)
	}
	return all
}

// weightsInVain returns a warning for each weight of a key that is not in use.
func weightsInVain(f *fair, used []string) (all []warning) {
	if f == nil {
		return nil
	}
	inUse := map[string]bool{}
	for _, key := range used {
		inUse[key] = true
	}
	for _, w := range f.Weights {
		if !inUse[w.Key] {
			all = append(all, warning{f.File, w.Line, w.Key, "never-reached", "never reached: there is no such key"})
		}
	}
	return all
}
