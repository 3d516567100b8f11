package report

import (
	"maps"
	"slices"
	"strings"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
)

// A Log says how the logs could be read.
type Log struct {
	Lines    int       `json:"lines"`
	Requests int       `json:"requests"`
	Broken   int       `json:"broken"` // lines, of all reasons
	Reasons  []Reason  `json:"reasons"`
	Examples []Example `json:"examples"` // the first lines of each reason
}

// A Reason is why lines could not be used.
type Reason struct {
	Reason string `json:"reason"`
	Lines  int    `json:"lines"`
}

// An Example is a line that could not be used.
type Example struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Reason string `json:"reason"`
	Text   string `json:"text"` // its beginning
}

// SetLog adds how the logs could be read, and what their times leave open.
func (d *Document) SetLog(s accesslog.Stats, spread bool) {
	d.Log = Log{Lines: s.Lines, Requests: s.Records, Reasons: []Reason{}, Examples: []Example{}}
	for reason, n := range s.Broken {
		d.Log.Broken += n
		d.Log.Reasons = append(d.Log.Reasons, Reason{string(reason), n})
	}
	slices.SortFunc(d.Log.Reasons, func(a, b Reason) int {
		if a.Lines != b.Lines {
			return b.Lines - a.Lines
		}
		return strings.Compare(a.Reason, b.Reason)
	})
	for _, b := range s.Examples {
		d.Log.Examples = append(d.Log.Examples, Example{b.File, b.Line, string(b.Reason), b.Excerpt})
	}
	for _, heads := range slices.Sorted(maps.Keys(s.Heads)) {
		d.note("the lines of %s have a head of a collector before them, which is skipped: %s", requests(s.Heads[heads]), heads)
	}
	if s.Lists > 0 {
		d.note("the log tells a list of addresses for %s, as of X-Forwarded-For: the client is taken to be the last that is not private", requests(s.Lists))
	}
	switch {
	case s.Coarse > 0 && spread:
		d.note("the log tells whole seconds of %s; those of one second are spread evenly over it (-spread), so there may have been more waiting and more refusals than this says", requests(s.Coarse))
	case s.Coarse > 0:
		d.note("the log tells whole seconds of %s; those of one second are taken as simultaneous, so there may have been less waiting and fewer refusals than this says: compare with -spread", requests(s.Coarse))
	}
	if s.Undated > 0 {
		d.note("the log dates %s by the end, and does not tell how long they took, so they arrive late here", requests(s.Undated))
	}
	if s.Redacted > 0 {
		d.note("the server has written REDACTED instead of the header field of %s: these keys are all one", requests(s.Redacted))
	}
}
