package config

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
	"golang.org/x/time/rate"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/shaper"
)

// An Adapt is what the files say of a rate that adapts: of the line that all keys share, whose other limits are those of the default.
type Adapt struct {
	adapt.Config
	File string // as given to Parse or Open
	Line int    // of the word adapt, from 1

	column int
	words  [][2]string // the names of fields with their values, in order
}

// Adapt returns between which bounds the rate of the line adapts, for [adapt.New]. ok is false if the files say nothing of it.
func (r *Rules) Adapt() (a Adapt, ok bool) {
	if r.adapt == nil {
		return Adapt{}, false
	}
	return *r.adapt, true
}

// String returns the bounds as text, as in "min 5/s max 200/s slow 300ms"; "" if none is said.
func (a Adapt) String() string {
	var all []string
	for _, w := range a.words {
		all = append(all, w[0]+" "+w[1])
	}
	return strings.Join(all, " ")
}

// marshal returns it as it stands in a file.
func (a *Adapt) marshal() string {
	text := "adapt:"
	if len(a.words) == 0 {
		text += " {}"
	}
	for _, w := range a.words {
		text += "\n  " + w[0] + ": " + strconv.Quote(w[1])
	}
	return text + "\n"
}

// mistake returns a mistake that is the word adapt.
func (a *Adapt) mistake(message string) *Error {
	return &Error{File: a.File, Line: a.Line, Column: a.column, Field: "adapt", Message: message}
}

// checkAdapt returns why the rate can't adapt as the files say.
func (r *Rules) checkAdapt() Errors {
	switch {
	case r.adapt == nil:
		return nil
	case r.fair == nil:
		return Errors{r.adapt.mistake("stands beside fair, as there is no line for all keys otherwise whose rate could adapt")}
	case r.fallback == none:
		return nil // checkFair says so.
	}
	line, err := shaper.New(r.ofLine().Limits)
	if err == nil {
		_, err = adapt.New(line, r.adapt.Config)
	}
	if err != nil {
		return Errors{r.adapt.mistake("can't be: " + strings.TrimPrefix(err.Error(), "adapt: "))}
	}
	return nil
}

// adapts reads what stands behind "adapt".
func (p *parser) adapts(key, value *yaml.Node) {
	switch {
	case isNull(value) && value.Value == "":
		// A file that is cut off here must not take it away.
		p.reportAt(key, "says nothing: write bounds, as in {min: 5/s, max: 200/s}, or {} for the usual ones, or ~ to take it away")
		return
	case isNull(value):
		p.layer.unadapt = true
		return
	case value.Kind == yaml.AliasNode:
		return
	case value.Kind != yaml.MappingNode:
		p.reportAt(value, "expected a mapping, such as {min: 5/s, max: 200/s, slow: 300ms}")
		return
	}
	before := len(p.errs)
	a := &Adapt{File: p.name, Line: key.Line, column: key.Column}
	p.fields(value, []string{"min", "max", "start", "slow"}, func(name string, key, value *yaml.Node) {
		p.within("", "adapt."+name, func() {
			switch {
			case isNull(value):
				p.reportAt(key, "has no value: write one, or leave it out")
			case value.Kind == yaml.AliasNode:
			case value.Kind != yaml.ScalarNode:
				p.reportAt(value, "expected the "+name+", which is a single value")
			case name == "slow":
				a.Slow = p.duration(value)
			case name == "min":
				a.Min = p.finite(value)
			case name == "max":
				a.Max = p.finite(value)
			default:
				a.Start = p.finite(value)
			}
		})
		a.words = append(a.words, [2]string{name, strings.Join(strings.Fields(value.Value), " ")})
	})
	if len(p.errs) == before {
		p.layer.adapt = a
	}
}

// finite reads a rate that is not inf.
func (p *parser) finite(n *yaml.Node) rate.Limit {
	if l := p.rate(n).Rate; l != rate.Inf {
		return l
	}
	p.reportAt(n, "expected a rate that is finite, such as 50/s or 1 per 2s")
	return 0
}
