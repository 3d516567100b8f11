package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
)

// Print writes a document as text. Lines of tables may be long; less -S shows them.
func Print(to io.Writer, d *Document) error {
	var tables []string
	if d.From != nil {
		tables = append(tables, rulesTable(d.Rules), foundTable(d.Found))
	}
	tables = append(tables, keysTable("Refused most", d.RefusedMost), keysTable("Waited longest", d.WaitedLongest))
	return PrintSections(to, d.title(), tables, d.Notes, &d.Log)
}

// PrintSections writes a title, tables, notes, and the lines of the log that could not be used, with
// empty lines between them. A table may be "".
func PrintSections(to io.Writer, title string, tables, notes []string, log *Log) error {
	wrapped := ""
	for _, note := range notes {
		wrapped += Wrap("Note: "+note) + "\n"
	}
	text := Wrap(title) + "\n"
	for _, section := range slices.Concat(tables, []string{wrapped, log.BrokenLines()}) {
		if section != "" {
			text += "\n" + section
		}
	}
	_, err := io.WriteString(to, text)
	return err
}

// title says how many requests of how many keys were read, and from when to when.
func (d *Document) title() string {
	if d.From == nil {
		return "No requests"
	}
	title := fmt.Sprintf("%s of %s (%s), %s to %s", Count(d.Requests+d.NoRule, "request"), Count(d.Keys, "key"), d.Key, Shown(*d.From), Shown(*d.To))
	if d.Interrupted {
		title += ", interrupted"
	}
	return title
}

// Shown returns an instant as it is shown.
func Shown(t time.Time) string { return t.Format("2006-01-02 15:04:05Z") }

// rulesTable returns a table of how requests fared, by rule.
func rulesTable(all []Rule) string {
	if len(all) == 0 {
		return ""
	}
	titles := []string{
		"RULE", "LIMITS", " KEYS", " REQUESTS", " AT ONCE", " WAITED", " REFUSED", " QUEUE-FULL", " TOO-LATE", " P50", " P95", " P99", " LONGEST", " LINE",
	}
	var rows [][]string
	all, more := withoutMostUnmet(all, func(r Rule) bool { return r.Requests == 0 })
	for _, r := range all {
		rows = append(rows, []string{
			ruleName(r.Rule), cmp.Or(r.Limits, "no candidate"), Number(r.Keys), Number(r.Requests), Number(r.AtOnce), Number(r.Waited),
			Refused(r.Refused, r.Requests), Number(r.QueueFull), Number(r.TooLate),
			r.WaitP50.String(), r.WaitP95.String(), r.WaitP99.String(), r.Longest.String(), Number(r.LineMax),
		})
	}
	return Table(titles, rows) + more
}

// withoutMostUnmet leaves out rules that no request has met, except a few, and returns a line that counts them.
func withoutMostUnmet[R any](all []R, isUnmet func(R) bool) (shown []R, more string) {
	const most = 20
	unmet := 0
	for _, r := range all {
		if isUnmet(r) {
			unmet++
		}
		if !isUnmet(r) || unmet <= most {
			shown = append(shown, r)
		}
	}
	if unmet > most {
		more = fmt.Sprintf("%s more rules were met by no request (-json has all)\n", Number(unmet-most))
	}
	return shown, more
}

// keysTable returns a table of how requests fared, by key, below a title.
func keysTable(title string, all []Key) string {
	if len(all) == 0 {
		return ""
	}
	var rows [][]string
	for _, k := range all {
		rows = append(rows, []string{
			Quoted(k.Key), ruleName(k.Rule), Number(k.Requests), Number(k.AtOnce), Number(k.Waited),
			Refused(k.Refused, k.Requests), k.TotalWait.Mean(k.AtOnce + k.Waited).String(), k.Longest.String(),
		})
	}
	return title + "\n" + Table([]string{"KEY", "RULE", " REQUESTS", " AT ONCE", " WAITED", " REFUSED", " MEAN WAIT", " LONGEST"}, rows)
}

// foundTable returns a table of the results of a search, by rule.
func foundTable(all []Found) string {
	if len(all) == 0 {
		return ""
	}
	var rows [][]string
	all, more := withoutMostUnmet(all, func(f Found) bool { return f.Requests == 0 })
	for _, f := range all {
		row := []string{
			ruleName(f.Rule), Number(f.Keys), Number(f.Requests),
			f.Now.Limits, Refused(f.Now.Refused, f.Requests), f.Now.Longest.String(),
			"none", "", "",
		}
		switch {
		case f.Requests == 0:
			row[6] = "no request"
		case f.Found.Limits != "":
			copy(row[6:], []string{f.Found.Limits, Refused(f.Found.Refused, f.Requests), f.Found.Longest.String()})
		}
		rows = append(rows, row)
	}
	titles := []string{"RULE", " KEYS", " REQUESTS", "NOW", " REFUSED", " LONGEST", "FOUND", " REFUSED", " LONGEST"}
	return Table(titles, rows) + more
}

// Refused returns how many of some requests were refused, with their share.
func Refused(n, of int) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%s (%s)", Number(n), share(n, of))
}

// share returns a share as a percentage of two digits. It is 0% and 100% only if it is
// exactly that.
func share(n, of int) string {
	percent := 100 * float64(n) / float64(of)
	switch {
	case n == of:
		return "100%"
	case percent < 0.01:
		return "<0.01%"
	case percent >= 99.5:
		return ">99%"
	case percent >= 9.95:
		return fmt.Sprintf("%.0f%%", percent)
	}
	return fmt.Sprintf("%.2g%%", percent)
}

// BrokenLines returns how many lines could not be used, and some of them; "" if there are none.
func (l *Log) BrokenLines() string {
	if l.Broken == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %s lines could not be used\n", Number(l.Broken), Number(l.Lines))
	for _, r := range l.Reasons {
		fmt.Fprintf(&b, "%s: %s\n", Number(r.Lines), r.Reason)
		for _, e := range l.Examples {
			if e.Reason == r.Reason {
				fmt.Fprintf(&b, "  %s:%d: %s\n", e.File, e.Line, e.Excerpt)
			}
		}
	}
	return b.String()
}

// Wrap breaks a text into lines of 100 characters.
func Wrap(text string) string {
	const width = 100
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case column == 0:
		case column+1+n > width:
			b.WriteString("\n")
			column = 0
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// Quoted returns a text as it may be shown on a terminal. A client writes part of its key,
// so it may try to write to the terminal of whoever reads the report.
func Quoted(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.QuoteToGraphic(text)
	}
	return text
}

// WriteJSON writes a document as one JSON object.
func WriteJSON(w io.Writer, d any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(d)
}

// A Log says how the logs could be read.
type Log struct {
	Lines    int                `json:"lines"`
	Requests int                `json:"requests"`
	Broken   int                `json:"broken"` // lines, of all reasons
	Reasons  []Reason           `json:"reasons"`
	Examples []accesslog.Broken `json:"examples"` // the first lines of each reason
}

// A Reason is a reason why lines could not be used.
type Reason struct {
	Reason accesslog.Reason `json:"reason"`
	Lines  int              `json:"lines"`
}

// SetLog adds how the logs could be read, and notes about times that are inexact.
func (d *Document) SetLog(s accesslog.Stats, spread bool) {
	d.Log = Log{Lines: s.Lines, Requests: s.Records, Reasons: []Reason{}, Examples: append([]accesslog.Broken{}, s.Examples...)}
	for reason, n := range s.Broken {
		d.Log.Broken += n
		d.Log.Reasons = append(d.Log.Reasons, Reason{reason, n})
	}
	slices.SortFunc(d.Log.Reasons, func(a, b Reason) int {
		return cmp.Or(cmp.Compare(b.Lines, a.Lines), cmp.Compare(a.Reason, b.Reason))
	})
	if s.NULs > 0 {
		d.Note("%s before the lines are skipped, as a rotation that copies a log and truncates it leaves them at its head", Count(s.NULs, "NUL byte"))
	}
	for _, heads := range slices.Sorted(maps.Keys(s.Heads)) {
		d.Note("the lines of %s have a head of a collector before them, which is skipped: %s", Count(s.Heads[heads], "request"), heads)
	}
	if s.Lists > 0 {
		d.Note("the log tells a list of addresses for %s, as of X-Forwarded-For: the client is taken to be the last that is not private", Count(s.Lists, "request"))
	}
	if s.Pairs > 0 {
		d.Note("the lines of %s begin with two addresses or more, as of the client and the server: the client is taken to be the last that is not private. "+
			`If it is another one, say which: -format '$remote_addr $- $- $- [$time_local] "$request" $status'`, Count(s.Pairs, "request"))
	}
	switch {
	case s.Coarse > 0 && spread:
		d.Note("the log tells whole seconds of %s; those of one second are spread evenly over it (-spread), so there may have been more waiting and more refusals than this says", Count(s.Coarse, "request"))
	case s.Coarse > 0:
		d.Note("the log tells whole seconds of %s; those of one second are taken as simultaneous, so there may have been less waiting and fewer refusals than this says: compare with -spread", Count(s.Coarse, "request"))
	}
	if s.Undated > 0 {
		d.Note("the log dates %s by the end, and does not tell how long they took, so they arrive late here", Count(s.Undated, "request"))
	}
	if s.Redacted > 0 {
		d.Note("the server has written REDACTED instead of the header field of %s: these keys are all one", Count(s.Redacted, "request"))
	}
}

// Table returns rows below titles. A column whose title begins with a blank has numbers,
// which are aligned to the right.
func Table(titles []string, rows [][]string) string {
	rows = append([][]string{slices.Clone(titles)}, rows...)
	for i, title := range titles {
		trimmed := strings.TrimPrefix(title, " ")
		rows[0][i] = trimmed
		if trimmed == title {
			continue
		}
		// A tabwriter aligns all of its columns alike.
		width := 0
		for _, row := range rows {
			width = max(width, utf8.RuneCountInString(row[i]))
		}
		for _, row := range rows {
			row[i] = fmt.Sprintf("%*s", width, row[i])
		}
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.TrimRight(strings.Join(row, "\t"), " \t"))
	}
	w.Flush()
	return b.String()
}
