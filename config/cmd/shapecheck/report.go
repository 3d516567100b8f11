package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"example.com/leakybucket/config"
	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

// A report is all that is printed. Its fields are the fields of the JSON output, so they keep
// their names.
type report struct {
	Errors   []*config.Error `json:"errors"`
	Warnings []warning       `json:"warnings"`
	Rules    []rule          `json:"rules"`
	Keys     []lookup        `json:"keys"`
	Fair     *fair           `json:"fair"`
	Adapt    *adapts         `json:"adapt"`

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

// A lookup is a KEY with the rule that it finds, nil if there is none, and with its weight, 0
// if the files say nothing of fair queueing.
type lookup struct {
	Key    string `json:"key"`
	Rule   *rule  `json:"rule"`
	Weight int    `json:"weight,omitempty"`
}

// A fair is what the files say of fair queueing.
type fair struct {
	By      string   `json:"by"`
	File    string   `json:"file"`
	Line    int      `json:"line"`
	Weights []weight `json:"weights"`
}

// An adapts is what the files say of a rate that adapts.
type adapts struct {
	Bounds string `json:"bounds"` // as text
	File   string `json:"file"`
	Line   int    `json:"line"`
}

// newAdapts returns what the rules say of a rate that adapts as it is printed; nil if they say nothing.
func newAdapts(rules *config.Rules) *adapts {
	a, ok := rules.Adapt()
	if !ok {
		return nil
	}
	return &adapts{a.String(), a.File, a.Line}
}

// paragraph returns the lines about a rate that adapts.
func (a *adapts) paragraph() []string {
	return []string{
		strings.TrimSpace("adapt: "+a.Bounds) + "  (" + a.File + ":" + strconv.Itoa(a.Line) + ")",
		"    the rate follows what the upstream answers, within these bounds",
	}
}

// A weight is the weight of a key.
type weight struct {
	Key    string `json:"key"`
	Weight int    `json:"weight"`
	Line   int    `json:"line"`
}

// newFair returns what the rules say of fair queueing as it is printed; nil if they say nothing.
func newFair(rules *config.Rules) *fair {
	f, ok := rules.ExplainFair()
	if !ok {
		return nil
	}
	printed := &fair{f.By, f.File, f.Line, []weight{}}
	for _, w := range f.Weights {
		printed.Weights = append(printed.Weights, weight(w))
	}
	return printed
}

// newRule returns a rule as it is printed.
func newRule(r config.Rule) *rule {
	printed := &rule{Key: r.Key, File: r.File, Line: r.Line, Limits: r.Limits.String(), Words: wordsOf(r.Limits, r.Window)}
	if r.Candidate != nil {
		printed.Candidate = &limits{r.Candidate.String(), wordsOf(*r.Candidate, r.CandidateWindow)}
	}
	return printed
}

// wordsOf returns the meaning of limits, and first of the window as which their rate is written, if it is.
func wordsOf(l shaper.Limits, window string) words {
	said := limitwords.Of(l)
	if n, length, ok := strings.Cut(window, " in "); ok {
		said = append(words{"at most " + n + " leave in any " + length}, said...)
	}
	return said
}

// check reads the files, and reports their rules.
func check(a arguments, stdin io.Reader) (r report) {
	r = report{Errors: []*config.Error{}, Warnings: []warning{}, Rules: []rule{}, Keys: []lookup{}}
	used, err := readList(a.list, stdin)
	if err != nil {
		r.Errors = append(r.Errors, &config.Error{File: a.list, Message: err.Error()})
	}
	layers, mistakes := readLayers(a.files, stdin)
	rules, err := config.ParseLayers(layers...)
	all, _ := errors.AsType[config.Errors](err)
	if len(mistakes) > 0 {
		// What would be missing beside fair may stand in a file that could not be read.
		all = slices.DeleteFunc(all, func(e *config.Error) bool { return e.Field == "fair" && e.Text == "" })
	}
	// Those of files that could not be read stand where these are in the command line.
	if r.Errors = append(r.Errors, inOrder(append(mistakes, all...), a.files)...); len(mistakes) > 0 || err != nil {
		return r
	}
	r.Fair, r.Adapt = newFair(rules), newAdapts(rules)
	_, hasDefault := rules.Explain("")
	r.noDefault = !hasDefault

	asked := map[string]bool{} // the keys of the rules that KEYs find
	for _, key := range a.keys {
		found, ok := rules.Explain(key)
		if !ok {
			r.Keys = append(r.Keys, lookup{Key: key})
			r.Errors = append(r.Errors, &config.Error{File: a.files[0], Text: key, Message: "no rule matches this key, and there is no default"})
			continue
		}
		one := lookup{Key: key, Rule: newRule(found)}
		if _, weight, ok := rules.Fair(); ok {
			one.Weight = weight(key)
		}
		r.Keys = append(r.Keys, one)
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
		r.Warnings = append(r.Warnings, takenInVain(layers)...)
		r.Warnings = append(r.Warnings, weightWarnings(r.Fair)...)
	}
	if len(used) > 0 {
		r.Warnings = append(r.Warnings, neverReached(rules, used)...)
		r.Warnings = append(r.Warnings, weightsInVain(r.Fair, used)...)
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

// readLayers returns the texts of the files, standard input for "-", and a mistake for each that
// cannot be read.
func readLayers(files []string, stdin io.Reader) (layers []config.Layer, mistakes config.Errors) {
	for _, name := range files {
		text, err := readFile(name, stdin)
		if err != nil {
			mistakes = append(mistakes, &config.Error{File: name, Message: unreadable(err).Error()})
			continue
		}
		layers = append(layers, config.Layer{Name: name, Text: text})
	}
	return layers, mistakes
}

// maxText is how much is read of a file, in bytes: more than a file of limits may have.
const maxText = 1<<20 + 1

// readFile returns the text of a file, or the beginning of one that is too large. It refuses the same
// files as [config.Open] does.
func readFile(name string, stdin io.Reader) ([]byte, error) {
	if name != "-" {
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("it is not a regular file (%v)", info.Mode().Type())
		}
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		stdin = file
	}
	return io.ReadAll(io.LimitReader(stdin, maxText))
}

// inOrder puts mistakes in the order of their files.
func inOrder(mistakes config.Errors, files []string) config.Errors {
	slices.SortStableFunc(mistakes, func(a, b *config.Error) int {
		return cmp.Compare(slices.Index(files, a.File), slices.Index(files, b.File))
	})
	return mistakes
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
	for first := true; ; first = false {
		line, err := lines.ReadString('\n')
		if first {
			line = strings.TrimPrefix(line, "\ufeff") // a byte order mark
		}
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
		if r.Adapt != nil {
			paragraphs = append(paragraphs, r.Adapt.paragraph())
		}
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
