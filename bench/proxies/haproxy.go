package proxies

import (
	"context"
	"os/exec"
	"strings"
)

// haproxyConfig is what HAProxy documents for holding requests back. It has two means.
// "rate-limit sessions" stops accepting connections while more than a rate have come
// within the last second. "maxconn" of a server queues requests beyond so many at once.
// A rate of requests from a stick-table only refuses (deny), or refuses after a fixed
// time (tarpit): what it holds back never reaches the upstream.
//
// abortonclose takes the requests of clients that have gone out of the queue. HAProxy
// computes from maxconn how many files it may need in the worst case, which is more than
// some systems allow; no strict-limits lets it start nevertheless.
const haproxyConfig = `global
	maxconn {line}
	no strict-limits

defaults
	mode http
	timeout connect 1m
	timeout client 10m
	timeout server 10m
	timeout queue 10m
	option abortonclose
	http-reuse always

frontend measured
	bind {listen}
	maxconn {line}
	{sessions}
	default_backend upstream

backend upstream
	fullconn {line}
	server measured {upstream} {maxconn}
`

func startHAProxy(ctx context.Context, p *programs, s setting) (*process, error) {
	sessions, maxconn := "", ""
	if s.Sessions {
		sessions = "rate-limit sessions {rate}"
	}
	if s.AtOnce > 0 {
		maxconn = "maxconn {at-once}"
	}
	config := strings.NewReplacer("{sessions}", sessions, "{maxconn}", maxconn).Replace(haproxyConfig)
	return p.startConfigured(ctx, s.Listen, "haproxy.cfg", s.in(config, p.files), func(ctx context.Context, _ string) *exec.Cmd {
		return exec.CommandContext(ctx, p.paths[haproxySessions], "-db", "-f", "haproxy.cfg")
	})
}
