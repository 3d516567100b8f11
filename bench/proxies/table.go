package proxies

import (
	"fmt"
	"slices"
	"strings"

	"example.com/leakybucket/bench/internal/plot"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// report has one table of everything.
func (f results) report(o run.Options, p *programs) report.Report {
	r := report.Report{
		Tables: []report.Table{f.table(p)}, Goals: f.goals(),
		Lines: slices.Concat(run.Lines(f.spacings), run.Lines(f.leavings), run.Lines(f.ceilings), run.Lines(f.waitings)),
	}
	if picture, drawn := f.picture(o.Machine); drawn {
		r.Pictures = append(r.Pictures, picture)
	}
	return r
}

// rates returns those at which the spacing was measured, each once.
func (f results) rates() (rates []int) {
	for _, r := range f.spacings {
		if !slices.Contains(rates, r.Input.Rate) {
			rates = append(rates, r.Input.Rate)
		}
	}
	return rates
}

func (f results) table(p *programs) report.Table {
	t := report.Table{Title: "Proxies: one upstream behind each", Note: note(p), Columns: []string{"proxy", "limits"}}
	for _, rate := range f.rates() {
		at := " at " + report.PerSecond(float64(rate))
		t.Columns = append(t.Columns, "rate reached"+at, "error p50 µs"+at, "error p99 µs"+at, "overtaken %"+at)
	}
	t.Columns = append(t.Columns, "served % when half leave", "% of those who left that still arrive", "requests/s", "CPU µs per request",
		"MiB at rest", "KiB per waiting request", "waiting")
	for _, r := range rivals {
		if p.has(r.name) {
			t.Rows = append(t.Rows, f.row(r))
		}
	}
	if alone, measured := run.MedianWhere(f.ceilings, func(in ceilingInput) bool { return in.Proxy == direct }); measured {
		row := slices.Repeat([]string{"-"}, len(t.Columns))
		row[0], row[1], row[len(row)-5] = direct, named(caddy).does, report.Grouped(int(alone.PerSecond))
		t.Rows = append(t.Rows, row)
	}
	return t
}

// row returns the cells of a rival. A cell without a figure says why.
func (f results) row(r rival) []string {
	row := []string{r.name, r.does}
	for _, rate := range f.rates() {
		found, measured := run.MedianWhere(f.spacings, func(in spacingInput) bool { return in.Proxy == r.name && in.Rate == rate })
		row = append(row, cells(r.limit != unlimited, "no limit", measured,
			report.Fixed(found.RateReached, 4), report.Figure(found.ErrorP50/1000), report.Figure(found.ErrorP99/1000), report.Fixed(found.Overtaken, 1))...)
	}
	left, measured := run.MedianWhere(f.leavings, func(in leavingInput) bool { return in.Proxy == r.name })
	row = append(row, cells(r.limit != unlimited, "no line", measured, report.Fixed(left.Served, 1), report.Fixed(left.Asked, 1))...)
	through, measured := run.MedianWhere(f.ceilings, func(in ceilingInput) bool { return in.Proxy == r.name })
	row = append(row, cells(true, "", measured, report.Grouped(int(through.PerSecond)), report.Figure(through.CPU/1000))...)
	memory, measured := run.MedianWhere(f.waitings, func(in waitingInput) bool { return in.Proxy == r.name })
	row = append(row, cells(true, "", measured, report.Figure(memory.AtRest))...)
	return append(row, cells(r.limit != bySessions, "in the kernel", measured, report.Figure(memory.PerRequest), report.Grouped(int(memory.Requests)))...)
}

// cells returns figures if they were measured. If a proxy can't do what they are about,
// each cell says so.
func cells(can bool, cannot string, measured bool, figures ...string) []string {
	switch {
	case !can:
		return slices.Repeat([]string{cannot}, len(figures))
	case !measured:
		return slices.Repeat([]string{"not measured"}, len(figures))
	}
	return figures
}

// note says what was compared, how, and what the columns are.
func note(p *programs) string {
	var b strings.Builder
	version := func(name string) string {
		if v := p.versions[name]; v != "" {
			return " (" + v + ")"
		}
		return ""
	}
	fmt.Fprintf(&b, "shaperd: Caddy%s with this library, a bucket for each client's address. middleware: httputil.ReverseProxy behind the middleware. ", version(ours))
	fmt.Fprintf(&b, "nginx%s: limit_req for each client's address, with burst and without nodelay. ", version(nginx))
	fmt.Fprintf(&b, "HAProxy%s limits in two ways. haproxy-sessions: \"rate-limit sessions\" accepts so many connections a second and leaves the others in the "+
		"kernel's backlog; it can't tell requests on one connection apart, nor clients. haproxy-maxconn: \"server … maxconn\" queues what exceeds so many requests at once. "+
		"That is no rate: its figures are of an upstream that takes exactly one interval for each request, with maxconn 1. "+
		"(A rate of requests in HAProxy, from a stick-table, refuses: deny at once, tarpit after a fixed time.) ", version(haproxyMaxconn))
	b.WriteString("caddy: the same Caddy without a limit. All use all processors, which they share with load generator and upstream. ")
	b.WriteString("Medians of interleaved rounds. ")
	b.WriteString("Error: |spacing - interval| at the upstream, of requests that are sent one after another, each on its own open connection, sooner than they may leave. " +
		"Of haproxy-sessions two seconds are left out before: it lets a second's worth pass before it holds any back. Overtaken: arrived after a request that was sent later. " +
		"Go's servers read each connection in a goroutine of its own, so that requests overtake each other before they come to the line. ")
	b.WriteString("Served: every second caller in line closes its connection; the slots from then on that went to one of the others. ")
	fmt.Fprintf(&b, "Requests/s: %d connections, each of which asks again when it has its response, with a limit out of reach; "+
		"no-proxy is the upstream itself, once. CPU: user and system time of all processes of the proxy. ", ceilingCallers)
	b.WriteString("Memory: what the proxy's processes have resident, at rest and beyond that for each request that waits, without the kernel's share. Caddy without a limit lets them " +
		"all pass to the upstream, which does not answer: each of its requests has a second connection. In the kernel: haproxy-sessions leaves as many there as " +
		"the system allows (on Linux net.core.somaxconn, mostly 4,096), and has no line of its own.")
	for _, missing := range p.missing {
		fmt.Fprintf(&b, " Not measured: %v.", missing)
	}
	return b.String()
}

const wantedFactor = 4

// goals holds the median error of ours against nginx's at each rate.
func (f results) goals() (all []report.Goal) {
	for _, rate := range f.rates() {
		at := func(name string) (spacing, bool) {
			return run.MedianWhere(f.spacings, func(in spacingInput) bool { return in.Proxy == name && in.Rate == rate })
		}
		theirs, measured := at(nginx)
		for _, name := range []string{ours, middleware} {
			found, too := at(name)
			if measured && too {
				what := fmt.Sprintf("median spacing error at an upstream behind %s at %s, against nginx", name, report.PerSecond(float64(rate)))
				all = append(all, report.Lower(what, wantedFactor, found.ErrorP50/1000, theirs.ErrorP50/1000, "µs"))
			}
		}
	}
	return all
}

// picture draws how the spacings at 1,000/s spread.
func (f results) picture(machine string) (p report.Picture, drawn bool) {
	const rate = 1000
	rows := plot.Spacings{
		Name: "proxies", Title: "How even is what reaches an upstream behind a proxy?", Rate: rate,
		Caption: "haproxy-maxconn is paced by an upstream that takes an interval for each request. " + machine + ".",
	}
	for _, r := range f.spacings {
		if r.Input.Rate == rate {
			rows.Rows = append(rows.Rows, plot.SpacingsRow{Name: r.Input.Proxy, Spread: r.Median})
		}
	}
	if len(rows.Rows) == 0 {
		return p, false
	}
	return rows.Draw(ours), true
}
