package main_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An upstream is what the proxy stands in front of. It notes what comes, and when.
type upstream struct {
	address string

	mu   sync.Mutex
	came []arrival
}

type arrival struct {
	at         time.Time
	line, body string // "GET shop.example/orders?x=1"
}

func startUpstream(t *testing.T) *upstream {
	u := &upstream{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := time.Now()
		body, _ := io.ReadAll(r.Body) // A client that has gone ends it.
		u.mu.Lock()
		u.came = append(u.came, arrival{at, r.Method + " " + r.Host + r.RequestURI, string(body)})
		u.mu.Unlock()
		w.Header().Set("Upstream", "here")
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, "accepted")
	}))
	t.Cleanup(server.Close)
	u.address = server.Listener.Addr().String()
	return u
}

// arrivals returns what has come so far.
func (u *upstream) arrivals() []arrival {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]arrival(nil), u.came...)
}

// A site is a shaperd with one site in front of an upstream.
type site struct {
	*process
	url      string
	upstream *upstream
}

// serveSite serves a site with such directives, each with its block. "reverse_proxy" has no
// address, as the upstream is the test's. Global options may be added.
func serveSite(t *testing.T, directives string, options ...string) site {
	t.Helper()
	up, front := startUpstream(t), freeAddress(t)
	global := append([]string{"admin off", "order shape before reverse_proxy", "default_bind 127.0.0.1", "grace_period 20s"}, options...)
	text := fmt.Sprintf("{\n%s\n}\nhttp://%s {\n%s\n}\n", strings.Join(global, "\n"), port(t, front),
		strings.ReplaceAll(directives, "reverse_proxy", "reverse_proxy "+up.address))
	return site{serve(t, text), "http://" + front, up}
}

// statuses returns the statuses of requests that are sent one after another.
func (s site) statuses(n int, path string, fields ...string) (all []int) {
	s.t.Helper()
	for range n {
		all = append(all, mustGet(s.t, s.url+path, fields...).status)
	}
	return all
}

// stop ends the process as an operator would.
func (s site) stop() {
	s.t.Helper()
	s.interrupt(syscall.SIGTERM)
	require.Zero(s.t, s.wait())
}

const (
	admitted = http.StatusAccepted // by the upstream
	refused  = http.StatusTooManyRequests
)
