package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"example.com/leakybucket/config"
	"example.com/leakybucket/internal/limitwords"
)

// A report is all that is printed. Its fields are the fields of the JSON output, so they keep
// their names.
type report struct {
	Errors   []*config.Error `json:"errors"`
	Warnings []warning       `json:"warnings"`
	Rules    []rule          `json:"rules"`
	Keys     []lookup        `json:"keys"`

	noDefault bool
}

// A rule is one rule of the files.
type rule struct {
	Key       string  `json:"key"`
	File      string  `json:"file"`
	Line      int     `json:"line"`
	Limits    string  `json:"limits"`
	Words     words   `json:"words"`
	Candidate *limits `json:"candidate"`
}

// limits belong to a candidate.
type limits struct {
	Limits string `json:"limits"`
	Words  words  `json:"words"`
}

// words say what limits mean, one statement per element.
type words []string

// A lookup is a KEY with the rule that it finds, nil if there is none.
type lookup struct {
	Key  string `json:"key"`
	Rule *rule  `json:"rule"`
}

// newRule returns a rule as it is printed.
func newRule(r config.Rule) *rule {
	printed := &rule{Key: r.Key, File: r.File, Line: r.Line, Limits: r.Limits.String(), Words: limitwords.Of(r.Limits)}
	if r.Candidate != nil {
		printed.Candidate = &limits{r.Candidate.String(), limitwords.Of(*r.Candidate)}
	}
	return printed
}

// check reads the files, and reports their rules.
func check(a arguments, stdin io.Reader) (r report) {
	r = report{Errors: []*config.Error{}, Warnings: []warning{}, Rules: []rule{}, Keys: []lookup{}}
	used, err := readList(a.list, stdin)
	if err != nil {
		r.Errors = append(r.Errors, &config.Error{File: a.list, Message: err.Error()})
	}
	// Open, because it accepts the same files as a program will.
	file, err := config.Open(a.files...)
	if err != nil {
		if all, ok := errors.AsType[config.Errors](err); ok {
			r.Errors = append(r.Errors, all...)
		} else {
			r.Errors = append(r.Errors, &config.Error{File: a.files[0], Message: err.Error()})
		}
		return r
	}
	defer file.Close()
	rules := file.Rules()
	_, hasDefault := rules.Explain("")
	r.noDefault = !hasDefault

	asked := map[string]bool{} // the keys of the rules that KEYs find
	for _, key := range a.keys {
		found, ok := rules.Explain(key)
		if !ok {
			r.Keys = append(r.Keys, lookup{key, nil})
			r.Errors = append(r.Errors, &config.Error{File: a.files[0], Text: key, Message: "no rule matches this key, and there is no default"})
			continue
		}
		r.Keys = append(r.Keys, lookup{key, newRule(found)})
		asked[found.Key] = true
	}
	for rule := range rules.All() {
		if len(a.keys) == 0 {
			r.Rules = append(r.Rules, *newRule(rule))
		}
		if len(a.keys) == 0 || asked[rule.Key] {
			r.Warnings = append(r.Warnings, warningsOf(rule)...)
		}
	}
	for _, key := range a.keys {
		r.Warnings = append(r.Warnings, keyWarnings(key)...)
	}
	if len(a.keys) == 0 {
		r.Warnings = append(r.Warnings, takenInVain(a.files)...)
	}
	if len(used) > 0 {
		r.Warnings = append(r.Warnings, neverReached(rules, used)...)
		if first, others := withoutRule(rules, used); first != "" {
			message := "no rule matches this key, which is in use, and there is no default"
			if others > 0 {
				message = fmt.Sprintf("no rule matches this key and %d others, which are in use, and there is no default", others)
			}
			r.Errors = append(r.Errors, &config.Error{File: a.files[0], Text: first, Message: message})
		}
	}
	sortWarnings(r.Warnings, a.files)
	return r
}

// withoutRule returns the first of the keys that find no rule, "" if there is none, and
// how many other such keys there are.
func withoutRule(rules *config.Rules, keys []string) (first string, others int) {
	seen := map[string]bool{}
	for _, key := range keys {
		if _, ok := rules.Explain(key); ok || seen[key] {
			continue
		}
		seen[key] = true
		first = cmp.Or(first, key)
	}
	return first, max(0, len(seen)-1)
}

// readList returns the lines of a file, or of standard input for "-", without the empty
// ones. It is an error if there are none.
func readList(name string, stdin io.Reader) (keys []string, err error) {
	if name == "" {
		return nil, nil
	}
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, unreadable(err)
		}
		defer file.Close()
		stdin = file
	}
	lines := bufio.NewReader(stdin)
	for {
		line, err := lines.ReadString('\n')
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			keys = append(keys, line)
		}
		switch {
		case errors.Is(err, io.EOF) && len(keys) == 0:
			return nil, errors.New("has no keys, must have one on each line")
		case errors.Is(err, io.EOF):
			return keys, nil
		case err != nil:
			return nil, unreadable(err)
		}
	}
}

// unreadable returns an error of the operating system without the name of the file, which
// is said already.
func unreadable(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return fmt.Errorf("cannot be read: %w", err)
}
