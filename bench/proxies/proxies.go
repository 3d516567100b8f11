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
	Needs: needs, Goals: goals,
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
		return p.compare(ctx, o, p.groups(o))
	},
}

var needs = []run.Program{
	{Name: "nginx", GetIt: "Debian: apt-get install nginx-light"}, {Name: "haproxy", GetIt: "Debian: apt-get install haproxy"}, run.Go,
}

// leadOf returns how long a proxy needs to find its pace. HAProxy lets a second's worth of
// connections pass before it holds any back, then none for a second.
func leadOf(r rival) time.Duration {
	if r.limit == bySessions {
		return 2 * time.Second
	}
	return 200 * time.Millisecond
}

// groups returns what is measured. At once is for a taste: what waits for the clock leaves the processors
// to the others, mostly.
func (p *programs) groups(o run.Options) []run.Group {
	windows := map[int]time.Duration{100: 2 * time.Second, 1000: 1500 * time.Millisecond}
	waiting, flooding := 10_000, 2*time.Second
	if o.Quick {
		windows = map[int]time.Duration{100: time.Second / 2}
		waiting, flooding = 200, 200*time.Millisecond
	}
	rounds := o.Times(3, 1)
	spacings, leavings, ceilings, waitings := run.Group{AtOnce: o.Quick}, run.Group{AtOnce: o.Quick}, run.Group{}, run.Group{AtOnce: o.Quick}
	for _, rate := range slices.Sorted(maps.Keys(windows)) {
		for _, r := range rivals {
			if r.limit != unlimited {
				spacings.Cases = append(spacings.Cases, p.spacingCase(rounds, spacingInput{r.name, rate, leadOf(r), windows[rate]}))
			}
		}
	}
	for _, r := range rivals {
		if r.limit != unlimited {
			leavings.Cases = append(leavings.Cases, p.leavingCase(rounds, leavingInput{r.name, 400, leadOf(r), 400}))
		}
		ceilings.Cases = append(ceilings.Cases, p.ceilingCase(rounds, r.name, flooding))
		if measure.MemoryIsTold() {
			waitings.Cases = append(waitings.Cases, p.waitingCase(rounds, r.name, waiting))
		}
	}
	return []run.Group{spacings, leavings, ceilings, waitings}
}

func (p *programs) spacingCase(rounds int, in spacingInput) run.Case {
	return run.One(spacingName(in.proxy, in.rate), rounds, func(ctx context.Context) (measure.Spacing, error) { return p.measureSpacing(ctx, in) })
}

func spacingName(proxy string, rate int) string {
	return fmt.Sprintf("ProxySpacing/proxy=%s/rate=%d", proxy, rate)
}

func (p *programs) leavingCase(rounds int, in leavingInput) run.Case {
	return run.One("ProxyLeaving/proxy="+in.proxy, rounds, func(ctx context.Context) (leaving, error) { return p.measureLeaving(ctx, in) })
}

func (p *programs) ceilingCase(rounds int, proxy string, window time.Duration) run.Case {
	return run.One("ProxyCeiling/proxy="+proxy, rounds, func(ctx context.Context) (ceiling, error) { return p.measureCeiling(ctx, proxy, window) })
}

func (p *programs) waitingCase(rounds int, proxy string, requests int) run.Case {
	return run.One("ProxyWaiting/proxy="+proxy, rounds, func(ctx context.Context) (waiting, error) { return p.measureWaiting(ctx, proxy, requests) })
}

// compare measures the cases, in this process: the proxies are processes of their own.
func (p *programs) compare(ctx context.Context, o run.Options, groups []run.Group) (r report.Report, err error) {
	r.Note = p.note()
	r.Lines, err = run.Take(ctx, o, run.Here, groups...)
	var names []string
	for _, one := range rivals {
		names = append(names, one.name)
	}
	const rate = 1000
	return r, errors.Join(err, r.DrawSpacings(report.Spacings{
		Name: "proxies", Title: "How even is what reaches an upstream behind a proxy?", Rate: rate,
		Caption:  "haproxy-maxconn is paced by an upstream that takes an interval for each request. " + o.Machine + ".",
		Limiters: names, Line: func(proxy string) string { return spacingName(proxy, rate) },
	}, ours))
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

// goals hold the median error of ours against nginx's at each rate.
var goals = []report.Goal{{
	What: "median spacing error at an upstream behind $1 at $2/s, against nginx", Most: 0.25,
	Ours: "ProxySpacing/proxy=(shaperd|middleware)/rate=(.*) err-p50-ns", Theirs: []string{"ProxySpacing/proxy=nginx/rate=$2 err-p50-ns"},
}}

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
