package shaper

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Middleware returns net/http middleware that lets each request wait for l
// before its handler runs: it delays instead of rejecting. What l does not
// admit is answered by WriteError, or by the handler of WithErrorHandler.
//
// A request costs 1 unless WithCost says otherwise; one of cost 0 passes
// untouched, without asking l. While its handler runs a request is nothing to l,
// unless there is a cap, and flushing, hijacking and http.ResponseController
// work. Panics of the handler pass through.
//
// With a cap on what is in flight (Limits.InFlight) a request has a place while
// its handler runs, and gives it back once: when the connection is hijacked,
// else when the handler has returned or panicked, however long the answer
// streams. Any l with an Acquire like Shaper's counts as one with a cap, unless
// its Limits say that InFlight is 0.
//
// The ResponseWriter is handed on as it is, but for one that can be hijacked, as
// in HTTP/1, where there is a cap: so that the hijack is seen, it is wrapped. The
// wrapper has what http.ResponseController looks for, and is a Flusher, Hijacker,
// Pusher or io.ReaderFrom if the ResponseWriter is one. One thing gets lost: a
// http.MaxBytesReader of the handler can't tell net/http to close the connection
// of a body that is too long. Answer those with "Connection: close".
//
// A request that may leave at once is served, whether its client seems to be there
// or not: net/http cancels the request of a client that has closed only the
// sending half of its connection (nc -N, Node's socket.end(request)), although it
// still reads the answer. After a wait such a client counts as gone, as does one
// that has closed its connection. Of a Limiter that is not of this package
// nobody knows whether it has made a request wait, so there 20 ms count as none.
// The deadline of an outer handler, as http.TimeoutHandler's, counts at once.
//
// For a client that has gone while it waited no handler runs, and with a Shaper
// no slot is spent: it is the next waiter's. Its request ends with status 499
// without a body, which access logs see, and with "Connection: close", so that
// a client which closed only its sending half does not take net/http's empty
// 200 for success. Requests with a body need ConnContext for that; without it
// bodies of known length up to 64 KiB are read before the request enters the
// line, so that net/http watches the connection, and of larger ones, of such as
// have no length or ask "Expect: 100-continue", and of those that an outer
// handler has wrapped, as in http.MaxBytesReader, a departure is not seen.
//
// The time in the line is taken off none of the server's time-outs: they begin
// anew after the wait. A refusal reaches a client that is still sending: the
// rest of its body is awaited for 100 ms at most.
func Middleware(l Limiter, opts ...MiddlewareOption) func(http.Handler) http.Handler {
	if l == nil {
		panic("shaper: Middleware needs a Limiter; to let every request pass, leave it out")
	}
	g := gate{limiter: l, places: acquirerOf(l), rehearses: rehearses(l), middlewareOptions: newMiddlewareOptions(opts)}
	return g.before
}

// gate is the http.Handler that Middleware puts in front of another.
type gate struct {
	limiter   Limiter
	places    acquirer // the limiter, if it caps what is in flight; else nil
	rehearses bool     // the limiter may be a dry run
	next      http.Handler
	middlewareOptions

	// choose is for a gate that has a limiter for each request: it returns the
	// gate with that one, or an error.
	choose func(g gate, r *http.Request) (gate, error)
}

// before returns the gate in front of a handler.
func (g gate) before(next http.Handler) http.Handler {
	g.next = next
	return &g
}

// ServeHTTP lets the request wait, and then runs the handler or answers.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := g.cost(r)
	if n == 0 {
		g.next.ServeHTTP(w, r)
		return
	}
	if g.choose != nil {
		one, err := g.choose(*g, r)
		if err != nil {
			g.refuse(connectionOf(w, r), w, err)
			return
		}
		g = &one
	}
	if g.rehearses && !wantsVerdict(r.Context()) {
		outer := r
		// A map that both requests share, in which routers note path values.
		outer.SetPathValue("", "")
		r = r.WithContext(ContextWithVerdict(r.Context()))
		defer copyBack(outer, r)
	}
	c := connectionOf(w, r)
	// A negative cost is not left to the Limiter: it makes some of them, x/time's
	// among them, fuller instead of emptier.
	var end func()
	err := ErrNegativeCost
	if n > 0 {
		defer c.end()
		end, err = g.wait(c, w, n)
	}
	if c.ahead != nil && r.Body != c.ahead {
		// It stays there, as what an outer handler may read afterwards is in it.
		// net/http looks at the body that it has made itself.
		r.Body = c.ahead
		w = interceptHijack(w, c.ahead.hijack)
	}
	if err != nil {
		g.tellVerdict(w.Header(), r.Context())
		g.refuse(c, w, err)
		return
	}
	if end != nil {
		// Before anything else, as what follows runs methods of outer handlers'
		// ResponseWriters, which may panic.
		defer func() { end() }()
		w, end = untilHijacked(w, end)
	}
	if g.rateLimitFields {
		addRateLimitFields(w.Header(), g.limiter, nil, answer{})
	}
	g.tellVerdict(w.Header(), r.Context())
	g.next.ServeHTTP(w, r)
}

// tellVerdict tells the client what a dry run says of its request, if it is to know.
func (g *gate) tellVerdict(h http.Header, ctx context.Context) {
	if !g.rehearses || g.verdictField == "" {
		return
	}
	if v, ok := VerdictOf(ctx); ok {
		h.Set(g.verdictField, v.String())
	}
}

// copyBack copies to the request that came what net/http's mux and parsers have
// written into the copy that was handed on: outer handlers read its pattern, path
// values and forms, and net/http removes the files of its MultipartForm.
func copyBack(outer, r *http.Request) {
	outer.Form, outer.PostForm, outer.MultipartForm = r.Form, r.PostForm, r.MultipartForm
	if outer.Pattern == r.Pattern {
		return
	}
	outer.Pattern = r.Pattern
	for rest := r.Pattern; ; {
		_, wildcard, ok := strings.Cut(rest, "{")
		if !ok {
			return
		}
		wildcard, rest, _ = strings.Cut(wildcard, "}")
		name := strings.TrimSuffix(wildcard, "...")
		outer.SetPathValue(name, r.PathValue(name))
	}
}

// wait lets a request of cost n > 0 wait for the Limiter. If there is no error
// the caller has to release its place, unless release is nil: then it has none.
func (g *gate) wait(c *connection, w http.ResponseWriter, n int) (release func(), err error) {
	ctx, stop := c.attend(asksDoneToWait(g.limiter))
	defer stop()
	c.suspend()
	start := time.Now()
	release, err = enter(ctx, g.limiter, g.places, n)
	waited := time.Since(start)
	stop()
	// What follows runs methods of outer handlers' ResponseWriters, which may
	// panic.
	handedOn := false
	defer func() {
		if release != nil && !handedOn {
			release()
		}
	}()
	if err != nil && clientGone(ctx, err) {
		if err = c.bodyFailed(); err == nil {
			err = errGone{context.Canceled, waited}
		}
	}
	if g.serverTiming {
		w.Header().Add("Server-Timing", "shaper;dur="+strconv.FormatFloat(float64(waited)/float64(time.Millisecond), 'f', 3, 64))
	}
	c.resume(waited > brief || c.ahead != nil)
	handedOn = true
	return release, err
}

// refuse answers a request that was not admitted.
func (g *gate) refuse(c *connection, w http.ResponseWriter, err error) {
	if gone, ok := err.(errGone); ok {
		g.journal.gone(c.request.Context(), gone.waited)
		c.refuse(w.Header())
		writeGone(w, c.request)
		return
	}
	if _, refusal := errors.AsType[*RejectError](err); !refusal && !isOwnFault(err) && errors.Is(err, context.Canceled) {
		// Something in the Limiter was cancelled, but not this request. The
		// error handler takes context.Canceled for a departed client, whom it
		// owes no answer; this one waits for his.
		err = fmt.Errorf("shaper: limiter gave up on a request that is still there: %v", err)
	}
	c.refuse(w.Header())
	a := answerTo(err)
	if g.onError == nil {
		a = a.later(g.retrySpread)
	}
	if g.rateLimitFields && a.status != http.StatusInternalServerError {
		// A 500 is a mistake of the server: no bucket was asked, and a client that
		// obeys the fields must not slow down for it.
		addRateLimitFields(w.Header(), g.limiter, err, a)
	}
	g.journal.refused(c.request.Context(), err)
	if g.onError != nil {
		g.onError(w, c.request, err)
		return
	}
	a.write(w, c.request)
}

// errGone is the error of a request whose client has gone.
type errGone struct {
	error
	waited time.Duration
}

// clientGone says whether the request ended because its client left. A refusal
// that was decided before stays one, as does a mistake in the cost. An outer
// deadline ends the context too, but leaves a client who wants an answer.
func clientGone(ctx context.Context, err error) bool {
	if _, refused := errors.AsType[*RejectError](err); refused || errors.Is(err, ErrNegativeCost) {
		return false
	}
	return ctx.Err() == context.Canceled
}
