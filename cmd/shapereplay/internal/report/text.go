package report

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
	"example.com/leakybucket/internal/limitwords"
)

// Print writes a document as text.
func (t *Terminal) Print(d *Document) error {
	var b strings.Builder
	b.WriteString(t.styled(bold, t.wrap(d.title())) + "\n")
	if len(d.Rules) > 0 && d.From != nil {
		b.WriteString("\n" + t.rules(d.Rules))
	}
	if len(d.Found) > 0 && d.From != nil {
		b.WriteString("\n" + t.found(d.Found))
	}
	if len(d.RefusedMost) > 0 {
		b.WriteString("\n" + t.styled(bold, "Refused most") + "\n" + t.keys(d.RefusedMost))
	}
	if len(d.WaitedLongest) > 0 {
		b.WriteString("\n" + t.styled(bold, "Waited longest") + "\n" + t.keys(d.WaitedLongest))
	}
	if len(d.Notes) > 0 {
		b.WriteString("\n")
	}
	for _, note := range d.Notes {
		b.WriteString(t.wrap("Note: "+note) + "\n")
	}
	b.WriteString(t.broken(d.Log))
	_, err := io.WriteString(t.Out, b.String())
	return err
}

// title says what was read.
func (d *Document) title() string {
	if d.From == nil {
		return "No requests"
	}
	title := fmt.Sprintf("%s of %s (%s), %s to %s", requests(d.Requests+d.NoRule), keys(d.Keys), d.Key, shown(*d.From), shown(*d.To))
	if d.Interrupted {
		title += ", interrupted"
	}
	return title
}

func keys(n int) string {
	if n == 1 {
		return "1 key"
	}
	return number(n) + " keys"
}

func shown(t time.Time) string { return t.Format("2006-01-02 15:04:05Z") }

// rules returns what was met, by rule.
func (t *Terminal) rules(all []Rule) string {
	columns := []column{
		{title: "RULE", least: 9}, {title: "LIMITS", least: 12, order: 9}, {title: "KEYS", right: true, order: 2}, {title: "REQUESTS", right: true},
		{title: "AT ONCE", right: true, order: 4}, {title: "WAITED", right: true}, {title: "REFUSED", right: true},
		{title: "QUEUE-FULL", right: true, order: 6}, {title: "TOO-LATE", right: true, order: 7},
		{title: "P50", right: true, order: 3}, {title: "P95", right: true, order: 5}, {title: "P99", right: true, order: 8},
		{title: "LONGEST", right: true}, {title: "LINE", right: true, order: 1},
	}
	var rows [][]cell
	unmet := 0
	for _, r := range all {
		if r.Requests == 0 {
			if unmet++; unmet > mostUnmet {
				continue
			}
		}
		limits := plain(r.Limits)
		if r.Limits == "" {
			limits = cell{"no candidate", faint}
		}
		rows = append(rows, []cell{
			plain(ruleName(r.Rule)), limits, plain(number(r.Keys)), plain(number(r.Requests)), plain(number(r.AtOnce)), plain(number(r.Waited)),
			refused(r.Refused, r.Requests), plain(number(r.QueueFull)), plain(number(r.TooLate)),
			r.WaitP50.cell(), r.WaitP95.cell(), r.WaitP99.cell(), r.WaitMax.cell(), plain(number(r.LineMax)),
		})
	}
	return t.table(columns, rows) + omitted(unmet)
}

// mostUnmet is how many rules that no request has met are shown, beside all others.
const mostUnmet = 20

// omitted says how many rules that no request has met are not shown.
func omitted(unmet int) string {
	if unmet <= mostUnmet {
		return ""
	}
	return fmt.Sprintf("%s more rules were met by no request (-json has all)\n", number(unmet-mostUnmet))
}

// keys returns what was met, by key.
func (t *Terminal) keys(all []Key) string {
	columns := []column{
		{title: "KEY", least: 16}, {title: "RULE", least: 9, order: 3}, {title: "REQUESTS", right: true}, {title: "AT ONCE", right: true, order: 2},
		{title: "WAITED", right: true}, {title: "REFUSED", right: true}, {title: "MEAN WAIT", right: true, order: 1}, {title: "LONGEST", right: true},
	}
	var rows [][]cell
	for _, k := range all {
		mean := Seconds(0)
		if left := k.AtOnce + k.Waited; left > 0 {
			mean = k.TotalWait / Seconds(left)
		}
		rows = append(rows, []cell{
			plain(quoted(k.Key)), plain(ruleName(k.Rule)), plain(number(k.Requests)), plain(number(k.AtOnce)), plain(number(k.Waited)),
			refused(k.Refused, k.Requests), mean.cell(), k.WaitMax.cell(),
		})
	}
	return t.table(columns, rows)
}

// found returns what a search has found, by rule.
func (t *Terminal) found(all []Found) string {
	columns := []column{
		{title: "RULE", least: 9}, {title: "KEYS", right: true, order: 1}, {title: "REQUESTS", right: true, order: 2},
		{title: "NOW", least: 12, order: 5}, {title: "REFUSED", right: true}, {title: "LONGEST", right: true, order: 3},
		{title: "FOUND"}, {title: "REFUSED", right: true}, {title: "LONGEST", right: true, order: 4},
	}
	var rows [][]cell
	unmet := 0
	for _, f := range all {
		if f.Requests == 0 {
			if unmet++; unmet > mostUnmet {
				continue
			}
		}
		row := []cell{
			plain(ruleName(f.Rule)), plain(number(f.Keys)), plain(number(f.Requests)),
			plain(f.Now.Limits), refused(f.Now.Refused, f.Requests), f.Now.WaitMax.cell(),
			{"none", red}, plain(""), plain(""),
		}
		switch {
		case f.Requests == 0:
			row[6] = cell{"no request", faint}
		case f.Found.Limits != "":
			copy(row[6:], []cell{{f.Found.Limits, bold}, refused(f.Found.Refused, f.Requests), f.Found.WaitMax.cell()})
		}
		rows = append(rows, row)
	}
	return t.table(columns, rows) + omitted(unmet)
}

// refused returns how many of some requests were refused, with their share.
func refused(n, of int) cell {
	if n == 0 {
		return plain("0")
	}
	return cell{fmt.Sprintf("%s (%s)", number(n), share(n, of)), red}
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

func (s Seconds) cell() cell {
	if s == 0 {
		return plain("0")
	}
	return plain(limitwords.Seconds(float64(s)))
}

// broken returns how many lines could not be used, and some of them; "" if there are none.
func (t *Terminal) broken(l Log) string {
	if l.Broken == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n", t.styled(bold, fmt.Sprintf("%s of %s lines could not be used", number(l.Broken), number(l.Lines))))
	for _, r := range l.Reasons {
		fmt.Fprintf(&b, "%s: %s\n", number(r.Lines), r.Reason)
		for _, e := range l.Examples {
			if e.Reason != r.Reason {
				continue
			}
			line := fmt.Sprintf("  %s:%d: %s", e.File, e.Line, e.Text)
			if t.Width > 0 {
				line = cut(line, t.Width)
			}
			b.WriteString(t.styled(faint, line) + "\n")
		}
	}
	return b.String()
}

// wrap breaks a text into lines of the terminal's width.
func (t *Terminal) wrap(text string) string {
	width := t.Width
	if width == 0 {
		width = 100
	}
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		n := len([]rune(word))
		switch {
		case i == 0:
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

// quoted returns a text as it may be shown on a terminal. A client writes part of its key,
// so it may try to write to the terminal of whoever reads the report.
func quoted(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.QuoteToGraphic(text)
	}
	return text
}

// WriteJSON writes a document as one JSON object.
func WriteJSON(w io.Writer, d *Document) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(d)
}

// Addresses returns a list of addresses for a firewall, with one address or prefix per
// line.
func Addresses(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return strings.Join(all, "\n") + "\n"
}

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
