package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"example.com/leakybucket/shaper"
)

// fieldNames are the fields of limits written as a mapping. Of a candidate it is all
// but the last.
var fieldNames = []string{"rate", "burst", "depth", "wait", "slack", "inflight", "candidate"}

// limits reads limits in either form, into a [Rule] of which all else is empty: as the text that
// [shaper.ParseLimits] reads, or as a mapping. Those of a candidate have the prefix "candidate." before
// the names of their fields. ok is false if they have mistakes.
func (p *parser) limits(n *yaml.Node, prefix string) (r Rule, ok bool) {
	switch n.Kind {
	case yaml.ScalarNode:
		r.Limits, ok = p.text(n, "", n.Value)
		r.Window = windowOf(n.Value)
		return r, ok
	case yaml.MappingNode:
	case yaml.AliasNode:
		return r, false
	default:
		p.reportAt(n, "expected limits, such as 50/s depth 100 or {rate: 50/s, depth: 100}")
		return r, false
	}

	names, before := fieldNames, len(p.errs)
	if prefix != "" {
		names = fieldNames[:len(fieldNames)-1]
	}
	at := map[string]*yaml.Node{}
	p.fields(n, names, func(name string, key, value *yaml.Node) {
		at[name] = value
		if isNull(value) {
			p.reportAt(key, "has no value: write one, or leave it out")
			return
		}
		p.within(p.inRule, prefix+name, func() {
			switch {
			case name == "candidate":
				c, _ := p.limits(value, "candidate.")
				r.Candidate, r.CandidateWindow = &c.Limits, c.Window
			case value.Kind == yaml.AliasNode:
			case value.Kind != yaml.ScalarNode:
				p.reportAt(value, "expected the "+name+", which is a single value")
			case name == "rate" && isRateWords(value.Value, "in"):
				r.Window = windowOf(value.Value)
			default:
				p.set(&r.Limits, name, value)
			}
		})
	})
	switch {
	case at["rate"] == nil:
		p.reportAt(n, "these limits have no rate")
	case r.Window != "":
		p.window(&r.Limits, at, prefix, len(p.errs) > before)
	}
	if len(p.errs) > before {
		return r, false
	}
	if err := r.Limits.Validate(); err != nil {
		// Each number is right by itself, so it is the burst that goes with the rate.
		offender := "burst"
		if at["burst"] == nil {
			offender = "rate"
		}
		p.within(p.inRule, prefix+offender, func() { p.reportAt(at[offender], strings.TrimPrefix(err.Error(), "shaper: ")) })
		return r, false
	}
	return r, true
}

// window reads a rate such as 100 in 1min, which depends on the burst and the slack beside it. If
// any of the fields is wrong, which has been reported, only the rate itself is judged.
func (p *parser) window(l *shaper.Limits, at map[string]*yaml.Node, prefix string, wrong bool) {
	rate := at["rate"]
	text := rate.Value
	if !wrong && strings.TrimSpace(text) == text { // A blank at its end must not be taken for one between words.
		text += fmt.Sprintf(" burst %d slack %dns", l.Burst, l.Slack)
	}
	with, mistake := parseLimits(text)
	switch {
	case mistake == nil:
		l.Rate, l.Slack = with.Rate, with.Slack
	case mistake.Field == "burst" && at["burst"] != nil:
		p.within(p.inRule, prefix+"burst", func() { p.reportAt(at["burst"], mistake.Reason) })
	default:
		p.within(p.inRule, prefix+"rate", func() {
			p.report(rate.Line, p.columnIn(rate, mistake.Column-1), p.textOf(rate), mistake.Reason)
		})
	}
}

// windowOf returns the window that the rate of limits as a text is, such as 100 in 1min, or "".
func windowOf(text string) string {
	words := strings.Fields(text)
	if len(words) < 3 || words[1] != "in" {
		return ""
	}
	return strings.TrimLeft(words[0], "0") + " in " + words[2]
}

// isRateWords reports whether text is three words as in 1 per 2s, or 100 in 1min, with that word in the middle.
func isRateWords(text, middle string) bool {
	words := strings.Fields(text)
	return len(words) == 3 && words[1] == middle
}

// set reads a field of limits that is a single value.
func (p *parser) set(l *shaper.Limits, name string, value *yaml.Node) {
	switch name {
	case "rate":
		l.Rate = p.rate(value).Rate
	case "burst":
		l.Burst = p.integer(value)
	case "depth":
		l.Depth = p.integer(value)
	case "wait":
		l.MaxWait = p.duration(value)
	case "slack":
		l.Slack = p.duration(value)
	case "inflight":
		l.InFlight = p.integer(value)
	}
}

// text reads prefix and value together as the text form of limits, and reports a
// mistake at its place in the value of n.
func (p *parser) text(n *yaml.Node, prefix, value string) (shaper.Limits, bool) {
	l, mistake := parseLimits(prefix + value)
	if mistake == nil {
		return l, true
	}
	field := p.inField
	switch {
	case mistake.Field == "":
	case field == "":
		field = mistake.Field
	case field == "candidate":
		field += "." + mistake.Field
	}
	p.within(p.inRule, field, func() {
		p.report(n.Line, p.columnIn(n, mistake.Column-1-len(prefix)), p.textOf(n), mistake.Reason)
	})
	return l, false
}

// parseLimits is [shaper.ParseLimits], whose error is nothing but a [shaper.ParseError].
func parseLimits(text string) (shaper.Limits, *shaper.ParseError) {
	l, err := shaper.ParseLimits(text)
	if err == nil {
		return l, nil
	}
	mistake, ok := errors.AsType[*shaper.ParseError](err)
	if !ok {
		mistake = &shaper.ParseError{Column: 1, Reason: err.Error()}
	}
	return l, mistake
}

// columnIn returns the column of the byte at offset in the value of n. It is the column of
// n itself where the file does not hold the value as it is, because of escapes or lines
// that are folded.
func (p *parser) columnIn(n *yaml.Node, offset int) int {
	rest, quotes := p.rest(n), 0
	if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 && rest != "" {
		rest, quotes = rest[1:], 1
	}
	if offset < 0 || offset > len(n.Value) || !strings.HasPrefix(rest, n.Value) {
		return n.Column
	}
	return n.Column + quotes + utf8.RuneCountInString(n.Value[:offset])
}

// rate reads a rate alone, in the words of the text form.
func (p *parser) rate(n *yaml.Node) shaper.Limits {
	if len(strings.Fields(n.Value)) != 1 && !isRateWords(n.Value, "per") {
		p.reportAt(n, "expected only a rate, such as 50/s, 1 per 2s or inf")
		return shaper.Limits{}
	}
	l, _ := p.text(n, "", n.Value)
	return l
}

// duration reads a duration, in the words of the text form.
func (p *parser) duration(n *yaml.Node) time.Duration {
	if n.Value == "" || strings.ContainsAny(n.Value, " \t") {
		p.reportAt(n, "expected a duration such as 2s or 1.5h")
		return 0
	}
	l, _ := p.text(n, "inf wait ", n.Value)
	return l.MaxWait
}

// integer reads a whole number. It takes digits only: readers of YAML do not agree on
// what 010, 1_000 and "5" are.
func (p *parser) integer(n *yaml.Node) int {
	number, err := strconv.ParseUint(n.Value, 10, strconv.IntSize-1) // it accepts no sign
	switch {
	case errors.Is(err, strconv.ErrRange):
		p.reportAt(n, fmt.Sprintf("expected a whole number up to %d", math.MaxInt))
	case err != nil || n.ShortTag() != "!!int":
		p.reportAt(n, "expected a whole number such as 100")
	case n.Value[0] == '0' && n.Value != "0":
		p.reportAt(n, fmt.Sprintf("a 0 in front makes it octal for some: write %d", number))
	}
	return int(number)
}

// nearest returns the one of names that word is probably a misspelling of, or "".
func nearest(word string, names []string) string {
	best, least := "", 3 // Two slips are a misspelling, three are another word.
	for _, name := range names {
		if len(word) > len(name)+2 {
			continue // It may be a megabyte long.
		}
		// Of a word of four letters half must be right.
		if d := distance(strings.ToLower(word), name); d < least && d <= len(name)/2 {
			best, least = name, d
		}
	}
	return best
}

// distance returns how many single letters must be inserted, deleted, replaced, or
// swapped with their neighbour to turn a into b: the optimal string alignment distance.
func distance(a, b string) int {
	from, to := []rune(a), []rune(b)
	// Each row holds the distances of a beginning of a to all beginnings of b.
	var before, last []int
	row := make([]int, len(to)+1)
	for j := range row {
		row[j] = j
	}
	for i, x := range from {
		before, last, row = last, row, make([]int, len(to)+1)
		row[0] = i + 1
		for j, y := range to {
			replace := last[j]
			if x != y {
				replace++
			}
			row[j+1] = slices.Min([]int{last[j+1] + 1, row[j] + 1, replace})
			if i > 0 && j > 0 && x == to[j-1] && from[i-1] == y {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(to)]
}
