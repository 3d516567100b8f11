// Package proxies compares what an upstream sees behind proxies that limit how fast
// requests reach it: Caddy with this library (cmd/shaperd), a few lines of Go with the
// middleware, nginx with limit_req, and HAProxy. It measures how evenly and in which order
// requests arrive, what becomes of the slots of callers that leave, how many requests a
// proxy can hand on, and their cost, beside Caddy without a limit. It starts all proxies
// by itself, on loopback and in a temporary folder, and removes both in the end.
package proxies

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// Experiment is "proxies".
var Experiment = run.Experiment{
	Name:  "proxies",
	What:  "what an upstream sees behind Caddy with the shaper, nginx limit_req and HAProxy, and what each costs",
	Needs: needs, Goals: goals(),
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		dir, err := os.MkdirTemp("", "bench-proxies")
		if err != nil {
			return report.Report{}, err
		}
		defer func() { _ = os.RemoveAll(dir) }() // At most empty folders are left there.
		p, err := findPrograms(ctx, o, dir)
		if err != nil {
			return report.Report{}, err
		}
		return p.compare(ctx, o, casesOf(o))
	},
}

var needs = []run.Program{
	{Name: "nginx", GetIt: "Debian: apt-get install nginx-light"}, {Name: "haproxy", GetIt: "Debian: apt-get install haproxy"}, run.Go,
}

// cases are all measurements.
type cases struct {
	spacings []run.Case[spacingInput]
	leavings []run.Case[leavingInput]
	ceilings []run.Case[ceilingInput]
	waitings []run.Case[waitingInput]
}

// leadOf returns how long a proxy needs to find its pace. HAProxy lets a second's worth of
// connections pass before it holds any back, then none for a second.
func leadOf(r rival) time.Duration {
	if r.limit == bySessions {
		return 2 * time.Second
	}
	return 200 * time.Millisecond
}

// casesOf returns the cases to measure.
func casesOf(o run.Options) (c cases) {
	windows := map[int]time.Duration{100: 2 * time.Second, 1000: 1500 * time.Millisecond}
	waiting, flooding := 10_000, 2*time.Second
	if o.Quick {
		windows = map[int]time.Duration{100: time.Second / 2}
		waiting, flooding = 200, 200*time.Millisecond
	}
	for _, rate := range slices.Sorted(maps.Keys(windows)) {
		for _, r := range rivals {
			if r.limit != unlimited {
				in := spacingInput{r.name, rate, leadOf(r), windows[rate]}
				c.spacings = append(c.spacings, caseOf(o, fmt.Sprintf("ProxySpacing/proxy=%s/rate=%d", r.name, rate), in))
			}
		}
	}
	for _, r := range rivals {
		if r.limit != unlimited {
			in := leavingInput{r.name, 400, leadOf(r), 400}
			c.leavings = append(c.leavings, caseOf(o, "ProxyLeaving/proxy="+r.name, in))
		}
		if measure.MemoryIsTold() {
			in := waitingInput{r.name, waiting}
			c.waitings = append(c.waitings, caseOf(o, "ProxyWaiting/proxy="+r.name, in))
		}
		c.ceilings = append(c.ceilings, caseOf(o, "ProxyCeiling/proxy="+r.name, ceilingInput{r.name, flooding}))
	}
	return c
}

func caseOf[In any](o run.Options, name string, in In) run.Case[In] {
	return run.Case[In]{Name: name, Input: in, Rounds: o.Times(3, 1)}
}

// compare measures the cases.
func (p *programs) compare(ctx context.Context, o run.Options, c cases) (report.Report, error) {
	spacings, err1 := take(ctx, o, p.measureSpacing, c.spacings, o.Quick)
	leavings, err2 := take(ctx, o, p.measureLeaving, c.leavings, o.Quick)
	ceilings, err3 := take(ctx, o, p.measureCeiling, c.ceilings, false)
	waitings, err4 := take(ctx, o, p.measureWaiting, c.waitings, o.Quick)
	r := report.Report{
		Note:  p.note(),
		Lines: slices.Concat(run.Lines(spacings), run.Lines(leavings), run.Lines(ceilings), run.Lines(waitings)),
	}
	const rate = 1000
	drawn := func(in spacingInput) (string, bool) { return in.Proxy, in.Rate == rate }
	err5 := run.DrawSpacings(&r, report.Spacings{
		Name: "proxies", Title: "How even is what reaches an upstream behind a proxy?", Rate: rate,
		Caption: "haproxy-maxconn is paced by an upstream that takes an interval for each request. " + o.Machine + ".",
	}, ours, spacings, drawn, func(found spacing) measure.Spread { return found })
	return r, errors.Join(err1, err2, err3, err4, err5)
}

// take measures cases. At once is for a taste: what waits for the clock leaves the processors
// to the others, mostly.
func take[In, Out any](ctx context.Context, o run.Options, measure func(context.Context, In) (Out, error), all []run.Case[In], atOnce bool) ([]run.Result[In, Out], error) {
	if atOnce {
		return run.AtOnce(ctx, o, measure, all)
	}
	return run.InTurns(ctx, o, measure, all)
}

// note tells which programs were compared, how, and the meaning of the columns.
func (p *programs) note() string {
	var b strings.Builder
	fmt.Fprintf(&b, "shaperd: Caddy (%s) with this library, a bucket for each client's address. middleware: httputil.ReverseProxy behind the middleware. ", p.caddy)
	fmt.Fprintf(&b, "nginx (%s): limit_req for each client's address, with burst and without nodelay. ", p.nginx)
	fmt.Fprintf(&b, "HAProxy (%s) limits in two ways. haproxy-sessions: \"rate-limit sessions\" accepts so many connections a second and leaves the others in the "+
		"kernel's backlog; it can't tell requests on one connection apart, nor clients. haproxy-maxconn: \"server … maxconn\" queues what exceeds so many requests at once. "+
		"That is no rate: its figures are of an upstream that takes exactly one interval for each request, with maxconn 1. "+
		"(A rate of requests in HAProxy, from a stick-table, refuses: deny at once, tarpit after a fixed time.) ", p.haproxy)
	b.WriteString("caddy: the same Caddy without a limit. All use all processors, which they share with load generator and upstream. ")
	b.WriteString("Medians of interleaved rounds. ")
	b.WriteString("Error: |spacing - interval| at the upstream, of requests that are sent one after another, each on its own open connection, sooner than they may leave. " +
		"Of haproxy-sessions two seconds are left out before: it lets a second's worth pass before it holds any back. Overtaken: arrived after a request that was sent later. " +
		"Go's servers read each connection in a goroutine of its own, so that requests overtake each other before they come to the line. ")
	b.WriteString("Served: every second caller in line closes its connection; the slots from then on that went to one of the others. ")
	fmt.Fprintf(&b, "Requests/s: %d connections, each of which asks again when it has its response, with a limit out of reach. "+
		"CPU: user and system time of all processes of the proxy. ", ceilingCallers)
	b.WriteString("Memory: what the proxy's processes have resident, at rest and beyond that for each request that waits, without the kernel's share. Caddy without a limit lets them " +
		"all pass to the upstream, which does not answer: each of its requests has a second connection. In the kernel: haproxy-sessions leaves as many there as " +
		"the system allows (on Linux net.core.somaxconn, mostly 4,096), and has no line of its own.")
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

// programs are those that are compared. [findPrograms] makes them.
type programs struct {
	dir                   string // for what they write
	shaperd               string // the path of Caddy with the shaper
	files                 int    // so many each of them may have open
	nginx, haproxy, caddy string // their versions
}

// findPrograms builds shaperd into dir, and asks all programs for their versions.
func findPrograms(ctx context.Context, o run.Options, dir string) (*programs, error) {
	// Started by root, the workers of nginx are another user, who must get in.
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	shaperd, err := buildShaperd(ctx, o, dir)
	if err != nil {
		return nil, err
	}
	p := &programs{dir: dir, shaperd: shaperd, files: openFiles()}
	var err1, err2, err3 error
	p.nginx, err1 = version(ctx, `nginx/\S+`, "nginx", "-v")
	p.haproxy, err2 = version(ctx, `HAProxy version \S+`, "haproxy", "-v")
	p.caddy, err3 = version(ctx, `v\d\S+`, shaperd, "version")
	return p, errors.Join(err1, err2, err3)
}

// version asks a program for its version. The pattern matches the version in the program's output.
func version(ctx context.Context, pattern, program, asked string) (string, error) {
	said, err := exec.CommandContext(ctx, program, asked).CombinedOutput()
	found := regexp.MustCompile(pattern).FindString(string(said))
	if err == nil && found == "" {
		err = errors.New("no version")
	}
	if err != nil {
		return "", fmt.Errorf("%s %s says %q: %w", program, asked, said, err)
	}
	return found, nil
}

// shaperd is the package of Caddy with the shaper. It is built, not imported: this module
// has nothing to do with the many that Caddy requires.
const shaperd = "example.com/leakybucket/cmd/shaperd"

func buildShaperd(ctx context.Context, o run.Options, dir string) (string, error) {
	o.Logf("builds shaperd, which takes minutes the first time")
	said, err := exec.CommandContext(ctx, "go", "env", "GOWORK").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOWORK: %w", err)
	}
	// The file beside go.work that uses every module, also Caddy's. Outside the tree there is none.
	workspace := filepath.Join(filepath.Dir(string(bytes.TrimSpace(said))), "all.work")
	program := filepath.Join(dir, "shaperd")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, shaperd)
	build.Env = append(os.Environ(), "GOWORK="+workspace)
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("shaperd is built with Go from within this project's tree: %w: %s", errors.Join(err, ctx.Err()), bytes.TrimSpace(said))
	}
	return program, nil
}
