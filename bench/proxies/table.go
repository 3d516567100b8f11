package proxies

import (
	"fmt"
	"slices"
	"strings"

	"example.com/leakybucket/bench/internal/plot"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// report returns all lines, with a picture of the spacings.
func (f results) report(o run.Options, p *programs) (report.Report, error) {
	r := report.Report{
		Note:  note(p),
		Lines: slices.Concat(run.Lines(f.spacings), run.Lines(f.leavings), run.Lines(f.ceilings), run.Lines(f.waitings)),
	}
	var err error
	if rows := f.rows(); len(rows.Rows) > 0 {
		rows.Caption += o.Machine + "."
		r.Pictures = make([]report.Picture, 1)
		r.Pictures[0], err = rows.Draw(ours)
	}
	return r, err
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

const wantedFactor = 0.25

// goals hold the median error of ours against nginx's at each rate.
func goals() (all []report.Goal) {
	for _, rate := range []int{100, 1000} {
		name := func(proxy string) string { return fmt.Sprintf("ProxySpacing/proxy=%s/rate=%d err-p50-ns", proxy, rate) }
		for _, proxy := range []string{ours, middleware} {
			all = append(all, report.Goal{
				What: fmt.Sprintf("median spacing error at an upstream behind %s at %s, against nginx", proxy, report.PerSecond(float64(rate))),
				Ours: name(proxy), Theirs: []string{name(nginx)}, Most: wantedFactor,
			})
		}
	}
	return all
}

// rows are what the picture shows: how the spacings at 1,000/s spread.
func (f results) rows() plot.Spacings {
	const rate = 1000
	rows := plot.Spacings{
		Name: "proxies", Title: "How even is what reaches an upstream behind a proxy?", Rate: rate,
		Caption: "haproxy-maxconn is paced by an upstream that takes an interval for each request. ",
	}
	for _, r := range f.spacings {
		if r.Input.Rate == rate {
			rows.Rows = append(rows.Rows, plot.SpacingsRow{Name: r.Input.Proxy, Rounds: r.Found})
		}
	}
	return rows
}
