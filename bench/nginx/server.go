package nginx

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// findNginx looks for nginx in the folders of a PATH, and in the sbin beside
// each, where Debian puts it and which only root has in its PATH.
func findNginx(path string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		for _, dir := range []string{dir, filepath.Join(filepath.Dir(dir), "sbin")} {
			if !filepath.IsAbs(dir) {
				continue
			}
			if program, err := exec.LookPath(filepath.Join(dir, "nginx")); err == nil {
				return program, nil
			}
		}
	}
	return "", errors.New("nginx is missing; to get it, on Debian: apt-get install nginx-light")
}

var versionLine = regexp.MustCompile(`nginx version: (\S+)`)

// nginxVersion asks the program, which says "nginx/1.22.1" or the like.
func nginxVersion(ctx context.Context, program string) (string, error) {
	said, err := exec.CommandContext(ctx, program, "-v").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s -v: %w: %s", program, err, said)
	}
	return parseVersion(string(said))
}

func parseVersion(said string) (string, error) {
	found := versionLine.FindStringSubmatch(said)
	if found == nil {
		return "", fmt.Errorf("nginx -v says %q", said)
	}
	return found[1], nil
}

// nginxConfig is the best documented use: one worker that keeps its connections
// to the upstream open (by default it opens one for each request), no logs, and
// a line of 1,000 (burst) that waits (no nodelay). Its paths are relative to
// the folder that nginx is given as prefix. Those for bodies are set because the
// built-in ones may not be writable. Without keepalive_requests nginx would close
// a connection after 1,000 requests.
const nginxConfig = `worker_processes 1;
worker_rlimit_nofile 8192;
daemon off;
pid nginx.pid;
error_log error.log error;

events {
	worker_connections 4096;
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
			limit_req zone=all burst=1000;
			limit_req_status 429;
			limit_req_log_level info;
			proxy_pass http://measured;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
		}
	}
}
`

func configureNginx(listen, upstream string, rate int) string {
	return strings.NewReplacer("{listen}", listen, "{upstream}", upstream, "{rate}", fmt.Sprint(rate)).Replace(nginxConfig)
}

// startNginx runs nginx in a folder of its own below dir.
func startNginx(ctx context.Context, program, dir, listen, upstream string, rate int) (*process, error) {
	prefix, err := os.MkdirTemp(dir, "nginx")
	if err != nil {
		return nil, err
	}
	// Started by root, its worker is another user, who must get into the folder.
	if err := os.Chmod(prefix, 0o711); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(prefix, "nginx.conf"), []byte(configureNginx(listen, upstream, rate)), 0o644); err != nil {
		return nil, err
	}
	p, err := startProcess(ctx, listen, nil, func(ctx context.Context) (*exec.Cmd, error) {
		return exec.CommandContext(ctx, program, "-p", prefix, "-c", "nginx.conf"), nil
	})
	if err != nil {
		logged, _ := os.ReadFile(filepath.Join(prefix, "error.log")) // It may not have come that far.
		return nil, fmt.Errorf("%w\n%s", err, logged)
	}
	return p, nil
}
