package proxies

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/run"
)

// A rival is a proxy that can be started with a limit.
type rival struct {
	name  string
	limit limit
	does  string // what limits, for the table
	start func(context.Context, *programs, setting) (*process, error)
}

// A limit is what a proxy lets pass.
type limit int

const (
	unlimited   limit = iota
	byRate            // so many requests a second; the others wait in the proxy
	bySessions        // so many connections a second; the others wait in the kernel, before the proxy
	byResponses       // a request as soon as another is answered; the others wait in the proxy
)

const (
	ours            = "shaperd"
	middleware      = "middleware"
	nginx           = "nginx"
	haproxySessions = "haproxy-sessions"
	haproxyMaxconn  = "haproxy-maxconn"
	caddy           = "caddy"
	direct          = "no-proxy" // the upstream itself
)

// rivals are compared in this order.
var rivals = []rival{
	{ours, byRate, "requests per second", startShaperd},
	{middleware, byRate, "requests per second", startMiddleware},
	{nginx, byRate, "requests per second", startNginx},
	{haproxySessions, bySessions, "connections per second", startHAProxy},
	{haproxyMaxconn, byResponses, "requests at once", startHAProxy},
	{caddy, unlimited, "nothing", startCaddy},
}

// named returns the rival of that name. It panics if there is none: all names are the
// experiment's own.
func named(name string) rival {
	at := slices.IndexFunc(rivals, func(r rival) bool { return r.name == name })
	if at < 0 {
		panic("no proxy is named " + name)
	}
	return rivals[at]
}

// noLimit is a rate far above what any of them can serve.
const noLimit = 1_000_000

// A setting says how a proxy is started.
type setting struct {
	Listen, Upstream string
	Rate             int // per second
	Line             int // for so many requests it has room
	Sessions         bool
	AtOnce           int // at the upstream; 0: it does not matter
}

// A stage is an upstream and a proxy before it. [programs.stage] sets it up.
type stage struct {
	*upstream
	*process
	address string // of the proxy
}

// stage starts an upstream, and a proxy with a limit and with room for a line. If the
// upstream holds requests, it answers none. A proxy that only limits how many requests
// are at the upstream at once is paced by it: then the upstream takes an interval of the
// rate for each. The stage must be closed.
func (p *programs) stage(ctx context.Context, name string, rate, line int, holds bool) (*stage, error) {
	r := named(name)
	s := setting{Rate: rate, Line: line, Sessions: r.limit == bySessions}
	takes := time.Duration(0)
	if r.limit == byResponses {
		s.AtOnce = ceilingCallers
		if rate < noLimit {
			s.AtOnce, takes = 1, measure.Interval(float64(rate))
		}
	}
	u, err := startUpstream(takes, holds)
	if err != nil {
		return nil, err
	}
	s.Upstream = u.address
	// Another program may take the address in between.
	for range 3 {
		if s.Listen, err = run.FreeAddress(); err != nil {
			break
		}
		var process *process
		if process, err = r.start(ctx, p, s); err == nil {
			return &stage{u, process, s.Listen}, nil
		}
	}
	u.close()
	return nil, err
}

// close ends both and returns when they have gone.
func (s *stage) close() {
	s.process.stop()
	s.upstream.close()
}

// startConfigured runs a command in a new folder with its configuration in a file.
func (p *programs) startConfigured(ctx context.Context, listen, file, config string, command func(context.Context, string) *exec.Cmd) (*process, error) {
	folder, err := os.MkdirTemp(p.dir, "")
	if err != nil {
		return nil, err
	}
	// Started by root, the workers of nginx are another user, who must get into the folder.
	if err := os.Chmod(folder, 0o711); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(folder, file), []byte(config), 0o644); err != nil {
		return nil, err
	}
	started, err := startProcess(ctx, listen, nil, func(ctx context.Context) (*exec.Cmd, error) {
		cmd := command(ctx, folder)
		cmd.Dir = folder
		return cmd, nil
	})
	if err != nil {
		logged, _ := os.ReadFile(filepath.Join(folder, "error.log")) // Only nginx has one.
		return nil, fmt.Errorf("%w\n%s", err, logged)
	}
	return started, nil
}
