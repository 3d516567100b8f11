package quota

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
	"example.com/leakybucket/cmd/shapereplay/internal/report"
	"example.com/leakybucket/cmd/shapereplay/internal/simulate"
)

// A Document is the whole report. Its names in JSON stay as they are; others may be
// added.
type Document struct {
	Calls       int        `json:"calls"`
	From        *time.Time `json:"from"` // the first arrival; null: there is none
	To          *time.Time `json:"to"`
	Interrupted bool       `json:"interrupted"`

	Provider string           `json:"provider"`
	Burst    simulate.Seconds `json:"burst_s"`
	Depth    int              `json:"depth"`
	MaxWait  simulate.Seconds `json:"max_wait_s"` // 0: no limit

	Limits []Limit `json:"limits"`
	All    Team    `json:"all"`
	Teams  []*Team `json:"teams"` // the one with the most tokens first

	// Shares of the quota's minute, in millionths.
	GivenBack uint64 `json:"given_back"`
	Charged   uint64 `json:"charged"`
	Forfeited uint64 `json:"forfeited"` // reserved in excess, but drained before the call ended

	Notes []string   `json:"notes"`
	Log   report.Log `json:"log"`
}

// NewDocument returns a document of a result, with how the log could be read.
func NewDocument(r Result, interrupted bool, log accesslog.Stats) *Document {
	d := &Document{
		Calls: r.All.Now.Calls, Interrupted: interrupted,
		Provider: r.Setup.Provider, Burst: simulate.Seconds(r.Setup.Burst), Depth: r.Setup.Depth, MaxWait: simulate.Seconds(r.Setup.MaxWait),
		Limits: r.Limits, All: r.All, Teams: r.Teams, Notes: []string{},
		GivenBack: r.Settled.GivenBack, Charged: r.Settled.Charged, Forfeited: r.Settled.Forfeited,
	}
	if !r.First.IsZero() {
		d.From, d.To = &r.First, &r.Last
	}
	known := map[string]bool{}
	for _, t := range r.Teams {
		known[t.Team] = true
		t.Team = accesslog.ShortName(t.Team)
	}
	for _, team := range slices.Sorted(maps.Keys(r.Setup.Weights)) {
		if d.From != nil && !known[team] {
			d.Note("-weights names %s, and no call is of that team", shown(team))
		}
	}
	if r.NotRun > 0 {
		d.Note("%s refused then, or the client went while it waited: nobody knows how long such a call would have taken. "+
			"It is replayed with its estimate, which stands", calls(r.NotRun, "was", "were"))
	}
	if r.NotInLine > 0 {
		d.Note("%s no valid token of the gateway, or a body that did not come: left out", calls(r.NotInLine, "had", "had"))
	}
	if r.Unknown > 0 {
		d.Note("%s ended without a usage: the estimate of each stands", calls(r.Unknown, "has", "have"))
	}
	if r.Setup.Provider == "openai" && d.Calls > 0 {
		d.Note("OpenAI counts a call when it begins, so all estimates stand; for a server that only speaks like OpenAI's, -provider openai-compatible settles with what was used")
	}
	if r.Settled.Forfeited > r.Settled.GivenBack {
		d.Note("of the reserved excess more has drained than could be given back: a larger -burst may let more calls leave")
	}
	var lines report.Document
	lines.SetLog(log, false)
	d.Log, d.Notes = lines.Log, append(d.Notes, lines.Notes...)
	return d
}

// Note adds a note.
func (d *Document) Note(format string, args ...any) {
	d.Notes = append(d.Notes, fmt.Sprintf(format, args...))
}

// calls returns how many calls, with the verb.
func calls(n int, one, many string) string {
	if n == 1 {
		many = one
	}
	return report.Count(n, "call") + " " + many
}

// shown returns the name of a team as it is shown.
func shown(team string) string { return cmp.Or(report.Quoted(team), "(none)") }

// Print writes a document as text, with at most so many teams.
func Print(w io.Writer, d *Document, teams int) error {
	var tables []string
	if d.From != nil {
		tables = []string{d.limitsTable(), d.teamsTable(teams)}
	}
	return report.PrintSections(w, d.title(), tables, d.Notes, &d.Log)
}

// title says which calls were replayed, under which quota.
func (d *Document) title() string {
	if d.From == nil {
		return "No calls"
	}
	title := fmt.Sprintf("%s of %s, %s to %s, as %s counts them, with burst %v, depth %s",
		report.Count(d.Calls, "call"), report.Count(len(d.Teams), "team"), report.Shown(*d.From), report.Shown(*d.To), d.Provider, d.Burst, report.Number(d.Depth))
	if d.MaxWait > 0 {
		title += fmt.Sprintf(", wait %v", d.MaxWait)
	}
	if d.Interrupted {
		title += ", interrupted"
	}
	return title
}

func (d *Document) limitsTable() string {
	var rows [][]string
	for _, l := range d.Limits {
		rows = append(rows, []string{
			l.Limit, report.Number(l.Minute), report.Number(l.Taken),
			percent(l.Mean, l.Minute), percent(float64(l.Most), l.Minute),
		})
	}
	return report.Table([]string{"QUOTA", " A MINUTE", " TAKEN", " USED ON AVERAGE", " IN THE FULLEST MINUTE"}, rows)
}

func percent(n float64, of int) string { return fmt.Sprintf("%.0f%%", 100*n/float64(of)) }

func (d *Document) teamsTable(most int) string {
	var rows [][]string
	add := func(name, weight string, r *Team) {
		rows = append(rows, []string{
			name, weight, report.Number(r.Now.Calls), report.Number(r.Tokens),
			report.Refused(r.Now.Refused, r.Now.Calls), r.Now.WaitMean.String(), r.Now.WaitP99.String(), r.Now.WaitMax.String(),
			report.Refused(r.Then.Refused, r.Then.Calls), r.Then.WaitMean.String(), r.Then.WaitP99.String(), r.Then.WaitMax.String(),
		})
	}
	for _, r := range d.Teams[:min(most, len(d.Teams))] {
		add(shown(r.Team), report.Number(r.Weight), r)
	}
	add("(all)", "", &d.All)
	titles := []string{
		"TEAM", " WEIGHT", " CALLS", " TOKENS", " REFUSED", " MEAN WAIT", " P99", " LONGEST", " REFUSED THEN", " MEAN THEN", " P99 THEN", " LONGEST THEN",
	}
	text := report.Table(titles, rows)
	if more := len(d.Teams) - most; more > 0 {
		text += fmt.Sprintf("(all) has %s more with fewer tokens (-top, or -json for all)\n", report.Number(more))
	}
	return text
}
