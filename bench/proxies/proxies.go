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

// Experiment is "proxies". Where a program is missing, the report says so and there is
// no error, unless SHAPER_REQUIRE_ALL is 1.
var Experiment = run.Experiment{
	Name:  "proxies",
	What:  "what an upstream sees behind Caddy with the shaper, nginx limit_req and HAProxy, and what each costs",
	Goals: goals(),
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		return compare(ctx, o, os.Getenv("PATH"), casesOf(o))
	},
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
	alone := caseOf(o, "ProxyCeiling/proxy="+direct, ceilingInput{direct, flooding})
	alone.Rounds = 1 // It only shows how far the load generator reaches.
	c.ceilings = append(c.ceilings, alone)
	return c
}

func caseOf[In any](o run.Options, name string, in In) run.Case[In] {
	return run.Case[In]{Name: name, Input: in, Rounds: o.Times(3, 1)}
}

// results are the results of all cases.
type results struct {
	spacings []run.Result[spacingInput, spacing]
	leavings []run.Result[leavingInput, leaving]
	ceilings []run.Result[ceilingInput, ceiling]
	waitings []run.Result[waitingInput, waiting]
}

// compare measures everything for which the programs are there.
func compare(ctx context.Context, o run.Options, path string, c cases) (report.Report, error) {
	dir, err := os.MkdirTemp("", "bench-proxies")
	if err != nil {
		return report.Report{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // At most empty folders are left there.
	if err := os.Chmod(dir, 0o711); err != nil {
		return report.Report{}, err
	}
	p := findPrograms(ctx, o, dir, path)
	for _, missing := range p.missing {
		o.Logf("skipped: %v", missing)
	}
	if err := p.required(); err != nil {
		return report.Report{}, err
	}

	var found results
	var errs [4]error
	found.spacings, errs[0] = take(ctx, o, p, p.measureSpacing, c.spacings, o.Quick)
	found.leavings, errs[1] = take(ctx, o, p, p.measureLeaving, c.leavings, o.Quick)
	found.ceilings, errs[2] = take(ctx, o, p, p.measureCeiling, c.ceilings, false)
	found.waitings, errs[3] = take(ctx, o, p, p.measureWaiting, c.waitings, o.Quick)
	r, err := found.report(o, p)
	return r, errors.Join(append(errs[:], err)...)
}

// An input is the input of a measurement of one proxy.
type input interface{ proxy() string }

func (in spacingInput) proxy() string { return in.Proxy }
func (in leavingInput) proxy() string { return in.Proxy }
func (in ceilingInput) proxy() string { return in.Proxy }
func (in waitingInput) proxy() string { return in.Proxy }

// take measures the cases of those proxies whose programs are there, and names the proxy
// in errors. At once is for a taste: what waits for the clock leaves the processors to
// the others, mostly.
func take[In input, Out any](ctx context.Context, o run.Options, p *programs, measure func(context.Context, In) (Out, error), all []run.Case[In], atOnce bool) ([]run.Result[In, Out], error) {
	one := func(ctx context.Context, in In) (Out, error) {
		found, err := measure(ctx, in)
		if err != nil {
			err = fmt.Errorf("%s: %w", in.proxy(), err)
		}
		return found, err
	}
	if atOnce {
		return run.AtOnce(ctx, o, one, present(p, all))
	}
	return run.InTurns(ctx, o, one, present(p, all))
}

// present returns the cases of those proxies whose programs are there.
func present[In input](p *programs, all []run.Case[In]) []run.Case[In] {
	return slices.DeleteFunc(slices.Clone(all), func(c run.Case[In]) bool { return !p.has(c.Input.proxy()) })
}

// report returns all lines, with a picture of the spacings.
func (f results) report(o run.Options, p *programs) (report.Report, error) {
	r := report.Report{
		Note:  note(p),
		Lines: slices.Concat(run.Lines(f.spacings), run.Lines(f.leavings), run.Lines(f.ceilings), run.Lines(f.waitings)),
	}
	const rate = 1000
	drawn := func(in spacingInput) (string, bool) { return in.Proxy, in.Rate == rate }
	err := run.DrawSpacings(&r, report.Spacings{
		Name: "proxies", Title: "How even is what reaches an upstream behind a proxy?", Rate: rate,
		Caption: "haproxy-maxconn is paced by an upstream that takes an interval for each request. " + o.Machine + ".",
	}, ours, f.spacings, drawn, func(found spacing) measure.Spread { return found })
	return r, err
}

// note tells which programs were compared, how, and the meaning of the columns.
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

// programs are those that are compared, by the names of the rivals that need them.
// [findPrograms] makes them.
type programs struct {
	dir      string            // for what they write, and for shaperd
	files    int               // so many each of them may have open
	paths    map[string]string // empty if the program is missing
	versions map[string]string
	missing  []error // says what is, and how to get it
}

// A candidate is a program that rivals need.
type candidate struct {
	rivals []string
	find   func(context.Context) (path string, err error)
	// asked are the arguments that make it print its version; the pattern matches the version in
	// its output.
	asked   []string
	version *regexp.Regexp
}

// findPrograms looks for programs in the folders of a PATH and builds shaperd into dir.
// A program that is missing is no error.
func findPrograms(ctx context.Context, o run.Options, dir, path string) *programs {
	p := &programs{dir: dir, files: openFiles(), paths: map[string]string{}, versions: map[string]string{}}
	inPath := func(name, debian string) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { return findProgram(path, name, debian) }
	}
	for _, c := range []candidate{
		{[]string{nginx}, inPath("nginx", "nginx-light"), []string{"-v"}, regexp.MustCompile(`nginx/\S+`)},
		{[]string{haproxySessions, haproxyMaxconn}, inPath("haproxy", "haproxy"), []string{"-v"}, regexp.MustCompile(`HAProxy version \S+`)},
		{[]string{ours, caddy}, func(ctx context.Context) (string, error) { return buildShaperd(ctx, o, dir) }, []string{"version"}, regexp.MustCompile(`v\d\S+`)},
	} {
		program, err := c.find(ctx)
		said := ""
		if err == nil {
			said, err = c.askVersion(ctx, program)
		}
		if err != nil {
			p.missing = append(p.missing, err)
			continue
		}
		for _, name := range c.rivals {
			p.paths[name], p.versions[name] = program, said
		}
	}
	return p
}

// has reports whether a rival can be measured.
func (p *programs) has(name string) bool {
	return name == middleware || name == direct || p.paths[name] != ""
}

// askVersion asks a program for its version.
func (c candidate) askVersion(ctx context.Context, program string) (string, error) {
	said, err := exec.CommandContext(ctx, program, c.asked...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, c.asked[0], err, said)
	}
	version := c.version.FindString(string(said))
	if version == "" {
		return "", fmt.Errorf("%s %s says %q", program, c.asked[0], said)
	}
	return version, nil
}

// findProgram looks for a program in the folders of a PATH, and in the sbin beside each,
// where Debian puts servers and which only root has in its PATH.
func findProgram(path, name, debian string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		for _, dir := range []string{dir, filepath.Join(filepath.Dir(dir), "sbin")} {
			if !filepath.IsAbs(dir) {
				continue
			}
			if program, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
				return program, nil
			}
		}
	}
	return "", fmt.Errorf("%s is missing; to get it, on Debian: apt-get install %s", name, debian)
}

// shaperd is the package of Caddy with the shaper. It is built, not imported: this module
// has nothing to do with the many that Caddy requires.
const shaperd = "example.com/leakybucket/cmd/shaperd"

const shaperdMissing = "shaperd is missing; it is built with Go from within this project's tree"

func buildShaperd(ctx context.Context, o run.Options, dir string) (string, error) {
	o.Logf("builds shaperd, which takes minutes the first time")
	program := filepath.Join(dir, "shaperd")
	said, err := exec.CommandContext(ctx, "go", "env", "GOWORK").CombinedOutput()
	if err == nil {
		inUse := string(bytes.TrimSpace(said))
		if !filepath.IsAbs(inUse) {
			return "", fmt.Errorf("%s; go env GOWORK prints %q here", shaperdMissing, inUse)
		}
		// The file beside go.work that uses every module, also Caddy's.
		workspace := filepath.Join(filepath.Dir(inUse), "all.work")
		build := exec.CommandContext(ctx, "go", "build", "-o", program, shaperd)
		build.Env = append(os.Environ(), "GOWORK="+workspace)
		said, err = build.CombinedOutput()
	}
	if ctx.Err() != nil {
		return "", ctx.Err() // The build was interrupted.
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", shaperdMissing, err, bytes.TrimSpace(said))
	}
	return program, nil
}

// required returns an error if a program is missing although none may be.
func (p *programs) required() error {
	if os.Getenv("SHAPER_REQUIRE_ALL") != "1" {
		return nil
	}
	return errors.Join(p.missing...)
}
