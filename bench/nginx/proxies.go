package nginx

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"os/exec"

	"example.com/leakybucket/bench/internal/run"
)

// A proxy can be started with a limit.
type proxy struct {
	name string
	// start runs it with so many requests a second, and returns its address. If
	// stamped is set, a proxy that can tells the upstream when each request
	// entered its line.
	start func(ctx context.Context, upstream string, rate int, stamped bool) (*process, string, error)
}

const (
	theirs = "nginx"       // with limit_req
	ours   = "shaper"      // httputil.ReverseProxy behind the middleware
	bare   = "proxy-alone" // the same ReverseProxy without it
	direct = "no-proxy"    // the upstream itself

	// noLimit is a rate far above what any of them can serve.
	noLimit = 1_000_000
)

// proxies returns those that are compared. The program is nginx, whose files are
// put into the folder dir.
func proxies(program, dir string) []proxy {
	return []proxy{
		{theirs, func(ctx context.Context, upstream string, rate int, _ bool) (*process, string, error) {
			return startAnywhere(func(listen string) (*process, error) {
				return startNginx(ctx, program, dir, listen, upstream, rate)
			})
		}},
		{ours, func(ctx context.Context, upstream string, rate int, stamped bool) (*process, string, error) {
			return startGo(ctx, proxySettings{Upstream: upstream, Limits: fmt.Sprintf("%d/s depth 1000", rate), Stamp: stamped})
		}},
		{bare, func(ctx context.Context, upstream string, _ int, _ bool) (*process, string, error) {
			return startGo(ctx, proxySettings{Upstream: upstream})
		}},
	}
}

// startGo runs this program as the proxy.
func startGo(ctx context.Context, s proxySettings) (*process, string, error) {
	return startAnywhere(func(listen string) (*process, error) {
		s.Listen = listen
		var settings bytes.Buffer
		if err := gob.NewEncoder(&settings).Encode(s); err != nil {
			return nil, err
		}
		return startProcess(ctx, listen, settings.Bytes(), func(ctx context.Context) (*exec.Cmd, error) {
			return run.Command(ctx, proxyChild)
		})
	})
}

// startAnywhere starts a proxy on a free address, and on another one if some
// other program takes it in between.
func startAnywhere(start func(listen string) (*process, error)) (p *process, listen string, err error) {
	for range 3 {
		if listen, err = freeAddress(); err != nil {
			return nil, "", err
		}
		if p, err = start(listen); err == nil {
			return p, listen, nil
		}
	}
	return nil, "", err
}
