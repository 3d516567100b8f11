package http

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/shaper"
)

// A costInput names one kind of request.
type costInput struct {
	Middleware  string // or bareHandler
	ConnContext bool   // the server has ours
	Body        bool   // the request has one, which has not been read
	Fields      bool   // the answer has fields that tell how much the client may still send
	Outcome     outcome
	Batch       time.Duration // how long requests are served
}

// A cost is the time and the memory of a request in a middleware and the handler behind it, and how
// much longer it took than in the handler alone in the same round.
type cost struct {
	measure.Timing
	Own float64 `unit:"own-ns/call"`
}

var costChild = run.NewMeasurement("http-cost", measureCost)

// measureCost serves such requests again and again.
func measureCost(in costInput) (cost, error) {
	found := cost{Own: measure.Unknown}
	g, err := openers[in.Middleware](setup{outcome: in.Outcome, fields: in.Fields, next: served})
	if err != nil {
		return found, err
	}
	defer g.stop()
	err = inRequest(in.ConnContext, in.Body, func(w http.ResponseWriter, r *http.Request) (err error) {
		a := &answer{ResponseWriter: w, header: http.Header{}}
		if err := in.check(a, g, r); err != nil {
			return err
		}
		status := a.status
		each := func() func() bool { return func() bool { return a.again(g, r) == status } }
		found.Timing, err = measure.TimeCalls(each, 1, in.Batch)
		return err
	})
	return found, err
}

// check serves a request once, and returns an error if the answer is wrong: otherwise a middleware
// that does something else would be compared with the others.
func (in costInput) check(a *answer, h http.Handler, r *http.Request) error {
	want := http.StatusNoContent
	if in.Outcome == refused {
		want = http.StatusTooManyRequests
	}
	if got := a.again(h, r); got != want {
		return fmt.Errorf("the request is answered with status %d, not %d", got, want)
	}
	tells := in.Outcome == refused && tellsRetryAfter(in.Middleware)
	if got := a.header.Get("Retry-After") != ""; got != tells {
		return fmt.Errorf("the answer has a Retry-After: %s", yesOrNo(got))
	}
	fields := a.header.Get("RateLimit") != "" || a.header.Get("X-RateLimit-Limit") != ""
	if fields != in.Fields {
		return fmt.Errorf("the answer has fields of the limit: %s", yesOrNo(fields))
	}
	return nil
}

// costCases are all kinds of requests for ours. The others look neither at connections
// nor at bodies.
func costCases(o run.Options) (cases []run.Case[costInput]) {
	batch := 30 * time.Millisecond
	if o.Quick {
		batch /= 10
	}
	add := func(name string, connContext, body, fields bool) {
		for _, becomes := range []outcome{admitted, refused} {
			if becomes == refused && name == bareHandler {
				continue // It refuses none.
			}
			cases = append(cases, run.Case[costInput]{
				Name: fmt.Sprintf("HTTP/outcome=%s/middleware=%s/conncontext=%s/body=%s/fields=%s",
					becomes, name, yesOrNo(connContext), yesOrNo(body), yesOrNo(fields)),
				Input:  costInput{name, connContext, body, fields, becomes, batch},
				Rounds: o.Times(5, 1),
			})
		}
	}
	const connContext, body, fields = true, true, true
	add(bareHandler, !connContext, !body, !fields)
	for _, with := range []bool{false, true} {
		add(rivals.Ours, with, !body, !fields)
		add(rivals.Ours, with, body, !fields)
		add(rivals.Ours, with, !body, fields)
	}
	add(rivals.Ours, connContext, body, fields)
	add(oursKeyed, connContext, !body, !fields)
	add(chi, !connContext, !body, !fields)
	add(httpRate, !connContext, !body, !fields)
	add(httpRate, !connContext, !body, fields)
	return cases
}

// measureCosts adds to each cost how much of it is beyond the handler alone.
func measureCosts(ctx context.Context, o run.Options) ([]run.Result[costInput, cost], error) {
	results, err := run.InTurns(ctx, o, costChild.Take, costCases(o))
	return run.Beyond(results, func(bare, _ costInput) bool { return bare.Middleware == bareHandler },
		func(bare cost, from *cost) { from.Own = from.Ns - bare.Ns }), err
}

// longest is longer than any measurement takes, also on a busy machine.
const longest = 5 * time.Minute

// newServer returns a server with timeouts, as our documentation asks for, because the
// middleware moves the deadlines that they set. They are so long that no request meets one.
func newServer(h http.Handler, connContext bool) *http.Server {
	server := &http.Server{Handler: h, ReadHeaderTimeout: longest, ReadTimeout: longest, WriteTimeout: longest}
	if connContext {
		server.ConnContext = shaper.ConnContext
	}
	return server
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

// inRequest runs f in the handler of a request that has come over a connection, as
// what middleware does with a request depends on its connection, its server and the
// type of its body.
func inRequest(connContext, withBody bool, f func(w http.ResponseWriter, r *http.Request) error) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	failed := make(chan error, 1) // f returns once, so that this never blocks.
	server := newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { failed <- f(w, r) }), connContext)
	served := make(chan error, 1) // likewise of Serve
	go func() { served <- server.Serve(listener) }()
	defer func() { _ = server.Close(); <-served }()

	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := io.WriteString(client, requestText(withBody)); err != nil {
		return err
	}
	_, err = bufio.NewReader(client).ReadByte() // The response begins when the handler has returned.
	select {
	case failed := <-failed:
		return errors.Join(failed, err)
	default:
		return fmt.Errorf("the request was not served: %w", err)
	}
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

// SetReadDeadline is what [http.ResponseController] finds in net/http's ResponseWriter.
func (a *answer) SetReadDeadline(t time.Time) error {
	return a.ResponseWriter.(interface{ SetReadDeadline(time.Time) error }).SetReadDeadline(t)
}

// SetWriteDeadline is likewise.
func (a *answer) SetWriteDeadline(t time.Time) error {
	return a.ResponseWriter.(interface{ SetWriteDeadline(time.Time) error }).SetWriteDeadline(t)
}

// again serves the request once more and returns the status.
func (a *answer) again(h http.Handler, r *http.Request) int {
	clear(a.header)
	a.status = 0
	h.ServeHTTP(a, r)
	return a.status
}

// served is the handler behind the middlewares.
var served = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
