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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
)

// reverse_proxy 10.0.0.5:3000
func TestWhatIsAdmittedReachesTheUpstreamAsItWasSent(t *testing.T) {
	s := serveSite(t, "shape {\nlimits 1/h burst 3\n}\nreverse_proxy")
	body := strings.Repeat("a part of an upload, ", 10_000)
	got, err := send(http.MethodPost, s.url+"/orders?x=1", body, "Host", "shop.example")
	require.NoError(t, err)
	require.Equal(t, admitted, got.status)
	require.Equal(t, "accepted", got.body)
	require.Equal(t, "here", got.header.Get("Upstream"))
	came := s.upstream.arrivals()
	require.Len(t, came, 1)
	require.Equal(t, "POST shop.example/orders?x=1", came[0].line)
	require.Equal(t, body, came[0].body)
}

// order shape before reverse_proxy
func TestTheOrderOfTheLinesOfASiteDoesNotMatter(t *testing.T) {
	s := serveSite(t, "reverse_proxy\nshape {\nlimits 1/h burst 2\n}")
	require.Equal(t, []int{admitted, admitted, refused, refused}, s.statuses(4, "/"))
	require.Len(t, s.upstream.arrivals(), 2, "the upstream sees nothing of what is refused")
}

// shape /login { limits 5/min burst 5 }, at a rate that lets nobody more through meanwhile
func TestAMatcherShapesWhatItMatches(t *testing.T) {
	for name, login := range map[string]string{
		"block":    "shape /login {\nlimits 5/h burst 5\n}",
		"one line": "shape /login limits 5/h burst 5",
	} {
		t.Run(name, func(t *testing.T) {
			s := serveSite(t, "shape {\nlimits 1/h burst 9\n}\n"+login+"\nreverse_proxy")
			begun := time.Now()
			require.Equal(t, []int{admitted, admitted, admitted, admitted, admitted}, s.statuses(5, "/login"))
			last := mustGet(t, s.url+"/login")
			require.Equal(t, refused, last.status)
			after, err := strconv.Atoi(last.header.Get("Retry-After"))
			require.NoError(t, err)
			require.LessOrEqual(t, after, 12*60)
			require.GreaterOrEqual(t, after, int((12*time.Minute - time.Since(begun)).Seconds()))
			require.Equal(t, []int{admitted, admitted, admitted, admitted, refused}, s.statuses(5, "/other"),
				"five of /login have passed the line of the site too")
		})
	}
}

// rules /etc/shaper.yaml
func TestRulesAreReloadedByThemselves(t *testing.T) {
	rules := writeFile(t, "shaper.yaml", "default: 1/h burst 1\n")
	s := serveSite(t, "shape {\nrules "+rules+"\n}\nreverse_proxy")
	require.Equal(t, []int{admitted, refused}, s.statuses(2, "/"))

	require.NoError(t, os.WriteFile(rules, []byte("default: 1/parsec\n"), 0o600))
	s.until(func() bool { return strings.Contains(s.log.String(), rules+":1:") }, "the log tells of the mistake")
	require.Equal(t, []int{refused}, s.statuses(1, "/"), "rules with a mistake change nothing")

	// The level is 1, so there is room for two.
	require.NoError(t, os.WriteFile(rules, []byte("default: 1/h burst 3\n"), 0o600))
	s.until(func() bool { return mustGet(t, s.url).status == admitted }, "the new rules are in force")
	require.Equal(t, []int{admitted, refused}, s.statuses(2, "/"))
	require.Len(t, s.upstream.arrivals(), 3)
}

// key route client_ip
func TestEachRouteOfEachClientHasABucket(t *testing.T) {
	rules := writeFile(t, "shaper.yaml", "default: 1/h burst 3\nlimits:\n  GET %2Forders%2F{id}: 1/h burst 1\n")
	s := serveSite(t, "shape {\nrules "+rules+"\nkey route client_ip\n}\nreverse_proxy",
		"servers {\ntrusted_proxies static 127.0.0.1/32\n}")
	for _, client := range []string{"192.0.2.1", "192.0.2.2"} {
		from := []string{"X-Forwarded-For", client}
		require.Equal(t, []int{admitted, refused}, s.statuses(2, "/orders/7", from...))
		require.Equal(t, []int{refused}, s.statuses(1, "/orders/8", from...), "it is the same route")
		require.Equal(t, []int{admitted, admitted, admitted, refused}, s.statuses(4, "/"+client, from...), "no route has this path")
		require.Equal(t, []int{refused}, s.statuses(1, "/elsewhere", from...))
	}
}

// key client_ip header:NAME host {any.placeholder}
func TestEachPartOfAKeyTellsRequestsApart(t *testing.T) {
	for key, c := range map[string]struct {
		options           []string
		one, other, equal []string // the path and header fields of requests; equal has the key of one
	}{
		"client_ip": {
			[]string{"servers {\ntrusted_proxies static 127.0.0.1/32\n}"},
			[]string{"/", "X-Forwarded-For", "192.0.2.1"}, []string{"/", "X-Forwarded-For", "192.0.2.2"}, []string{"/x", "X-Forwarded-For", "192.0.2.1"},
		},
		"header:X-Tenant":  {nil, []string{"/", "X-Tenant", "ann"}, []string{"/", "X-Tenant", "bob"}, []string{"/x", "X-Tenant", "ann"}},
		"host":             {nil, []string{"/", "Host", "a.example"}, []string{"/", "Host", "b.example"}, []string{"/x", "Host", "A.example:80"}},
		"{query.tenant}":   {nil, []string{"/?tenant=ann"}, []string{"/?tenant=bob"}, []string{"/x?tenant=ann&y=1"}},
		"{cookie.session}": {nil, []string{"/", "Cookie", "session=ann"}, []string{"/", "Cookie", "session=bob"}, []string{"/", "Cookie", "other=1; session=ann"}},
		"host header:X-Tenant": {
			nil,
			[]string{"/", "Host", "a.example", "X-Tenant", "ann"}, []string{"/", "Host", "b.example", "X-Tenant", "ann"}, []string{"/x", "Host", "a.example", "X-Tenant", "ann"},
		},
	} {
		t.Run(key, func(t *testing.T) {
			s := serveSite(t, "shape {\nlimits 1/h burst 1\nkey "+key+"\n}\nreverse_proxy", c.options...)
			require.Equal(t, []int{admitted, refused}, s.statuses(2, c.one[0], c.one[1:]...))
			require.Equal(t, []int{refused}, s.statuses(1, c.equal[0], c.equal[1:]...))
			require.Equal(t, []int{admitted, refused}, s.statuses(2, c.other[0], c.other[1:]...))
		})
	}
}

// A client that could name its own address would have a fresh bucket for each request.
func TestAnAddressIsNotBelievedWithoutTrustedProxies(t *testing.T) {
	s := serveSite(t, "shape {\nlimits 1/h burst 1\nkey client_ip\n}\nreverse_proxy")
	require.Equal(t, []int{admitted}, s.statuses(1, "/", "X-Forwarded-For", "192.0.2.1"))
	require.Equal(t, []int{refused}, s.statuses(1, "/", "X-Forwarded-For", "192.0.2.2"))
}

// site 200/s depth 500
func TestAllKeysTogetherLeaveAtTheRateOfTheSite(t *testing.T) {
	const n, rate = 60, 50
	s := serveSite(t, "shape {\nlimits 1000/s burst 100\nkey header:X-Tenant\nsite 50/s depth 500\n}\nreverse_proxy")
	begun := time.Now()
	var wait []func() map[int]int
	for i := range n {
		wait = append(wait, getAll(1, s.url, "X-Tenant", fmt.Sprint("tenant", i%7)))
	}
	for _, statuses := range wait {
		require.Equal(t, map[int]int{admitted: 1}, statuses())
	}
	came := s.upstream.arrivals()
	require.Len(t, came, n)
	slices.SortFunc(came, func(a, b arrival) int { return a.at.Compare(b.at) }) // They are noted when they are read.
	for i, a := range came {
		// They could come later, but none before its turn.
		require.GreaterOrEqual(t, a.at.Sub(begun), time.Duration(i)*time.Second/rate, i)
	}

	s = serveSite(t, "shape {\nlimits 1000/s burst 100\nkey header:X-Tenant\nsite 1/h burst 2\n}\nreverse_proxy")
	for i, want := range []int{admitted, admitted, refused, refused} {
		require.Equal(t, want, mustGet(t, s.url, "X-Tenant", strconv.Itoa(i)).status)
	}
}

// ratelimit_headers
func TestAnswersTellTheLimitIfTheyShall(t *testing.T) {
	s := serveSite(t, "shape shop {\nlimits 1/h burst 2\nratelimit_headers\n}\nreverse_proxy")
	first, _, last := mustGet(t, s.url), mustGet(t, s.url), mustGet(t, s.url)
	for _, a := range []answer{first, last} {
		require.Equal(t, `"shop";q=2;w=7200`, a.header.Get("RateLimit-Policy"))
	}
	require.Equal(t, admitted, first.status)
	require.Regexp(t, `^"shop";r=1;t=(3600|35\d\d)$`, first.header.Get("RateLimit"))
	require.Equal(t, refused, last.status)
	require.Equal(t, `"shop";r=0;t=`+last.header.Get("Retry-After"), last.header.Get("RateLimit"))

	s = serveSite(t, "shape {\nlimits 1/h burst 1\n}\nreverse_proxy")
	for _, want := range []int{admitted, refused} {
		a := mustGet(t, s.url)
		require.Equal(t, want, a.status)
		require.Empty(t, a.header.Values("RateLimit"))
		require.Empty(t, a.header.Values("RateLimit-Policy"))
	}
}

// state /var/lib/shaperd/levels.json
func TestLevelsOutliveTheProcess(t *testing.T) {
	state := filepath.Join(t.TempDir(), "levels.json")
	directives := "shape shop {\nlimits 1/h burst 2\nkey header:X-Tenant\nsite 1/h burst 3\nstate " + state + "\n}\nreverse_proxy"
	s := serveSite(t, directives)
	require.Equal(t, []int{admitted, admitted, refused}, s.statuses(3, "/", "X-Tenant", "ann"))
	s.stop()

	s = serveSite(t, directives)
	require.Equal(t, []int{refused}, s.statuses(1, "/", "X-Tenant", "ann"))
	require.Equal(t, []int{admitted, refused}, s.statuses(2, "/", "X-Tenant", "bob"), "by the limits of the site")
	require.Len(t, s.upstream.arrivals(), 1)
	s.stop()

	s = serveSite(t, strings.ReplaceAll(directives, "state "+state, ""))
	require.Equal(t, []int{admitted, admitted, refused}, s.statuses(3, "/", "X-Tenant", "ann"), "nothing is known without the file")
}

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

// callTimeout is after what time package shaper gives up a call of a store.
const callTimeout = 250 * time.Millisecond

// serveTwo serves the same site by two processes, and asks /warm of both until they have
// asked the store.
func serveTwo(t *testing.T, name, store string) (a, b site) {
	t.Helper()
	directives := "shape /warm warm {\nlimits 1000/s burst 100\n" + store + "\n}\n" +
		"shape / " + name + " {\nlimits 1/h burst 4\nkey header:X-Tenant\nsite 1/h burst 6\n" + store + "\n}\nreverse_proxy"
	a, b = serveSite(t, directives), serveSite(t, directives)
	for _, s := range []site{a, b} {
		s.until(func() bool { return mustGet(t, s.url+"/warm").status == admitted }, "the store is asked")
	}
	return a, b
}

// cameTo returns how many requests to a path have come to the upstream.
func (s site) cameTo(path string) (n int) {
	for _, a := range s.upstream.arrivals() {
		if strings.HasSuffix(a.line, path) {
			n++
		}
	}
	return n
}

// share returns two processes that are one for their clients: four requests of a key leave, and
// six of all. A call of the store that is given up may have counted all the same, so where a
// request took so long nothing else is sure: then two others are tried.
func share(t *testing.T, store string) (a, b site) {
	t.Helper()
	for attempt := 1; ; attempt++ {
		a, b = serveTwo(t, fmt.Sprint("shop", attempt), store)
		var got, want []int
		var longest time.Duration
		ask := func(s site, tenant string, statuses ...int) {
			want = append(want, statuses...)
			for range statuses {
				begun := time.Now()
				got = append(got, mustGet(t, s.url, "X-Tenant", tenant).status)
				longest = max(longest, time.Since(begun))
			}
		}
		ask(a, "ann", admitted, admitted, admitted)
		ask(b, "ann", admitted, refused)
		ask(a, "ann", refused)
		ask(b, "bob", admitted, admitted, refused) // by the limits of the site
		ask(a, "cat", refused)
		if !slices.Equal(want, got) && longest > callTimeout*4/5 && attempt < 8 {
			t.Logf("%v, but a request took %v", got, longest)
			a.kill()
			b.kill()
			continue
		}
		require.Equal(t, want, got)
		require.Equal(t, 3, a.cameTo("/"))
		require.Equal(t, 3, b.cameTo("/"))
		return a, b
	}
}

// store redis://127.0.0.1:6379
func TestProcessesShareBucketsOnRedis(t *testing.T) {
	redis := servers.StartRedis(t)
	a, _ := share(t, "store redis://"+redis.Addr)

	// While the server can't be asked nobody is admitted, as nothing is said of a fallback.
	redis.Kill()
	gone := mustGet(t, a.url, "X-Tenant", "dan")
	require.Equal(t, http.StatusServiceUnavailable, gone.status)
	require.NotEmpty(t, gone.header.Get("Retry-After"))
	require.Equal(t, 3, a.cameTo("/"))

	redis.Restart() // It has kept nothing.
	a.until(func() bool { return mustGet(t, a.url, "X-Tenant", "dan").status == admitted }, "a slot comes")
	require.Equal(t, 4, a.cameTo("/"))
}

// store postgres://…
func TestProcessesShareBucketsOnPostgreSQL(t *testing.T) {
	postgres := servers.StartPostgres(t)
	a, _ := share(t, "store "+postgres.URL) // The table is made by the process that comes first.

	postgres.Stop(servers.PostgresFast)
	require.Equal(t, http.StatusServiceUnavailable, mustGet(t, a.url, "X-Tenant", "dan").status)
	postgres.Start() // It has kept everything.
	a.until(func() bool { return mustGet(t, a.url, "X-Tenant", "dan").status == refused }, "all slots are taken")
	require.Equal(t, 3, a.cameTo("/"))
}

// store: none
func TestWithoutAStoreEachProcessHasBucketsOfItsOwn(t *testing.T) {
	a, b := serveTwo(t, "shop", "")
	for _, s := range []site{a, b} {
		require.Equal(t, []int{admitted, admitted, admitted, admitted, refused}, s.statuses(5, "/", "X-Tenant", "ann"))
	}
}

// The password of a store would be in the logs of each operator who makes a mistake.
func TestAStoreThatCannotBeReachedIsNamedWithoutItsPassword(t *testing.T) {
	address := freeAddress(t)
	s := serveSite(t, "shape {\nlimits 1/h burst 4\nstore redis://:open-sesame@"+address+"\n}\nreverse_proxy")
	s.until(func() bool {
		require.Equal(t, http.StatusServiceUnavailable, mustGet(t, s.url).status)
		return strings.Contains(s.log.String(), "the store can't be asked")
	}, "the log tells of the store")
	require.Contains(t, s.log.String(), address)
	require.NotContains(t, s.log.String(), "open-sesame")

}

// operators is the Caddyfile of an operator, with all that most need. For the test only what is
// this machine's own is replaced, and a rate at which a slow test would get one more through.
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
	p.until(func() bool { // It has a certificate, and a connection to the store.
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
		p.kill()
		return false
	}
	require.Equal(t, want, got)
	require.Equal(t, `"shop.example";q=2;w=7200`, answers["/orders"].Header.Get("RateLimit-Policy"))
	require.NotEmpty(t, answers["/login"].Header.Get("Retry-After"))
	require.Equal(t, 2, answers["/login"].ProtoMajor)
	require.Len(t, up.arrivals(), 9)
	require.NotEmpty(t, redis.MustDo("KEYS", "*shop.example*"))

	require.NoError(t, os.WriteFile(rules, []byte("default: 1000/s burst 100\nlimits:\n  GET %2Forders: 1/h burst 3\n"), 0o600))
	p.until(func() bool { return get("/orders").StatusCode == admitted }, "a request leaves")
	require.Equal(t, refused, get("/orders").StatusCode)

	p.interrupt(syscall.SIGTERM)
	require.Zero(t, p.wait())
	saved, err := os.ReadFile(state)
	require.NoError(t, err)
	require.Contains(t, string(saved), "shop.example")
	return true
}

// A brace that is closed on its own line is how people write what is short. Caddy refuses
// it, and must say where.
func TestABlockOnOneLineIsRefusedWithItsLine(t *testing.T) {
	file := writeFile(t, "Caddyfile", strings.Replace(operators, "shape /login limits 5/min burst 5", "shape /login { limits 5/min burst 5 }", 1))
	status, text := do(t, "adapt", "--config", file)
	require.Equal(t, 1, status)
	require.Contains(t, text, file+":13")
}

// trusting returns a client that finds every host at an address, and believes the
// certificates that a process has made for itself.
func trusting(t *testing.T, p *process, address string) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	root := filepath.Join(p.home, ".local", "share", "caddy", "pki", "authorities", "local", "root.crt")
	p.until(func() bool {
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
