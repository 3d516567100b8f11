package caddyshaper_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
)

// useTLS makes the site one of https, with HTTP/2. It returns what its directives need.
func (s *site) useTLS() string {
	s.t.Helper()
	borrowed := httptest.NewTLSServer(http.NotFoundHandler()) // It has a certificate for tests.
	borrowed.Close()
	pair := borrowed.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(s.t, err)
	dir := s.t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]},
		keyFile:  {Type: "PRIVATE KEY", Bytes: key},
	} {
		require.NoError(s.t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	}
	transport := s.client.Transport.(*http.Transport)
	transport.ForceAttemptHTTP2 = true
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	s.scheme = "https"
	return "tls " + certFile + " " + keyFile + "\n	"
}

func TestTheTimeInLineIsNotTakenOffTimeouts(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			s := newSite(t)
			directives := ""
			if proto == "HTTP/2.0" {
				directives = s.useTLS()
			}
			s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body) // A proxy that has timed out ends it.
				_, _ = w.Write([]byte(r.Header.Get("Via") + strings.ToUpper(string(body))))
			})
			body := strings.Repeat("a", 200_000) // more than is read ahead
			for timeout := 600 * time.Millisecond; ; timeout *= 2 {
				answers, inTime := s.waitLongerThan(timeout, directives, body)
				waited := true
				for _, a := range answers {
					if inTime {
						require.NoError(t, a.err)
						require.Equal(t, 200, a.status)
					}
					waited = waited && a.status == 200 && waitOf(t, a) > timeout
				}
				if !waited {
					require.Less(t, timeout, 8*time.Second, "in no try did both wait for longer than the timeouts: %v", answers)
					continue
				}
				for _, a := range answers {
					require.Contains(t, a.header.Get("Via"), "Caddy")
					require.True(t, strings.HasSuffix(a.body, strings.ToUpper(body)), "%d bytes", len(a.body))
				}
				break
			}
			logged := s.logged(3)
			require.Contains(t, logged[len(logged)-1], `"proto":"`+proto+`"`)
		})
	}
}

// waitLongerThan sends a request that does not wait, and two that wait for longer than the
// timeouts of the server. It returns the answers of these, and whether each of them, or its
// failure, came soon after its slot: long before the timeouts were over once more.
func (s *site) waitLongerThan(timeout time.Duration, directives, body string) (answers []answer, inTime bool) {
	s.t.Helper()
	s.global = fmt.Sprintf("servers {\n timeouts {\n read_body %[1]v\n write %[1]v\n }\n }", timeout)
	interval := timeout * 5 / 3
	s.reload(fmt.Sprintf("%sshape line%d {\n limits 1 per %v depth 3\n server_timing\n}%s", directives, timeout.Milliseconds(), interval, proxied))
	begun := time.Now()
	inTime = true
	soonAfter := func(slot int) {
		inTime = inTime && time.Since(begun) < time.Duration(slot)*interval+timeout/2
	}
	first := s.get("/")
	soonAfter(0)
	if inTime {
		require.NoError(s.t, first.err)
		require.Equal(s.t, 200, first.status)
	}
	came := make(chan answer, 2)
	for range 2 {
		go func() { came <- s.send(http.MethodPost, "/", strings.NewReader(body)) }()
	}
	for slot := range 2 {
		answers = append(answers, <-came)
		soonAfter(slot + 1)
	}
	return answers, inTime
}

// waitOf returns for how long a request was in line, by its answer.
func waitOf(t testing.TB, a answer) time.Duration {
	t.Helper()
	ms, ok := strings.CutPrefix(a.header.Get("Server-Timing"), "shaper;dur=")
	require.True(t, ok, a.header)
	d, err := time.ParseDuration(ms + "ms")
	require.NoError(t, err)
	return d
}

func TestAddressesAreThoseThatCaddyFinds(t *testing.T) {
	s := newSite(t)
	s.global = "servers {\n trusted_proxies_unix\n trusted_proxies_strict\n }"
	s.reload("shape limits 100/s burst 10\n	respond {http.shape.key}")
	for forwarded, key := range map[string]string{
		"198.51.100.7, 192.0.2.1": "192.0.2.1", // What the client has written comes first.
		"2001:db8:0:1:2:3:4:5":    "2001:db8:0:1::%2F64",
		"::ffff:192.0.2.1":        "192.0.2.1",
		"":                        "-",
	} {
		require.Equal(t, key, s.get("/", "X-Forwarded-For", forwarded).body, "of %q", forwarded)
	}
	// A client that could name its own address would have a fresh bucket for each request.
	s.global = ""
	s.reload("shape limits 100/s burst 10\n	respond {http.shape.key}")
	require.Equal(t, "-", s.get("/", "X-Forwarded-For", "192.0.2.1").body)
}

func TestOneNameInTwoSitesIsOneLine(t *testing.T) {
	s := newSite(t)
	s.reload("shape shared {\n limits 1/h\n key all\n}\n	respond a\n}\nhttp://other.example {\n	bind unix/" + s.socket + "2\n	shape shared {\n limits 1/h\n key all\n}\n	respond b")
	require.Equal(t, 200, s.get("/").status)
	s.socket += "2"
	s.client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(s.ctx, http.MethodGet, "http://other.example/", nil)
	require.NoError(t, err)
	require.Equal(t, 429, do(s.client, r).status)
}

// The first request keeps the only seat, so the next one would wait for as long as that takes.
func TestNobodyWaitsForLongerThanTheLinesSay(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(rules, []byte("default: 100/s depth 5 wait 300ms inflight 1\n"), 0o600))
	const limits = "limits 100/s depth 5 inflight 1"
	for name, test := range map[string]struct {
		lines string
		after bool // it leaves when the seat is free, however late
	}{
		"limits":       {lines: limits + " wait 300ms"},
		"line_timeout": {lines: limits + "\n line_timeout 300ms"},
		"off":          {limits + " wait 300ms\n line_timeout off", true},
		"longer":       {limits + " wait 300ms\n line_timeout 1h", true},
		"site":         {lines: "limits 1000/s burst 10\n site 100/s depth 5 inflight 1 wait 300ms"},
		"fair":         {lines: limits + " wait 300ms\n fair host"},
		"rules":        {lines: "rules " + rules},
		"quota":        {lines: "quota openai {\n requests 60000\n }\n wait 300ms\n inflight 1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, "shape line {\n "+test.lines+"\n}"+proxied)
			free := make(chan bool)
			s.upstream.serves(func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/0" {
					<-free
				}
			})
			first := make(chan answer, 1)
			go func() { first <- s.get("/0") }()
			realtime.Until(t, func() bool { return len(s.upstream.arrivals()) == 1 }, "the seat is taken")
			came := time.Now()
			if test.after {
				answers := s.inLine("line", "/1")
				time.Sleep(600 * time.Millisecond)
				require.Equal(t, 1, caddyshaper.Waiting("line"))
				close(free)
				require.Equal(t, 200, answers()[0].status)
			} else {
				a := s.get("/1")
				require.Equal(t, 429, a.status)
				require.GreaterOrEqual(t, time.Since(came), 300*time.Millisecond)
				require.NotEmpty(t, a.header.Get("Retry-After"))
				require.Contains(t, a.body, "The request has waited too long.")
				close(free)
			}
			require.Equal(t, 200, (<-first).status)
		})
	}
}

// It can't change for lines in use, and requests in line keep the bounds that they have.
func TestAnotherLineTimeoutMakesOtherLines(t *testing.T) {
	const lines = "shape line {\n limits 1/h depth 5"
	s := serve(t, lines+"\n}"+proxied)
	require.Equal(t, 200, s.get("/0").status)
	answers := s.inLine("line", "/1")
	s.reload(lines + "\n line_timeout 1s\n}" + proxied)
	_, all := caddyshaper.Names()
	require.Equal(t, []string{"line", "line"}, all)
	require.Equal(t, 429, s.get("/2").status, "the new line has the level of the old one")
	require.Equal(t, 1, caddyshaper.Waiting("line"))
	s.giveUp()
	require.Error(t, answers()[0].err)
}

// No wait within the line's cures such a refusal, so each caller gets the provider's own.
func TestARefusalForHoursIsPassedOnAndHoldsNobody(t *testing.T) {
	s := serve(t, "shape line {\n quota openai {\n requests 60000\n }\n wait 1m\n inflight 1\n}"+proxied)
	refuse := make(chan bool)
	s.upstream.serves(func(w http.ResponseWriter, _ *http.Request) {
		<-refuse
		w.Header().Set("Retry-After", "7200")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	first := make(chan answer, 1)
	go func() { first <- s.get("/0") }()
	realtime.Until(t, func() bool { return len(s.upstream.arrivals()) == 1 }, "the seat is taken")
	answers := s.inLine("line", "/1", "/2")
	close(refuse)
	for _, a := range append(answers(), <-first) {
		require.Equal(t, 429, a.status)
		require.Equal(t, "7200", a.header.Get("Retry-After"))
	}
	require.ElementsMatch(t, []string{"/0", "/1", "/2"}, s.upstream.paths(), "each was sent once")
}

// serveFile names a Caddyfile for a process that is this test's program, as only the end of a
// process lets Caddy wait for its servers.
const serveFile = "CADDYSHAPER_TEST_SERVE"

// longPause is what serveAlone takes for a stall, and tells.
const longPause = 20 * time.Millisecond

// serveAlone runs Caddy until it is told to end, and tells of each change that tests wait for.
func serveAlone(file string) {
	text, err := os.ReadFile(file)
	if err == nil {
		text, err = adapt(string(text))
	}
	if err == nil {
		caddy.TrapSignals()
		err = caddy.Load(text, true)
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	var mu sync.Mutex
	looked := time.Now()
	tellStall := func() {
		mu.Lock()
		defer mu.Unlock()
		pause := time.Since(looked)
		if looked = looked.Add(pause); pause > longPause {
			fmt.Println(stalledFor, pause)
		}
	}
	caddy.OnExit(func(context.Context) { tellStall() }) // The loop may not see the last one.
	for was := ""; ; time.Sleep(time.Millisecond) {
		tellStall()
		if now := fmt.Sprintf("waiting %d ready %t", caddyshaper.Waiting("line"), caddyshaper.Ready()); now != was {
			was = now
			fmt.Println(now)
		}
	}
}

// stalledFor stands before the time for which a process stood still.
const stalledFor = "stalled for "

// start runs Caddy in a process of its own, and returns when it is ready.
func (s *site) start(directives string) *servers.Process {
	s.t.Helper()
	file := s.log + ".caddyfile"
	require.NoError(s.t, os.WriteFile(file, []byte(s.caddyfile(directives)), 0o600))
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), serveFile+"="+file)
	p := servers.Start(s.t, command)
	p.Says("ready true")
	return p
}

// stalledSince returns for how long a process stood still after it had said something.
func stalledSince(t *testing.T, p *servers.Process, said string) (stalled time.Duration) {
	t.Helper()
	_, since, _ := strings.Cut(p.Output(), said)
	for line := range strings.Lines(since) {
		if pause, ok := strings.CutPrefix(line, stalledFor); ok {
			d, err := time.ParseDuration(strings.TrimSpace(pause))
			require.NoError(t, err)
			stalled += d
		}
	}
	return stalled
}

func TestWhenTheProcessEndsLinesDrainWithinTheGracePeriod(t *testing.T) {
	s := newSite(t)
	// Nobody leaves before all are there.
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(rules, []byte("default: 1/h depth 4\n"), 0o600))
	p := s.start("shape line {\n rules " + rules + "\n}" + proxied)
	require.Equal(t, 200, s.get("/0").status)
	answers := make(chan answer, 3)
	for i := range 3 {
		go func() { answers <- s.get(fmt.Sprint("/", i+1)) }()
	}
	p.Says("waiting 3")
	p.Signal(syscall.SIGTERM)
	p.Says("ready false")
	require.NoError(t, os.WriteFile(rules, []byte("default: 2/s depth 4\n"), 0o600))
	for range 3 {
		a := <-answers
		require.NoError(t, a.err)
		require.Equal(t, 200, a.status)
	}
	require.Zero(t, p.Wait())
}

func TestWhoStillWaitsAtTheEndOfTheGracePeriodIsTold(t *testing.T) {
	// A tenth of the grace period is left for the answers. A process that stands still for about
	// as long may be late with them: then they have twice the time.
	for grace := 2 * time.Second; ; grace *= 2 {
		s := newSite(t)
		s.grace = grace.String()
		p := s.start("shape line {\n limits 1 per 2h depth 4\n}" + proxied)
		require.Equal(t, 200, s.get("/0").status)
		answers := make(chan answer, 2)
		for i := range 2 {
			go func() { answers <- s.get(fmt.Sprint("/", i+1)) }()
		}
		p.Says("waiting 2")
		p.Signal(syscall.SIGTERM)
		first, second := <-answers, <-answers
		require.Zero(t, p.Wait())
		stalled := stalledSince(t, p, "waiting 2")
		if (first.err != nil || second.err != nil) && stalled > grace/20 && grace <= 8*time.Second {
			t.Logf("of a grace period of %v the process stood still for %v", grace, stalled)
			continue
		}
		for _, a := range []answer{first, second} {
			require.NoError(t, a.err)
			require.Equal(t, 503, a.status)
			require.NotEmpty(t, a.header.Get("Retry-After"))
		}
		require.Len(t, s.upstream.arrivals(), 1)
		return
	}
}

const bodyTimeouts = "servers {\n timeouts {\n read_body_idle 500ms 10000000\n write_idle 500ms\n }\n }"

// Clients that send and read a byte now and then must not keep the others out for ever, and an answer that pauses is no slow client.
func TestSlowClientsDoNotHoldAllPlaces(t *testing.T) {
	for name, lines := range map[string]string{
		"limits": "limits 1000/s burst 100 depth 200 inflight 20", "quota": "quota openai {\n requests 60000\n }\n inflight 20",
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.global = bodyTimeouts
			s.client.Timeout = enough
			s.reload("shape line {\n " + lines + "\n}" + proxied)
			s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
				switch _, _ = io.Copy(io.Discard, r.Body); r.URL.Path {
				case "/large":
					_, _ = io.Copy(w, io.LimitReader(zeros{}, 64<<20))
				case "/stream":
					for range 2 {
						_, _ = io.WriteString(w, "word ")
						_ = http.NewResponseController(w).Flush()
						time.Sleep(700 * time.Millisecond)
					}
				}
			})
			for i := range 80 {
				conn := s.dial()
				request := "GET /large HTTP/1.1\r\nHost: shop.example\r\n\r\n"
				if i%2 == 0 { // It is more than the gateway reads before the line.
					request = "POST /upload HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 10000000\r\n\r\n" + strings.Repeat(" ", 1<<20+1)
				}
				go func() {
					_, err := io.WriteString(conn, request)
					for b := make([]byte, 1); err == nil; time.Sleep(50 * time.Millisecond) {
						if i%2 == 0 {
							_, err = conn.Write(b)
						} else {
							_, err = conn.Read(b)
						}
					}
				}()
			}
			realtime.Until(t, func() bool { return len(s.upstream.arrivals()) >= 20 }, "all places are taken")
			var good sync.WaitGroup
			answers := make([]answer, 41)
			for i := range answers[:40] {
				good.Go(func() { answers[i] = s.get("/good") })
			}
			good.Go(func() { answers[40] = s.get("/stream") })
			good.Wait()
			for i, a := range answers {
				require.NoError(t, a.err, "%d: %s", i, a.body)
				require.Equal(t, 200, a.status, "%d: %s", i, a.body)
			}
			require.Equal(t, "word word ", answers[40].body)
		})
	}
}

// zeros is a reader of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// Who sets a cap and no time-outs finds out when slow clients hold all places, unless the log says it before.
func TestACapWithoutTimeoutsIsWarnedOf(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	writeRules(rules, "default: 5/s\nlimits:\n  a: 5/s inflight 3\n")
	const read, write = "read_body_idle 20s 10000", "write_idle 20s"
	capped := "limits 5/s inflight 3"
	for _, c := range []struct{ lines, timeouts, want string }{
		{"limits 5/s", "", ""},
		{"limits 5/s\n candidate 5/s inflight 3", "", ""}, // It holds nobody up.
		{capped, "", read + "; " + write},
		{"limits 5/s\n site 5/s inflight 3", "", read + "; " + write},
		{"limits 5/s inflight 3\n fair host", "", read + "; " + write},
		{"quota openai {\n requests 5\n }\n inflight 3", "", read + "; " + write},
		{"rules " + rules, "", read + "; " + write},
		{"limits 5/s\n store redis://127.0.0.1:1\n shared_inflight 3", "", read + "; " + write},
		{"limits 5/s\n site 5/s\n store redis://127.0.0.1:1\n shared_inflight 9\n site_shared_inflight 3", "", read + "; " + write},
		{capped, "read_body 5s", write},
		{capped, "write 5s", read},
		{capped, "read_body 5s\n write 5s", ""},
		{capped, read + "\n " + write, ""},
		{capped, "read_body_idle 20s\n write_idle 2m", read + "; " + write}, // A byte every 20 s will do.
		{capped, "read_body_idle -1s 1000\n write_idle -1s", read + "; " + write},
	} {
		s := newSite(t)
		s.global = "servers {\n timeouts {\n " + c.timeouts + "\n }\n }"
		s.reload("shape line {\n " + c.lines + "\n}" + proxied)
		s.stop()
		text, err := os.ReadFile(s.log + ".app")
		require.NoError(t, err)
		var warnings []string
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "slow clients") {
				warnings = append(warnings, line)
			}
		}
		if c.want == "" {
			require.Empty(t, warnings, c.lines+c.timeouts)
			continue
		}
		require.Len(t, warnings, 1, c.lines+c.timeouts)
		require.Contains(t, warnings[0], `"such_as":"servers { timeouts { `+c.want+` } }"`, c.lines+c.timeouts)
		require.Contains(t, warnings[0], `"level":"warn"`)
		require.Contains(t, warnings[0], `"inflight":3`)
	}
}
