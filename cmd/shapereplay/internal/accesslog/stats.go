package accesslog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Reason is why a line can't be used.
type Reason string

// The reasons.
const (
	TooLong    Reason = "longer than 1 MiB"
	NoHead     Reason = "without the head that the first lines of the file have"
	NotFormat  Reason = "not in the format of the file"
	NoTime     Reason = "no time that can be read"
	NoRequest  Reason = "no request" // as of a client that has connected and sent nothing, or another event in a JSON log
	BadStatus  Reason = "a status that is not a number of three digits"
	OutOfOrder Reason = "too much earlier than a line before it"
	TookLong   Reason = "took so long that its arrival can't be sorted in"
	NoEstimate Reason = "no estimate of tokens that can be read"
	BadActual  Reason = "an actual that is no number of tokens"
	BadSpan    Reason = "waited or duration is no number of seconds"
	NoFields   Reason = "no line #Fields before it that names the time, cs-method and cs-uri-stem"

	noRequestMeant Reason = "not a line of a request" // It is not broken.
)

// A Broken is a line that can't be used.
type Broken struct {
	File    string // as it was given to Open
	Line    int    // counted from 1
	Reason  Reason
	Excerpt string // the first 120 characters; what is not printable is escaped
}

// Stats are the counts of a [Reader] so far.
type Stats struct {
	Lines    int // without empty ones
	Records  int // requests, returned or still being sorted
	Coarse   int // requests among them whose time is told in whole seconds
	Undated  int // requests among them that are dated by their end, as the log does not tell the duration
	Lists    int // requests among them whose client is told by a list of addresses
	Redacted int // values of wanted header fields that the server has replaced by "REDACTED"; they count as not told

	Heads    map[string]int // requests whose lines have heads of collectors, by what these are
	Broken   map[Reason]int
	Examples []Broken // the first of each reason, in the order in which they were read
}

// count counts a request.
func (s *Stats) count(e *entry) {
	s.Records++
	s.Redacted += e.redacted
	if e.list {
		s.Lists++
	}
	if e.stamp.coarse {
		s.Coarse++
	}
	if e.isEnd && !e.timed {
		s.Undated++
	}
}

// add counts a broken line, and keeps it if it is one of the first of its reason.
func (s *Stats) add(b Broken, line []byte) {
	const kept = 3
	s.Broken[b.Reason]++
	if s.Broken[b.Reason] <= kept {
		b.Excerpt = excerpt(line)
		s.Examples = append(s.Examples, b)
	}
}

// clone returns a copy that does not change.
func (s *Stats) clone() Stats {
	c := *s
	c.Heads, c.Broken, c.Examples = maps.Clone(s.Heads), maps.Clone(s.Broken), slices.Clone(s.Examples)
	return c
}

const excerptWidth = 120 // characters

// excerpt returns the beginning of a line as it may be shown on a terminal: a client
// writes part of the log, so it may try to write to the terminal of whoever reads it.
func excerpt(line []byte) string {
	var b strings.Builder
	for width := 0; len(line) > 0; {
		r, size := utf8.DecodeRune(line)
		shown := string(r)
		switch {
		case r == utf8.RuneError && size == 1:
			shown = fmt.Sprintf(`\x%02x`, line[0])
		case !unicode.IsPrint(r):
			shown = strings.Trim(fmt.Sprintf("%+q", r), "'")
		}
		if width += utf8.RuneCountInString(shown); width > excerptWidth-1 {
			return b.String() + "…"
		}
		b.WriteString(shown)
		line = line[size:]
	}
	return b.String()
}
