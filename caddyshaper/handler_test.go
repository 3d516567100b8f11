package caddyshaper_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
)

const proxied = "\n	reverse_proxy UPSTREAM"

func TestRequestsLeaveInOrderAndAtTheRate(t *testing.T) {
	// The cap holds each back until the one before it was served: those who leave shortly one
	// after another could come to the upstream in another order.
	s := serve(t, "shape orders limits 1/h depth 5 inflight 1"+proxied)
	require.Equal(t, 200, s.get("/0").status)
	answers := s.inLine("orders", "/1", "/2", "/3", "/4", "/5")
	start := time.Now()
	s.reload("shape orders limits 10/s depth 5 inflight 1" + proxied)
	for i, a := range answers() {
		require.Equal(t, 200, a.status, "request %d: %v", i+1, a.err)
	}
	// The first of them waited for the rest of an interval at most, each other for a whole one.
	require.GreaterOrEqual(t, time.Since(start), 400*time.Millisecond)
	require.Equal(t, []string{"/0", "/1", "/2", "/3", "/4", "/5"}, s.upstream.paths())
}

func TestARefusalGoesThroughTheErrorRoutesWithItsFields(t *testing.T) {
	s := serve(t, `shape login limits 1/h
	handle_errors {
		respond "{err.status_code} {http.shape.error} {http.shape.name} {http.shape.key}" {err.status_code}
	}`+proxied)
	require.Equal(t, 200, s.get("/").status)
	a := s.get("/")
	require.Equal(t, 429, a.status)
	require.Regexp(t, `^(3600|35\d\d)$`, a.header.Get("Retry-After"))
	require.Equal(t, "no-store", a.header.Get("Cache-Control"))
	require.Equal(t, "429 queue-full login -", a.body) // A Unix socket has no address.
	require.Len(t, s.upstream.arrivals(), 1)
}

func TestARefusalWithoutErrorRoutesHasItsStatusAndFields(t *testing.T) {
	s := serve(t, `shape {
		limits 1/h
		ratelimit_headers
		x_ratelimit_headers
		retry_spread 1h
	}`+proxied)
	require.Equal(t, "1", s.get("/").header.Get("X-RateLimit-Limit"))
	asked := time.Now()
	a := s.get("/")
	require.Equal(t, "0", a.header.Get("X-RateLimit-Remaining"))
	require.Equal(t, 429, a.status)
	after := a.header.Get("Retry-After")
	require.NotEmpty(t, after)
	// Whichever field a client obeys, it comes at the same time.
	require.Regexp(t, `^"http://shop.example";r=0;t=`+after+`$`, a.header.Get("RateLimit"))
	reset, err := strconv.ParseInt(a.header.Get("X-RateLimit-Reset"), 10, 64)
	require.NoError(t, err)
	seconds, err := time.ParseDuration(after + "s")
	require.NoError(t, err)
	require.WithinRange(t, time.Unix(reset, 0), asked.Add(seconds), time.Now().Add(seconds+time.Second))
}

const problemOfMeter = `{"title":"Too Many Requests","status":429,"detail":"More requests have come than the limit allows."}` + "\n"

// requireProblem asks whether an answer is as the library's.
func requireProblem(t *testing.T, status int, a answer) {
	t.Helper()
	require.Equal(t, status, a.status)
	require.Equal(t, "application/problem+json", a.header.Get("Content-Type"))
	require.Equal(t, "nosniff", a.header.Get("X-Content-Type-Options"))
	require.Equal(t, "no-store", a.header.Get("Cache-Control"))
	require.NotEmpty(t, a.header.Get("Retry-After"))
	require.Contains(t, a.body, fmt.Sprintf(`"status":%d`, status))
}

func TestARefusalHasTheBodyOfTheLibrary(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(rules, []byte("default: 1/h\n"), 0o600))
	for _, directive := range []string{"limits 1/h", "rules " + rules} {
		s := serve(t, "shape {\n "+directive+"\n}"+proxied)
		require.Equal(t, 200, s.get("/").status)
		a := s.get("/")
		requireProblem(t, 429, a)
		require.Equal(t, problemOfMeter, a.body)
		require.Empty(t, a.header.Values("RateLimit"), "without ratelimit_headers")
		require.Contains(t, s.logged(2)[1], `"shape_error":"queue-full"`)
		s.stop()
	}
}

// Error routes that are not for a refusal leave it without a body, if they are asked.
func TestARefusalThatNoErrorRouteMatchesHasTheBodyOfTheLibrary(t *testing.T) {
	s := serve(t, `shape limits 1/h
	handle_errors 404 5xx {
		respond "ours {err.status_code}" {err.status_code}
	}`+proxied)
	require.Equal(t, 200, s.get("/").status)
	requireProblem(t, 429, s.get("/"))

	s.reload("shape limits 1/h\n	handle_errors 429 {\n respond /page \"ours\" 429\n}" + proxied)
	require.Equal(t, "ours", s.get("/page").body)

	// Another site on the same port has error routes.
	s.global = "servers {\n}"
	s.reload("shape limits 1/h" + proxied + "\n}\nhttp://other.example {\n bind unix/" + s.socket + "\n handle_errors {\n respond ours\n}")
	requireProblem(t, 429, s.get("/"))
}

func TestErrorRoutesOfASubrouteAnswerARefusal(t *testing.T) {
	s := newSite(t)
	config, err := adapt(s.caddyfile("shape limits 1/h" + proxied))
	require.NoError(t, err)
	var whole map[string]any
	require.NoError(t, json.Unmarshal(config, &whole))
	server := whole["apps"].(map[string]any)["http"].(map[string]any)["servers"].(map[string]any)["srv0"].(map[string]any)
	sub := server["routes"].([]any)[0].(map[string]any)["handle"].([]any)[0].(map[string]any)
	require.Equal(t, "subroute", sub["handler"])
	sub["errors"] = map[string]any{"routes": []any{map[string]any{"handle": []any{map[string]any{"handler": "static_response", "body": "ours", "status_code": 418}}}}}
	config, err = json.Marshal(whole)
	require.NoError(t, err)
	require.NoError(t, caddy.Load(config, true))
	require.Equal(t, 200, s.get("/").status)
	require.Equal(t, answer{418, nil, "ours", nil}, func() answer { a := s.get("/"); a.header = nil; return a }())
}

// An error line with the request's fields for each refusal would fill the disk in an outage.
func TestAnOutageOfTheStoreIsLoggedOnceASecond(t *testing.T) {
	redis := servers.StartRedis(t)
	redis.Kill()
	s := serve(t, fmt.Sprintf("shape line {\n limits 1000/s burst 1000\n store redis://:s3cret@%s\n}%s", redis.Addr, proxied))
	realtime.Until(t, func() bool { return s.get("/").status == 503 }, "the store can't be asked")
	requireProblem(t, 503, s.get("/"))
	begun := time.Now()
	const many = 200
	for range many {
		require.Equal(t, 503, s.get("/", "Secret-Field", "of-the-request").status)
	}
	took := time.Since(begun)
	var lines []string
	told := 0
	realtime.Until(t, func() bool { // The last refusals are told with the first of the next second.
		require.Equal(t, 503, s.get("/").status)
		text, err := os.ReadFile(s.log + ".app")
		require.NoError(t, err)
		lines, told = nil, 0
		for line := range strings.Lines(string(text)) {
			var l struct {
				Level, Shape, Error string
				Status, Refused     int
			}
			require.NoError(t, json.Unmarshal([]byte(line), &l))
			if l.Level != "error" {
				continue
			}
			require.Equal(t, "line", l.Shape, line)
			require.Equal(t, 503, l.Status)
			require.Contains(t, l.Error, "shaper: the shared bucket is unavailable")
			lines, told = append(lines, line), told+l.Refused
		}
		return told >= many
	}, "the log tells of all refusals")
	require.LessOrEqual(t, len(lines), int(took.Seconds())+6)
	text := strings.Join(lines, "")
	require.NotContains(t, text, "of-the-request")
	require.NotContains(t, text, "shape_key", "it is that of one of many")
	require.NotContains(t, text, "stacktrace")
	require.NotContains(t, text, "s3cret")
}

func TestTheAccessLogTellsOfTheWait(t *testing.T) {
	calls := func(limits string) string {
		return "shape calls {\n limits " + limits + "\n candidate 1/h\n key header:Tenant\n verdict_header Trial\n}" + proxied
	}
	s := serve(t, calls("1/h depth 5"))
	require.Equal(t, 200, s.get("/", "Tenant", "acme").status)
	answers := s.inLineWith([]string{"Tenant", "acme"}, "calls", "/")
	s.reload(calls("100/s depth 5"))
	a := answers()[0]
	require.Equal(t, 200, a.status)
	require.Equal(t, "refuse;reason=queue-full", a.header.Get("Trial"))
	var line struct {
		Name    string  `json:"shape_name"`
		Key     string  `json:"shape_key"`
		Verdict string  `json:"shape_verdict"`
		Wait    float64 `json:"shape_wait"`
	}
	require.NoError(t, json.Unmarshal([]byte(s.logged(2)[1]), &line))
	require.Equal(t, "calls", line.Name)
	require.Equal(t, "acme", line.Key)
	require.Equal(t, "refuse;reason=queue-full", line.Verdict)
	require.Positive(t, line.Wait)
}

func TestPlaceholdersAreThereForTheHandlersBehind(t *testing.T) {
	calls := func(limits string) string {
		return "shape calls {\n limits " + limits + "\n key {query.user} host\n}\n" +
			`respond "{http.shape.name}|{http.shape.key}|{http.shape.verdict}|{http.shape.error}|{http.shape.wait}"`
	}
	s := serve(t, calls("1/h depth 5"))
	require.Regexp(t, `^calls\|ann/[^|]+\|\|\|0$`, s.get("/?user=ann").body)
	answers := s.inLine("calls", "/?user=ann")
	s.reload(calls("100/s depth 5"))
	require.Regexp(t, `^calls\|ann/[^|]+\|\|\|\d+\.\d+$`, answers()[0].body)
}

func TestAHostHasOneKeyHoweverItIsWritten(t *testing.T) {
	for _, host := range []string{"shop.example", "Shop.Example", "shop.example.", "shop.example:443", "shop.example.:443"} {
		require.Equal(t, "shop.example", caddyshaper.HostOf(host), host)
	}
	for _, host := range []string{"[::1]", "[::1]:80"} {
		require.Equal(t, "::1", caddyshaper.HostOf(host), host)
	}
}

// A browser sends no key with a preflight, so those of all browsers would share one line.
func TestPreflightsOfAllBrowsersShareNoLine(t *testing.T) {
	for lines, skipped := range map[string]bool{
		"limits 1/h\n key header:X-Api-Key":                                       false,
		"limits 1/h\n key header:X-Api-Key\n skip preflight":                      true,
		"limits 1/h\n fair header X-Api-Key\n skip preflight":                     true,
		"limits 1/s burst 9\n key all\n site 1/h\n skip preflight":                true,
		"limits 1/s burst 9\n candidate 1/h\n site 1/h\n cost 1\n skip preflight": true,
	} {
		s := serve(t, "shape line {\n "+lines+"\n}"+proxied)
		ask := func(method string, header ...string) int { return s.send(method, "/", nil, header...).status }
		preflight := []string{"Origin", "https://a.example", "Access-Control-Request-Method", "PUT"}
		want := 200
		for range 4 {
			require.Equal(t, want, ask(http.MethodOptions, preflight...), lines)
			if !skipped {
				want = 429
			}
		}
		if skipped {
			require.Equal(t, 200, ask(http.MethodOptions), lines)
		}
		require.Equal(t, 429, ask(http.MethodOptions, preflight[:2]...), "it is no preflight")
		require.Equal(t, 429, ask(http.MethodGet, preflight...), "it is no preflight")
		s.stop()
	}
}

func TestTheLineOfTheSiteIsBehindThoseOfTheKeys(t *testing.T) {
	s := serve(t, `shape all {
		limits 100/s burst 100
		key {query.user}
		site 10/s depth 3
		ratelimit_headers
	}`+proxied)
	first := s.get("/?user=0")
	require.Equal(t, 200, first.status)
	require.Len(t, first.header.Values("RateLimit"), 2, first.header)
	start := time.Now()
	answers := make(chan answer, 3)
	for i := range 3 {
		go func() { answers <- s.get(fmt.Sprint("/?user=", i)) }()
	}
	for range 3 {
		require.Equal(t, 200, (<-answers).status)
	}
	require.GreaterOrEqual(t, time.Since(start), 200*time.Millisecond)
}

func TestADryRunHoldsNobodyUp(t *testing.T) {
	s := serve(t, `shape {
		limits 1/h
		dry_run
		verdict_header Verdict
	}`+proxied)
	require.Equal(t, "leave", s.get("/").header.Get("Verdict"))
	a := s.get("/")
	require.Equal(t, 200, a.status)
	require.Equal(t, "refuse;reason=queue-full", a.header.Get("Verdict"))
}

func TestCostsComeFromPlaceholdersWithinBounds(t *testing.T) {
	s := serve(t, `shape {
		limits 1/h burst 10
		key {query.user}
		cost {header.Cost} 10
	}`+proxied)
	for _, c := range []struct {
		cost string
		then int // how many more requests of cost 1 are admitted
	}{
		{"4", 6}, {"10", 0}, {"99999999999999999999", 0}, {"0", 9}, {"-3", 9}, {"", 9}, {"dear", 9},
	} {
		path := "/?user=" + c.cost
		require.Equal(t, 200, s.get(path, "Cost", c.cost).status)
		for range c.then {
			require.Equal(t, 200, s.get(path).status, "after cost %q", c.cost)
		}
		require.Equal(t, 429, s.get(path).status, "after cost %q", c.cost)
	}
}

func TestARouteIsThePatternAndNotThePath(t *testing.T) {
	s := serve(t, `shape {
		limits 1/h
		key route
		routes "POST /login" /orders/{id}
	}
	respond {http.shape.key}`)
	for _, c := range []struct {
		method, path, key string
		status            int
	}{
		{"POST", "/login", "POST %2Flogin", 200},
		{"POST", "/login", problemOfMeter, 429},
		{"GET", "/orders/1", "%2Forders%2F{id}", 200},
		{"GET", "/orders/2", problemOfMeter, 429}, // Another order is no other route.
		{"GET", "/x", "-", 200},
		{"GET", "/y", problemOfMeter, 429},
	} {
		a := s.send(c.method, c.path, nil)
		require.Equal(t, c.status, a.status, "%s %s", c.method, c.path)
		require.Equal(t, c.key, a.body)
	}
}

func TestTwoHandlersOfOneSiteHaveLinesOfTheirOwn(t *testing.T) {
	s := serve(t, "shape limits 100/s burst 100\n	shape /login limits 1/h"+proxied)
	names, _ := caddyshaper.Names()
	require.Equal(t, []string{"http://shop.example", "http://shop.example/login"}, names)
	require.Equal(t, 200, s.get("/login").status)
	require.Equal(t, 429, s.get("/login").status)
	require.Equal(t, 200, s.get("/").status)
}

func TestAClientThatLeavesGivesUpItsPlace(t *testing.T) {
	s := serve(t, "shape line limits 1/h depth 1"+proxied)
	require.Equal(t, 200, s.get("/").status)
	hangUp := s.sendOn("GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n", "line")
	hangUp()
	lines := s.logged(2)
	require.Contains(t, lines[1], `"status":499`)
	require.Contains(t, lines[1], `"shape_error":"gone"`)
	require.Contains(t, lines[1], `"level":"info"`)
}

// To a server that speaks HTTP/1.1 only Caddy gives each connection in a wrapper.
func TestAnUploadWhoseClientLeavesGivesUpItsPlace(t *testing.T) {
	for _, protocols := range []string{"h1 h2 h3", "h1"} {
		t.Run(protocols, func(t *testing.T) {
			s := newSite(t)
			s.global = "servers {\n protocols " + protocols + "\n }"
			s.reload("shape line limits 1/h depth 1" + proxied)
			require.Equal(t, 200, s.get("/").status)
			hangUp := s.sendOn("POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 100000\r\n\r\nbeginning", "line")
			hangUp()
			require.Contains(t, s.logged(2)[1], `"status":499`)
			require.Len(t, s.upstream.arrivals(), 1)
		})
	}
}

func TestStreamsAreFlushedAndKeepTheirSeat(t *testing.T) {
	s := serve(t, "shape streams limits 100/s burst 10 depth 1 inflight 1"+proxied)
	more := make(chan bool)
	s.upstream.serves(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 2 {
			_, _ = w.Write([]byte("data: x\n\n"))
			_ = http.NewResponseController(w).Flush()
			<-more
		}
	})
	r, err := http.NewRequest(http.MethodGet, "http://shop.example/", nil)
	require.NoError(t, err)
	resp, err := s.client.Do(r)
	require.NoError(t, err)
	part := make([]byte, 9)
	_, err = resp.Body.Read(part)
	require.NoError(t, err)
	require.Equal(t, "data: x\n\n", string(part)) // It came while the handler still runs.
	answers := s.inLine("streams", "/second")
	s.upstream.serves(nil)
	close(more)
	require.Equal(t, 200, answers()[0].status)
	require.NoError(t, resp.Body.Close())
}

func TestAnUpgradedConnectionGivesItsSeatBack(t *testing.T) {
	s := serve(t, "shape sockets limits 100/s burst 10 inflight 1"+proxied)
	s.upstream.serves(echoUpgraded)
	send, receive := s.upgrade()
	send("hello\n")
	require.Equal(t, "HELLO\n", receive())
	s.upstream.serves(nil)
	require.Equal(t, 200, s.get("/").status)
	send("still\n")
	require.Equal(t, "STILL\n", receive())
}

func TestEarlyHintsComeThrough(t *testing.T) {
	s := serve(t, "shape limits 100/s"+proxied)
	s.upstream.serves(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(200)
	})
	conn := s.dial()
	_, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"))
	require.NoError(t, err)
	text := readAll(t, conn)
	require.True(t, strings.HasPrefix(text, "HTTP/1.1 103 "), text)
	require.Contains(t, text, "HTTP/1.1 200 ")
}

func TestBlockTimingAndLogAreReached(t *testing.T) {
	s := serve(t, `shape line {
		limits 1/h
		block 1h
		server_timing
		log_refusals
	}`+proxied)
	require.Regexp(t, `^shaper;dur=\d`, s.get("/").header.Get("Server-Timing"))
	require.Equal(t, 429, s.get("/").status)
	require.Regexp(t, "^3[56]..$", s.get("/").header.Get("Retry-After"), "a key that was refused stays out")
	realtime.Until(t, func() bool {
		text, _ := os.ReadFile(s.log + ".app")
		return containsAll(string(text), "shaper: refused", `"shape":"line"`)
	}, "the log tells of the refusal")
}

// A burst that fills the line of the site must not block everybody.
func TestOnlyKeysAreBlocked(t *testing.T) {
	shape := func(site string) string {
		return "shape line {\n limits 1/h burst 2\n key {query.key}\n site " + site + "\n block 1h\n}" + proxied
	}
	s := serve(t, shape("1/h burst 2"))
	for _, c := range []struct {
		path string
		want int
	}{{"/?key=a", 200}, {"/?key=b", 200}, {"/?key=c", 429}} {
		require.Equal(t, c.want, s.get(c.path).status, c.path)
	}
	s.reload(shape("1000/s burst 9"))
	for _, c := range []struct {
		path string
		want int
	}{{"/?key=d", 200}, {"/?key=a", 200}, {"/?key=a", 429}} {
		require.Equal(t, c.want, s.get(c.path).status, c.path)
	}
}
