package proxies

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// nginxConfig keeps connections to the upstream open (by default nginx opens one for
// each request), has no logs, and a line (burst) that waits (no nodelay). Its paths are
// relative to the folder that nginx is given as prefix. Those for bodies are set because
// the built-in ones may not be writable. Without keepalive_requests nginx would close a
// connection after 1,000 requests.
const nginxConfig = `worker_processes auto;
worker_rlimit_nofile {files};
daemon off;
pid nginx.pid;
error_log error.log error;

events {
	worker_connections {files};
}

http {
	access_log off;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	keepalive_requests 1000000000;
	limit_req_zone $binary_remote_addr zone=all:1m rate={rate}r/s;

	upstream measured {
		server {upstream};
		keepalive 1024;
		keepalive_requests 1000000000;
	}

	server {
		listen {listen} backlog=4096;

		location / {
			limit_req zone=all burst={line};
			limit_req_status 429;
			limit_req_log_level info;
			proxy_pass http://measured;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
		}
	}
}
`

func startNginx(ctx context.Context, p *programs, s setting) (*process, error) {
	return p.startConfigured(ctx, s.Listen, "nginx.conf", s.in(nginxConfig, p.files), func(ctx context.Context, folder string) *exec.Cmd {
		return exec.CommandContext(ctx, p.paths[nginx], "-p", folder, "-c", "nginx.conf")
	})
}

// in puts the setting into a configuration.
func (s setting) in(config string, files int) string {
	return strings.NewReplacer(
		"{listen}", s.Listen, "{upstream}", s.Upstream, "{rate}", fmt.Sprint(s.Rate), "{line}", fmt.Sprint(s.Line),
		"{at-once}", fmt.Sprint(s.AtOnce), "{files}", fmt.Sprint(files),
	).Replace(config)
}
