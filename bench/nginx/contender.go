package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
)

// A contender is a proxy that can be started with a limit.
type contender struct {
	name string
	// start runs it with so many requests a second. Stamped, it tells the
	// upstream when each request entered its line, if it can.
	start func(ctx context.Context, upstream string, rate int, stamped bool) (*process, string, error)
}

const (
	theirs = "nginx limit_req"
	ours   = "ReverseProxy + shaper"
	bare   = "ReverseProxy alone"
	direct = "no proxy: the upstream itself"

	// noLimit is a rate far above what any of them can serve.
	noLimit = 1_000_000
)

// contenders run in the folder dir.
func contenders(program, dir string) []contender {
	return []contender{
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
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	return startAnywhere(func(listen string) (*process, error) {
		s.Listen = listen
		settings, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		return startProcess(ctx, listen, self, nil, []string{proxyVariable + "=" + string(settings)})
	})
}

// startAnywhere starts a proxy on a free address, and on another one if
// somebody else takes it in between.
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
