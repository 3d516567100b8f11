package main_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
)

// An upstream is a server behind the proxy. It counts the requests that come.
type upstream struct {
	address string
	came    atomic.Int64
}

func startUpstream(t *testing.T) *upstream {
	u := &upstream{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.came.Add(1)
		w.WriteHeader(admitted)
		_, _ = io.WriteString(w, "accepted")
	}))
	realtime.Close(t, server)
	u.address = server.Listener.Addr().String()
	return u
}

// A site is a shaperd with one site in front of an upstream.
type site struct {
	*servers.Process
	url string
}

// serveSite serves a site with such directives, each with its block. "reverse_proxy" has no
// address, as the upstream belongs to the test.
func serveSite(t *testing.T, directives string) site {
	t.Helper()
	front := freeAddress(t)
	text := fmt.Sprintf("{\nadmin off\norder shape before reverse_proxy\ndefault_bind 127.0.0.1\ngrace_period 20s\n}\nhttp://%s {\n%s\n}\n",
		port(t, front), strings.ReplaceAll(directives, "reverse_proxy", "reverse_proxy "+startUpstream(t).address))
	return site{serve(t, text), "http://" + front}
}

const (
	admitted = http.StatusAccepted // by the upstream
	refused  = http.StatusTooManyRequests
)

// callTimeout is after what time package shaper gives up a call of a store.
const callTimeout = 250 * time.Millisecond

// operators is the Caddyfile of an operator, with all that most need. The test replaces only the
// names of this machine, and a rate at which a slow test would get one more through.
const operators = `{
	order shape before reverse_proxy
}
shop.example {
	shape {
		rules /etc/shaper.yaml           # package config, reloaded by itself as well
		key   route client_ip            # header:NAME, host, {any.placeholder}
		site  200/s depth 500            # one bucket for all, behind the ones per key
		store redis://127.0.0.1:6379     # or postgres://…; none: this process only
		ratelimit_headers
		state /var/lib/shaperd/levels.json
	}
	shape /login limits 5/min burst 5
	reverse_proxy 10.0.0.5:3000
}
`

func TestTheOperatorsCaddyfileAsAWhole(t *testing.T) {
	for attempt := 1; !servesAnOperator(t, attempt == 8); attempt++ {
	}
}

// servesAnOperator tries the Caddyfile. It returns false if the statuses are wrong, but the store
// may have been too slow for one of them. There is no excuse for the last attempt.
func servesAnOperator(t *testing.T, last bool) bool {
	t.Helper()
	redis, up, front := servers.StartRedis(t), startUpstream(t), freeAddress(t)
	rules := writeFile(t, "shaper.yaml", "default: 1000/s burst 100\nlimits:\n  GET %2Forders: 1/h burst 2\n")
	state := filepath.Join(t.TempDir(), "levels.json")
	caddyfile := strings.NewReplacer(
		"{\n\torder", "{\n\tadmin off\n\tlocal_certs\n\tskip_install_trust\n\tdefault_bind 127.0.0.1\n\tgrace_period 20s\n"+
			"\tauto_https disable_redirects\n\thttps_port "+port(t, front)[1:]+"\n\torder",
		"/etc/shaper.yaml", rules,
		"127.0.0.1:6379", redis.Addr,
		"/var/lib/shaperd/levels.json", state,
		"10.0.0.5:3000", up.address,
		"5/min", "5/h",
	).Replace(operators)
	p := serve(t, caddyfile)
	shop := trusting(t, p, front)
	p.Until(func() bool { // It has a certificate, and a connection to the store.
		r, err := shop.Get("https://shop.example/ready")
		return err == nil && r.Body.Close() == nil && r.StatusCode == admitted
	}, "it is ready")
	var longest time.Duration
	get := func(path string) *http.Response {
		begun := time.Now()
		r, err := shop.Get("https://shop.example" + path)
		require.NoError(t, err)
		longest = max(longest, time.Since(begun))
		require.NoError(t, r.Body.Close())
		return r
	}

	var got []int
	answers := map[string]*http.Response{}
	for _, path := range []string{"/orders", "/orders", "/orders", "/products", "/login", "/login", "/login", "/login", "/login", "/login"} {
		answers[path] = get(path)
		got = append(got, answers[path].StatusCode)
	}
	want := []int{
		admitted, admitted, refused,
		admitted, // The rule is for another route.
		admitted, admitted, admitted, admitted, admitted, refused,
	}
	if !slices.Equal(want, got) && longest > callTimeout*4/5 && !last {
		t.Logf("%v, but a request took %v", got, longest)
		p.Kill()
		return false
	}
	require.Equal(t, want, got)
	require.Equal(t, `"shop.example";q=2;w=7200`, answers["/orders"].Header.Get("RateLimit-Policy"))
	require.NotEmpty(t, answers["/login"].Header.Get("Retry-After"))
	require.Equal(t, 2, answers["/login"].ProtoMajor)
	require.EqualValues(t, 9, up.came.Load(), "the upstream sees nothing of what is refused")
	require.NotEmpty(t, redis.MustDo("KEYS", "*shop.example*"))

	require.NoError(t, os.WriteFile(rules, []byte("default: 1000/s burst 100\nlimits:\n  GET %2Forders: 1/h burst 3\n"), 0o600))
	p.Until(func() bool { return get("/orders").StatusCode == admitted }, "a request leaves")
	require.Equal(t, refused, get("/orders").StatusCode)

	require.Zero(t, p.Stop(syscall.SIGTERM))
	saved, err := os.ReadFile(state)
	require.NoError(t, err)
	require.Contains(t, string(saved), "shop.example")
	return true
}

// trusting returns a client that finds every host at an address, and believes the
// certificates that a process has made for itself.
func trusting(t *testing.T, p *servers.Process, address string) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	root := filepath.Join(p.Command.Dir, ".local", "share", "caddy", "pki", "authorities", "local", "root.crt")
	p.Until(func() bool {
		text, err := os.ReadFile(root)
		return err == nil && roots.AppendCertsFromPEM(text)
	}, "it has a root certificate")
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
		TLSClientConfig:   &tls.Config{RootCAs: roots},
		ForceAttemptHTTP2: true,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
