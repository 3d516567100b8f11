// Package proxies compares proxies that limit how fast requests reach an upstream: Caddy
// with this library (cmd/shaperd), a few lines of Go with the middleware, nginx with
// limit_req, and HAProxy. It measures how evenly and in which order requests arrive, who
// gets the slots of callers that leave, how many requests a proxy can hand on, and their
// cost, beside Caddy without a limit. It starts all proxies by itself, on loopback and in a
// temporary folder, and removes both in the end.
package proxies

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/internal/servers"
)

// Experiment is "proxies".
var Experiment = run.Experiment{
	Name:  "proxies",
	What:  "what an upstream sees behind Caddy with the shaper, nginx limit_req and HAProxy, and what each costs",
	Needs: needs, Goals: goals,
	Prepare: prepare,
	Groups:  groups,
	Conclude: func(r *report.Report, o run.Options) error {
		const rate = 1000
		return r.DrawSpacings(report.Spacings{
			Name: "proxies", Title: "How even is what reaches an upstream behind a proxy?", Rate: rate,
			Caption:  "haproxy-maxconn is paced by an upstream that takes an interval for each request. " + o.Machine + ".",
			Limiters: compared, Line: func(proxy string) string { return spacingName(proxy, rate) },
		}, ours)
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

// groups returns the cases. Measuring them at once is for a taste: a case that waits for the clock mostly leaves the
// processors to the others.
func groups(o run.Options) []run.Group {
	windows := map[int]time.Duration{100: 2 * time.Second, 1000: 1500 * time.Millisecond}
	waiting, flooding := 10_000, 2*time.Second
	if o.Quick {
		windows = map[int]time.Duration{100: time.Second / 2}
		waiting, flooding = 200, 200*time.Millisecond
	}
	rounds := o.Times(3, 1)
	spacings, leavings, ceilings, waitings := run.Group{AtOnce: o.Quick}, run.Group{AtOnce: o.Quick}, run.Group{}, run.Group{AtOnce: o.Quick}
	for _, rate := range slices.Sorted(maps.Keys(windows)) {
		for _, name := range compared {
			if r := rivals[name]; r.limit != unlimited {
				in := spacingInput{name, rate, leadOf(r), windows[rate]}
				spacings.Cases = append(spacings.Cases, run.One(spacingName(name, rate), rounds, func(t *testing.T) measure.Spacing { return measureSpacing(t, in) }))
			}
		}
	}
	for _, name := range compared {
		if r := rivals[name]; r.limit != unlimited {
			in := leavingInput{name, 400, leadOf(r), 400}
			leavings.Cases = append(leavings.Cases, run.One("ProxyLeaving/proxy="+name, rounds, func(t *testing.T) leaving { return measureLeaving(t, in) }))
		}
		ceilings.Cases = append(ceilings.Cases, run.One("ProxyCeiling/proxy="+name, rounds, func(t *testing.T) ceiling { return measureCeiling(t, name, flooding) }))
		if measure.MemoryIsTold() {
			waitings.Cases = append(waitings.Cases, run.One("ProxyWaiting/proxy="+name, rounds, func(t *testing.T) memory { return measureWaiting(t, name, waiting) }))
		}
	}
	return []run.Group{spacings, leavings, ceilings, waitings}
}

func spacingName(proxy string, rate int) string {
	return fmt.Sprintf("ProxySpacing/proxy=%s/rate=%d", proxy, rate)
}

// note tells which programs were compared, with their versions, how, and the meaning of the columns.
func note(caddy, nginx, haproxy string) string {
	return fmt.Sprintf("shaperd: Caddy (%s) with this library, a bucket for each client's address. middleware: httputil.ReverseProxy behind the middleware. "+
		"nginx (%s): limit_req for each client's address, with burst and without nodelay. "+
		"HAProxy (%s) limits in two ways. haproxy-sessions: \"rate-limit sessions\" accepts so many connections a second and leaves the others in the "+
		"kernel's backlog; it can't tell requests on one connection apart, nor clients. haproxy-maxconn: \"server … maxconn\" queues what exceeds so many requests at once. "+
		"That is no rate: its figures are of an upstream that takes exactly one interval for each request, with maxconn 1. "+
		"(A rate of requests in HAProxy, from a stick-table, refuses: deny at once, tarpit after a fixed time.) "+
		"caddy: the same Caddy without a limit. All use all processors, which they share with load generator and upstream. "+
		"Medians of interleaved rounds. "+
		"Error: |spacing - interval| at the upstream, of requests that are sent one after another, each on its own open connection, sooner than they may leave. "+
		"Of haproxy-sessions two seconds are left out before: it lets a second's worth pass before it holds any back. Overtaken: arrived after a request that was sent later. "+
		"Go's servers read each connection in a goroutine of its own, so that requests overtake each other before they come to the line. "+
		"Served: every second caller in line closes its connection; the slots from then on that went to one of the others. "+
		"Requests/s: %d connections, each of which asks again when it has its response, with a limit out of reach. "+
		"CPU: user and system time of all processes of the proxy. "+
		"Memory: what the proxy's processes have resident, at rest and beyond that for each request that waits, without the kernel's share. Caddy without a limit lets them "+
		"all pass to the upstream, which does not answer: each of its requests has a second connection. In the kernel: haproxy-sessions leaves as many there as "+
		"the system allows (on Linux net.core.somaxconn, mostly 4,096), and has no line of its own.", caddy, nginx, haproxy, ceilingCallers)
}

// goals hold the median error of ours against nginx's at each rate.
var goals = []report.Goal{{
	What: "median spacing error at an upstream behind $1 at $2/s, against nginx", Most: 0.25,
	Ours: "ProxySpacing/proxy=(shaperd|middleware)/rate=(.*) err-p50-ns", Theirs: []string{"ProxySpacing/proxy=nginx/rate=$2 err-p50-ns"},
}}

// folder is the name of the variable with the folder in which the proxies write, and where Caddy with the shaper is.
const folder = "BENCH_PROXIES"

// prepare builds Caddy with the shaper in a folder, and asks all programs for their versions.
func prepare(ctx context.Context, o run.Options, dir string) (told string, err error) {
	// Started by root, the workers of nginx are another user, who must get in.
	if err := errors.Join(os.Chmod(dir, 0o711), os.Setenv(folder, dir)); err != nil {
		return "", err
	}
	o.Logf("builds shaperd, which takes minutes the first time")
	shaperd := filepath.Join(dir, shaperd)
	if err := servers.BuildShaperdAs(ctx, shaperd); err != nil { // This module has nothing to do with the many that Caddy requires.
		return "", err
	}
	caddy, err1 := version(ctx, `v\d\S+`, shaperd, "version")
	nginx, err2 := version(ctx, `nginx/\S+`, "nginx", "-v")
	haproxy, err3 := version(ctx, `HAProxy version \S+`, "haproxy", "-v")
	return note(caddy, nginx, haproxy), errors.Join(err1, err2, err3)
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
