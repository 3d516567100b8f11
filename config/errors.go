package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ErrNoRule is the error of a look-up whose key no rule matches, if there is no
// default.
var ErrNoRule = errors.New("config: no rule matches the key, and there is no default")

// Errors are all mistakes that were found, in the order of the files and of the lines
// in them. It is the type of the errors of [Parse], [Open] and [File.Reload] and of
// [Status.Err], where they are about files.
//
// After a mistake in the YAML itself (a quote that is not closed) the rest of that file
// cannot be read, so that mistake is the only one reported of the file.
type Errors []*Error

// Error returns the mistakes, one per line.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the mistakes for [errors.Is] and [errors.As].
func (e Errors) Unwrap() []error {
	all := make([]error, len(e))
	for i, one := range e {
		all[i] = one
	}
	return all
}

// An Error is one mistake in a file, for people and, as JSON, for editors.
type Error struct {
	File string `json:"file"` // as given to Parse or Open

	// Line and Column count from 1, a column in characters. Both are 0 where the
	// mistake is no particular line's: the file is missing, or too large.
	Line   int `json:"line"`
	Column int `json:"column"`

	// Rule is the key of the rule that has the mistake in its limits, "default" for the
	// default, and "" for a mistake elsewhere, such as in the key itself. A rule below "limits"
	// whose key is "default" is called "/default", which no key can be. Field is the field
	// whose value is wrong, such as "depth" or "candidate.depth", and "" for a mistake
	// elsewhere.
	Rule  string `json:"rule"`
	Field string `json:"field"`

	Text    string `json:"text"` // what is wrong, the beginning of it if it is long; "" if it is something missing
	Message string `json:"message"`

	err error // what the operating system said
}

// Error returns file:line:column: rule "key": field text: message, without the parts that
// are empty.
func (e *Error) Error() string {
	message := e.File
	if e.Line > 0 {
		message += fmt.Sprintf(":%d:%d", e.Line, e.Column)
	}
	message += ": "
	if e.Rule != "" {
		message += "rule " + strconv.Quote(e.Rule) + ": "
	}
	text := e.Text
	if text != "" {
		text = quoted(text)
	}
	if wrong := strings.TrimSpace(e.Field + " " + text); wrong != "" {
		message += wrong + ": "
	}
	return message + e.Message
}

// Unwrap returns the error of the operating system for a file that could not be read,
// so that errors.Is(err, fs.ErrNotExist) reports whether it is missing. Otherwise it
// returns nil.
func (e *Error) Unwrap() error { return e.err }

// sortErrors puts the mistakes of one file in the order of their places.
func sortErrors(errs Errors) {
	slices.SortStableFunc(errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// maxText is how much of an offending text an [Error] holds, in bytes. A file may be a
// single word of a megabyte.
const maxText = 60

// shortened returns the text, or at most that many bytes of its beginning.
func shortened(text string, most int) string {
	if len(text) <= most {
		return text
	}
	end := most
	for !utf8.RuneStart(text[end]) {
		end-- // do not cut a character in two
	}
	return text[:end] + "…"
}

// quoted returns a word as it is, and any other text in quotes.
func quoted(text string) string {
	word := func(r rune) bool { return r < utf8.RuneSelf && strings.ContainsRune("-_./%", r) || isAlphanumeric(r) }
	if strings.ContainsFunc(text, func(r rune) bool { return !word(r) }) {
		return strconv.Quote(text)
	}
	return text
}

func isAlphanumeric(r rune) bool {
	return '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
}
