// Package http measures what middleware costs in net/http: the time and the
// allocations of a request that is admitted and of one that is refused, and the
// memory of a request that waits.
package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5/middleware"
	"github.com/go-chi/httprate"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/shaper"
)

// Experiment is "http".
var Experiment = run.Experiment{
	Name: "http",
	What: "what middleware costs per request in net/http, and the memory of connections that wait",
	Note: "HTTP: time per request in the middleware and a handler that sets a status, without net/http itself; own: without what the handler alone (none) took. " +
		"The request has come over a connection; the header of its answer is used again, and what is written is dropped. " +
		"body: 1 KiB, which nobody has read. " +
		"The shaper's line is full, of 100, where requests are refused; chi's throttle is full, and its answer does not tell when to come back. " +
		"HTTPWaiting: resident memory per connection in a server whose clients are another process. " +
		"beyond: without what net/http itself took, with a handler that is parked on a channel. Without ConnContext the shaper reads the body ahead.",
	Goals:  goals,
	Groups: func(o run.Options) []run.Group { return []run.Group{{Cases: costCases(o)}, {Cases: waitingCases(o)}} },
	// own and beyond are without the handler alone.
	Conclude: func(r *report.Report, _ run.Options) error {
		report.Beyond(r.Lines, "ns/call", "own-ns/call", func(string) (string, float64) {
			return kind{bareHandler, false, false}.cost(admitted), 1
		})
		report.Beyond(r.Lines, "B/connection", "beyond-B/connection", func(name string) (string, float64) {
			_, rest, _ := strings.Cut(name, "/body=")
			return "HTTPWaiting/middleware=" + bareHandler + "/conncontext=no/body=" + rest, 1
		})
		return nil
	},
}

// goals bound the allocations of ours, whatever the request is like, and hold a refusal against
// httprate's. The runtime allocates a little meanwhile, far below one per hundred requests.
var goals = []report.Goal{
	{What: "allocations of an admitted HTTP request ($1)", Ours: "HTTP/outcome=admitted/middleware=shaper/(.*)/fields=no allocs/call", Most: 1.01},
	{What: "allocations of a refused HTTP request ($1)", Ours: "HTTP/outcome=refused/middleware=shaper/(.*)/fields=no allocs/call", Most: 4.01},
	{
		What: "memory per waiting HTTP/1 connection beyond net/http's, with ConnContext (body: $1), in bytes", Most: 1024,
		Ours: "HTTPWaiting/middleware=shaper/conncontext=yes/body=(.*)/connections=.* beyond-B/connection",
	},
	{
		What: "HTTP refusal ($1) against httprate's", Most: 1,
		Ours:   "HTTP/outcome=refused/middleware=shaper/(.*)/fields=no own-ns/call",
		Theirs: []string{"HTTP/outcome=refused/middleware=httprate/conncontext=no/body=no/fields=no own-ns/call"},
	},
}

// A kind is a kind of request to a middleware.
type kind struct {
	middleware  string // or bareHandler
	connContext bool   // the server has ours
	body        bool   // the request has one, which has not been read
}

// String is the part of the name of a benchmark that tells the kind.
func (k kind) String() string {
	return fmt.Sprintf("middleware=%s/conncontext=%s/body=%s", k.middleware, yesOrNo(k.connContext), yesOrNo(k.body))
}

func yesOrNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// cost is the name of the benchmark of such requests. No answer has the fields that tell clients how much they may still
// send. The name says so, because earlier results, with which benchstat compares, have both kinds.
func (k kind) cost(becomes outcome) string {
	return fmt.Sprintf("HTTP/outcome=%s/%s/fields=no", becomes, k)
}

// measureCost serves such requests again and again.
func (k kind) measureCost(t *testing.T, becomes outcome, batch time.Duration) (found measure.Timing) {
	g := openers[k.middleware](t, setup{outcome: becomes, next: served})
	k.inRequest(t, func(w http.ResponseWriter, r *http.Request) (err error) {
		a := &answer{ResponseWriter: w, header: http.Header{}}
		if err := k.check(becomes, a, g, r); err != nil {
			return err
		}
		status := a.status
		each := func() func() bool { return func() bool { return a.again(g, r) == status } }
		found, err = measure.TimeCalls(each, 1, batch)
		return err
	})
	return found
}

// check serves a request once, and returns an error if the answer is wrong: otherwise a middleware
// that does something else would be compared with the others.
func (k kind) check(becomes outcome, a *answer, h http.Handler, r *http.Request) error {
	want := http.StatusNoContent
	if becomes == refused {
		want = http.StatusTooManyRequests
	}
	if got := a.again(h, r); got != want {
		return fmt.Errorf("the request is answered with status %d, not %d", got, want)
	}
	tells := becomes == refused && tellsRetryAfter(k.middleware)
	if got := a.header.Get("Retry-After") != ""; got != tells {
		return fmt.Errorf("the answer has a Retry-After: %s", yesOrNo(got))
	}
	if a.header.Get("X-RateLimit-Limit") != "" {
		return errors.New("the answer has fields of the limit")
	}
	return nil
}

// costCases are all kinds of requests for ours. The others look neither at connections
// nor at bodies.
func costCases(o run.Options) (cases []run.Case) {
	batch := 30 * time.Millisecond
	if o.Quick {
		batch /= 10
	}
	for _, k := range []kind{
		{bareHandler, false, false},
		{rivals.Ours, false, false}, {rivals.Ours, false, true}, {rivals.Ours, true, false}, {rivals.Ours, true, true},
		{chi, false, false}, {httpRate, false, false},
	} {
		for _, becomes := range []outcome{admitted, refused} {
			if becomes == refused && k.middleware == bareHandler {
				continue // It refuses none.
			}
			cases = append(cases, run.One(k.cost(becomes), o.Times(5, 1), func(t *testing.T) measure.Timing { return k.measureCost(t, becomes, batch) }))
		}
	}
	return cases
}

// longest is longer than any measurement takes, also on a busy machine.
const longest = 5 * time.Minute

// serve starts a server with timeouts, as our documentation asks for, because the
// middleware moves the deadlines that they set. They are so long that no request meets one.
func serve(t *testing.T, h http.HandlerFunc, connContext bool) (address string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{Handler: h, ReadHeaderTimeout: longest, ReadTimeout: longest, WriteTimeout: longest}
	if connContext {
		server.ConnContext = shaper.ConnContext
	}
	go func() { _ = server.Serve(listener) }() // Should it fail, no request comes.
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}

// bodyLength is how long bodies are, if there are any.
const bodyLength = 1 << 10

// requestText returns a request, for a connection, with a body or without.
func requestText(withBody bool) string {
	if !withBody {
		return "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
	}
	return fmt.Sprintf("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", bodyLength, strings.Repeat("x", bodyLength))
}

// inRequest runs f in the handler of a request that has come over a connection:
// the cost of middleware depends on the request's connection, its server and the type of
// its body.
func (k kind) inRequest(t *testing.T, f func(w http.ResponseWriter, r *http.Request) error) {
	failed := make(chan error, 1) // f returns once, so that this never blocks.
	client, err := net.Dial("tcp", serve(t, func(w http.ResponseWriter, r *http.Request) { failed <- f(w, r) }, k.connContext))
	require.NoError(t, err)
	defer client.Close()
	_, err = io.WriteString(client, requestText(k.body))
	require.NoError(t, err)
	_, err = client.Read(make([]byte, 1)) // The response begins when the handler has returned.
	require.NoError(t, err)
	require.NoError(t, <-failed)
}

// An answer takes the place of net/http's ResponseWriter for requests that are repeated.
// It drops the body, and keeps the header and the status.
type answer struct {
	http.ResponseWriter // the connection's, for its deadlines
	header              http.Header
	status              int
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) Write(b []byte) (int, error) { return len(b), nil }
func (a *answer) WriteHeader(status int)      { a.status = status }

// SetReadDeadline is for [http.ResponseController], as in net/http's ResponseWriter.
func (a *answer) SetReadDeadline(t time.Time) error {
	return a.ResponseWriter.(interface{ SetReadDeadline(time.Time) error }).SetReadDeadline(t)
}

// SetWriteDeadline is likewise.
func (a *answer) SetWriteDeadline(t time.Time) error {
	return a.ResponseWriter.(interface{ SetWriteDeadline(time.Time) error }).SetWriteDeadline(t)
}

// again serves the request again and returns the status.
func (a *answer) again(h http.Handler, r *http.Request) int {
	clear(a.header)
	a.status = 0
	h.ServeHTTP(a, r)
	return a.status
}

// served is the handler behind the middlewares.
var served = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })

// memoryOf returns the resident memory of the server for one connection, while requests wait in a handler, of which each
// has a connection. This process is the server. The clients are a process of their own.
func (k kind) memoryOf(t *testing.T, h http.Handler, connections int) (found report.Figure, err error) {
	var came, left atomic.Int64
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		came.Add(1)
		h.ServeHTTP(w, r)
		left.Add(1)
	}, k.connContext)
	before := measure.ResidentBytes()
	called := make(chan error, 1)
	go func() {
		_, err := callers.Take(t.Context(), callersInput{address, k.body, connections})
		called <- err
	}()
	measure.StandStill(t, func() bool {
		select {
		case err := <-called:
			t.Fatalf("the callers have ended: %v", err)
		case <-time.After(time.Millisecond):
		}
		return came.Load() >= int64(connections)
	})
	found = report.Figure{Value: (measure.ResidentBytes() - before) / float64(connections), Unit: "B/connection"}
	if n := left.Load(); n > 0 {
		return found, fmt.Errorf("%d of %d requests did not wait", n, connections)
	}
	return found, nil
}

// waitingCases are none where the system does not tell how much memory is resident.
func waitingCases(o run.Options) (cases []run.Case) {
	if !measure.MemoryIsTold() {
		return nil
	}
	connections := 10_000
	if o.Quick {
		connections = 500
	}
	for _, body := range []bool{false, true} {
		for _, k := range []kind{{bareHandler, false, body}, {rivals.Ours, false, body}, {rivals.Ours, true, body}, {chi, false, body}} {
			cases = append(cases, run.One(fmt.Sprintf("HTTPWaiting/%s/connections=%d", k, connections), o.Times(3, 1),
				func(t *testing.T) report.Figure {
					never := make(chan struct{})
					parked := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-never })
					found, err := k.memoryOf(t, openers[k.middleware](t, setup{outcome: waits, room: connections, next: parked}), connections)
					require.NoError(t, err)
					return found
				}))
		}
	}
	return cases
}

// A callersInput says which requests a process sends.
type callersInput struct {
	Address     string
	Body        bool
	Connections int
}

// callers are a process of their own.
var callers = run.NewChild("http-callers", call)

// call opens connections and sends a request on each. It ends when the server closes them.
func call(wanted callersInput) (opened int, err error) {
	var open []net.Conn
	for i := range wanted.Connections {
		conn, err := net.Dial("tcp", wanted.Address)
		if err == nil {
			_, err = io.WriteString(conn, requestText(wanted.Body))
		}
		if err != nil {
			return i, fmt.Errorf("connection %d of %d: %w", i+1, wanted.Connections, err)
		}
		open = append(open, conn)
	}
	// Each is read to its end: a collection would close connections that nothing uses any more.
	for _, conn := range open {
		_, _ = io.Copy(io.Discard, conn) // It ends with an error where the server is killed.
	}
	return len(open), nil
}

const (
	// bareHandler stands beside the middlewares: no middleware at all.
	bareHandler = "none"

	chi      = "chi-throttle"
	httpRate = "httprate"
)

const (
	// fullLine is how many wait in our lines that refuse.
	fullLine = 100

	// slowPerSecond is three a day: no request leaves while this runs.
	slowPerSecond = 3. / (24 * 60 * 60)

	// perMinute is the rate of our lines in which requests wait: a request that would
	// leave after more than a year is refused.
	perMinute = 1. / 60

	manyRequests = 1 << 30 // a day
	aDay         = 24 * time.Hour
)

// An outcome is the fate of every request.
type outcome string

const (
	admitted outcome = "admitted" // at once
	refused  outcome = "refused"
	waits    outcome = "waits"
)

// A setup is the task of a middleware.
type setup struct {
	outcome outcome
	room    int // how many can wait, if they do
	next    http.Handler
}

// openers have the middlewares that are compared, each at work in the best use that its
// documentation shows.
var openers = map[string]func(*testing.T, setup) http.Handler{
	bareHandler: func(_ *testing.T, s setup) http.Handler { return s.next },
	rivals.Ours: openShaper,
	chi:         openThrottle,
	httpRate:    openHTTPRate,
}

// limits returns the limits with which our middleware does its task.
func (s setup) limits() shaper.Limits {
	switch s.outcome {
	case admitted:
		return shaper.Limits{Rate: 1e9, Burst: 1e9, Depth: 1}
	case refused:
		return shaper.Limits{Rate: slowPerSecond, Depth: fullLine}
	}
	return shaper.Limits{Rate: perMinute, Depth: s.room}
}

// openShaper takes the units that may leave at once from a line in which requests are to wait, and fills
// one that is to refuse them.
func openShaper(t *testing.T, s setup) http.Handler {
	line := rivals.Must(shaper.New(s.limits()))
	t.Cleanup(func() { _ = line.Close() }) // It returns nil.
	if s.outcome != admitted {
		line.Allow()
	}
	if s.outcome == refused {
		measure.Gather(t, fullLine, func(int) { _ = line.Wait(context.Background()) })
		require.Equal(t, fullLine, line.Stats().Waiting)
	}
	return shaper.Middleware(line)(s.next)
}

// openThrottle bounds how many requests are served at once. Requests wait while one is
// served that does not end, and are refused once the backlog is full.
func openThrottle(t *testing.T, s setup) http.Handler {
	if s.outcome == admitted {
		return middleware.ThrottleBacklog(1, 1, aDay)(s.next)
	}
	endless := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-t.Context().Done() })
	h := middleware.ThrottleBacklog(1, max(s.room, 1), aDay)(endless)
	occupying := 1
	if s.outcome == refused {
		occupying = 2 // One is served and one waits.
	}
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	measure.Gather(t, occupying, func(int) { h.ServeHTTP(httptest.NewRecorder(), request) })
	return h
}

// openHTTPRate counts all requests under one key. Of its fields it keeps Retry-After, as ours does.
func openHTTPRate(_ *testing.T, s setup) http.Handler {
	perDay := manyRequests
	if s.outcome == refused {
		perDay = 1
	}
	fields := httprate.WithResponseHeaders(httprate.ResponseHeaders{RetryAfter: "Retry-After"})
	h := httprate.LimitBy(perDay, aDay, httprate.Key("*"), fields)(s.next)
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	return h
}

// tellsRetryAfter reports whether a refusal of that middleware has a Retry-After.
func tellsRetryAfter(name string) bool { return name == rivals.Ours || name == httpRate }
