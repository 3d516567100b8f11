// Package nginx compares what an upstream sees behind nginx's limit_req with
// what it sees behind httputil.ReverseProxy and this library's middleware: how
// evenly requests arrive, in which order, how many the proxy can hand on, and
// what each costs. It starts nginx by itself, on loopback and in a temporary
// folder, and removes both in the end.
package nginx

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// Experiment is "nginx". Where nginx is missing, the report says so and there is
// no error.
var Experiment = run.Experiment{
	Name:     "nginx",
	What:     "what an upstream sees behind nginx limit_req and behind the middleware",
	Estimate: func(o run.Options) time.Duration { return run.Estimate(bursts(o)) + run.Estimate(ceilings(o)) },
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		program, err := findNginx(os.Getenv("PATH"))
		if err != nil {
			o.Progress.Logf("skipped: %v\n", err)
			return report.Report{Tables: []report.Table{{Title: "nginx: not measured", Note: err.Error() + "."}}}, nil
		}
		return compare(ctx, o, program, bursts(o), ceilings(o))
	},
}

const (
	fewestRequests = 20
	mostRequests   = 900 // below the open files that are allowed everywhere
)

// burstOf returns what is sent through a proxy at a rate: two seconds' worth of
// requests, each a good deal sooner than it may leave, so that the line never
// runs dry.
func burstOf(proxy string, rate int) burst {
	interval := time.Second / time.Duration(rate)
	return burst{
		Proxy: proxy, Rate: rate,
		Requests: min(max(2*rate, fewestRequests), mostRequests),
		Every:    min(500*time.Microsecond, interval*3/10),
	}
}

func bursts(o run.Options) (cases []run.Case[burst]) {
	rates := []int{100, 1000}
	if o.Quick {
		rates = rates[1:]
	}
	for _, rate := range rates {
		for _, proxy := range []string{theirs, ours} {
			b := burstOf(proxy, rate)
			cases = append(cases, run.Case[burst]{
				Name:  fmt.Sprintf("NginxSpacing/proxy=%s/rate=%d", proxy, rate),
				Input: b, Rounds: o.Times(5, 1),
				Estimate: time.Duration(b.Requests)*time.Second/time.Duration(rate) + 300*time.Millisecond,
			})
		}
	}
	return cases
}

// A ceilingInput is a proxy that is asked for as long as the window is.
type ceilingInput struct {
	Proxy  string
	Window time.Duration
}

func ceilings(o run.Options) (cases []run.Case[ceilingInput]) {
	window := 2 * time.Second
	if o.Quick {
		window /= 4
	}
	for _, proxy := range []string{theirs, ours, bare, direct} {
		c := run.Case[ceilingInput]{
			Name:  "NginxCeiling/proxy=" + proxy,
			Input: ceilingInput{proxy, window}, Rounds: o.Times(5, 1), Estimate: window*11/10 + 100*time.Millisecond,
		}
		if proxy == direct { // It only shows how far the load generator reaches.
			c.Rounds = 1
		}
		cases = append(cases, c)
	}
	return cases
}

// compare measures everything.
func compare(ctx context.Context, o run.Options, program string, bursts []run.Case[burst], ceilings []run.Case[ceilingInput]) (report.Report, error) {
	version, err := nginxVersion(ctx, program)
	if err != nil {
		return report.Report{}, err
	}
	dir, err := os.MkdirTemp("", "bench-nginx")
	if err != nil {
		return report.Report{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // What may be left there is empty folders.
	if err := os.Chmod(dir, 0o711); err != nil {
		return report.Report{}, err
	}
	u, err := startUpstream()
	if err != nil {
		return report.Report{}, err
	}
	defer u.close()

	all := proxies(program, dir)
	named := func(name string) proxy {
		return all[slices.IndexFunc(all, func(p proxy) bool { return p.name == name })]
	}
	spacings, err1 := run.InTurns(ctx, o, func(ctx context.Context, b burst) (spacing, error) {
		s, err := b.measureSpacing(ctx, named(b.Proxy), u)
		return s, of(b.Proxy, err)
	}, bursts)
	through, err2 := run.InTurns(ctx, o, func(ctx context.Context, in ceilingInput) (c ceiling, err error) {
		if in.Proxy == direct {
			c, err = measureDirect(ctx, u, in.Window)
		} else {
			c, err = measureCeiling(ctx, named(in.Proxy), u, in.Window)
		}
		return c, of(in.Proxy, err)
	}, ceilings)
	return reportOf(version, spacings, through), errors.Join(err1, err2)
}

// of names the proxy in an error.
func of(proxy string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", proxy, err)
	}
	return nil
}

func reportOf(version string, spacings []run.Result[burst, spacing], ceilings []run.Result[ceilingInput, ceiling]) (r report.Report) {
	r.Goals = goals(spacings)
	run.Report(&r, spacings, func(results []run.Result[burst, spacing]) report.Table { return spacingTable(version, results) })
	run.Report(&r, ceilings, ceilingTable)
	return r
}

func spacingTable(version string, results []run.Result[burst, spacing]) report.Table {
	t := report.Table{
		Title: "nginx: spacing at the upstream",
		Note: fmt.Sprintf("%s with limit_req, against httputil.ReverseProxy behind the middleware; medians of %d interleaved rounds. ", version, len(results[0].Found)) +
			"Error: |spacing - interval|. Requests are sent one after another, each on its own open connection, sooner than they may leave. " +
			"Overtaken: arrived after a request that was behind. Against the order of sending, a request on a quick connection overtakes " +
			"already at the entrance: net/http reads each connection in a goroutine of its own, nginx all in one loop. Against the order in " +
			"which requests entered the line it shows what line and way out did; nginx does not let that order be seen.",
		Columns: []string{"rate", "proxy", "requests", "rate reached", "error p50 µs", "error p99 µs", "bunched %", "overtaken %: sent", "in line", "refused"},
	}
	for _, r := range results {
		m := r.Median
		t.Rows = append(t.Rows, []string{
			report.PerSecond(float64(r.Input.Rate)), r.Input.Proxy, fmt.Sprint(r.Input.Requests), report.Fixed(m.RateReached, 4),
			report.Figure(m.ErrorP50 / 1000), report.Figure(m.ErrorP99 / 1000), report.Fixed(m.Bunched, 1),
			report.Fixed(m.Overtaken, 1), report.Fixed(m.OvertakenInLine, 1), report.Fixed(m.Refused, 0),
		})
	}
	return t
}

func ceilingTable(results []run.Result[ceilingInput, ceiling]) report.Table {
	t := report.Table{
		Title: "nginx: ceiling",
		Note: fmt.Sprintf("%d connections, each of which asks again when it has its response; the limit is %s. nginx has one worker, "+
			"Go all processors, which load generator and upstream share: what compares is the CPU time per request. "+
			"proxy-alone: the ReverseProxy without the middleware. no-proxy: the upstream itself, once.", ceilingCallers, report.PerSecond(noLimit)),
		Columns: []string{"proxy", "requests/s", "CPU s per 100,000"},
	}
	for _, r := range results {
		t.Rows = append(t.Rows, []string{r.Input.Proxy, report.Grouped(int(r.Median.PerSecond)), report.Figure(r.Median.CPU / 1e4)})
	}
	return t
}

const wantedFactor = 4

// goals holds the median error of ours against nginx's at each rate.
func goals(results []run.Result[burst, spacing]) (all []report.Goal) {
	for _, r := range results {
		if r.Input.Proxy != ours {
			continue
		}
		nginx, measured := run.MedianWhere(results, func(in burst) bool { return in.Proxy == theirs && in.Rate == r.Input.Rate })
		if !measured {
			continue
		}
		what := fmt.Sprintf("median spacing error at an upstream at %s, against nginx", report.PerSecond(float64(r.Input.Rate)))
		all = append(all, report.Lower(what, wantedFactor, r.Median.ErrorP50/1000, nginx.ErrorP50/1000, "µs"))
	}
	return all
}
