package proxies

import (
	"context"
	"os"
	"os/exec"
	"strings"
)

// caddyConfig is a reverse proxy that keeps as many connections to the upstream open as
// nginx may, and is patient when it opens many at once.
const caddyConfig = `{
	admin off
	persist_config off
	auto_https off
	grace_period 1s
	log {
		level ERROR
	}
	{order}
}

http://:{port} {
	bind 127.0.0.1
	{shape}
	reverse_proxy {upstream} {
		transport http {
			keepalive_idle_conns_per_host 1024
			compression off
			dial_timeout 1m
		}
	}
}
`

// startShaperd runs Caddy with the shaper, with a bucket for each client's address, as
// nginx has.
func startShaperd(ctx context.Context, p *programs, s setting) (*process, error) {
	return p.runCaddy(ctx, s, "order shape before reverse_proxy", "shape {\n\t\tlimits {rate}/s depth {line}\n\t}")
}

// startCaddy runs the same program without the shaper.
func startCaddy(ctx context.Context, p *programs, s setting) (*process, error) {
	return p.runCaddy(ctx, s, "", "")
}

func (p *programs) runCaddy(ctx context.Context, s setting, order, shape string) (*process, error) {
	_, port, _ := strings.Cut(s.Listen, ":")
	config := strings.NewReplacer("{order}", order, "{shape}", shape, "{port}", port).Replace(caddyConfig)
	return p.startConfigured(ctx, s.Listen, "Caddyfile", s.in(config, p.files), func(ctx context.Context, folder string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, p.paths[ours], "run", "--config", "Caddyfile")
		cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+folder, "XDG_CONFIG_HOME="+folder) // It writes there.
		return cmd
	})
}
