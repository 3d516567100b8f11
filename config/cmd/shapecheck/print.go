package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
)

// printJSON prints a report as one object.
func printJSON(w io.Writer, r report) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// printText prints the rules of the files to out, and mistakes and warnings to problems,
// each on one line as compilers print theirs, with the file and the line first.
func printText(out, problems io.Writer, r report) error {
	var paragraphs [][]string
	for _, one := range r.Rules {
		paragraphs = append(paragraphs, one.paragraph(keyText(one.Key), one.place()))
	}
	if r.Fair != nil && len(r.Rules) > 0 {
		paragraphs = append(paragraphs, r.Fair.paragraph())
	}
	for _, one := range r.Keys {
		if one.Rule == nil {
			continue // It is among the mistakes.
		}
		lines := one.Rule.paragraph(shown(one.Key), one.Rule.name()+", "+one.Rule.place())
		if r.Fair != nil {
			lines = append(lines, fmt.Sprintf("    in one line with all other keys, with the weight %d  (%s)", one.Weight, r.Fair.place()))
		}
		paragraphs = append(paragraphs, lines)
	}
	if len(r.Errors)+len(r.Keys) == 0 && r.noDefault {
		paragraphs = append(paragraphs, []string{"There is no default: calls with a key that no rule matches fail."})
	}

	b := bufio.NewWriter(out)
	for i, paragraph := range paragraphs {
		if i > 0 {
			b.WriteString("\n")
		}
		for _, line := range paragraph {
			b.WriteString(line + "\n")
		}
	}
	if len(paragraphs) > 0 && len(r.Errors)+len(r.Warnings) > 0 {
		b.WriteString("\n")
	}
	if err := b.Flush(); err != nil {
		return err
	}

	p := bufio.NewWriter(problems)
	for _, e := range r.Errors {
		fmt.Fprintln(p, e)
	}
	for _, w := range r.Warnings {
		fmt.Fprintln(p, w)
	}
	return p.Flush()
}

// name says which rule it is.
func (r *rule) name() string {
	if r.Key == "" {
		return "the default"
	}
	return "rule " + shown(r.Key)
}

// place returns where a rule stands.
func (r *rule) place() string { return r.File + ":" + strconv.Itoa(r.Line) }

// paragraph returns the lines about one rule.
func (r *rule) paragraph(title, place string) []string {
	lines := []string{title + ": " + r.Limits + "  (" + place + ")"}
	lines = append(lines, r.Words.lines("    ")...)
	if r.Candidate != nil {
		lines = append(lines, "    candidate "+r.Candidate.Limits)
		lines = append(lines, r.Candidate.Words.lines("        ")...)
	}
	return lines
}

// place returns where the word fair stands.
func (f *fair) place() string { return f.File + ":" + strconv.Itoa(f.Line) }

// paragraph returns the lines about fair queueing.
func (f *fair) paragraph() []string {
	lines := []string{
		"fair: by " + f.By + "  (" + f.place() + ")",
		"    all keys share that rate and wait in one line, in which they take turns",
	}
	for _, w := range f.Weights {
		lines = append(lines, fmt.Sprintf("    %s has the weight %d  (%s:%d)", shown(w.Key), w.Weight, f.File, w.Line))
	}
	return append(lines, "    all other keys have the weight 1")
}

// lines returns the words on one or two lines: first how requests leave, then which
// wait and which are refused.
func (w words) lines(indent string) []string {
	var lines []string
	for _, some := range [][]string{w[:max(0, len(w)-2)], w[max(0, len(w)-2):]} {
		if len(some) > 0 {
			lines = append(lines, indent+strings.Join(some, "; "))
		}
	}
	return lines
}

// keyText returns the key of a rule as a reader sees it.
func keyText(key string) string {
	if key == "" {
		return "(default)"
	}
	return shown(key)
}

// shown returns a key as it is, or in quotes if there is something in it that cannot be
// seen, or that would do something to the terminal.
func shown(key string) string {
	invisible := func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }
	if key == "" || key != strings.TrimSpace(key) || strings.ContainsFunc(key, invisible) {
		return strconv.Quote(key)
	}
	return key
}
