package shaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
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
	var o middlewareOptions
	for _, opt := range opts {
		if opt != nil {
			opt.applyMiddleware(&o)
		}
	}
	if o.cost == nil {
		o.cost = func(*http.Request) int { return 1 }
	}
	places := acquirerOf(l)
	return func(next http.Handler) http.Handler {
		return &gate{limiter: l, places: places, next: next, middlewareOptions: o}
	}
}

// A MiddlewareOption changes how Middleware treats requests.
type MiddlewareOption interface{ applyMiddleware(*middlewareOptions) }

type middlewareOptions struct {
	cost            func(*http.Request) int
	onError         func(http.ResponseWriter, *http.Request, error)
	retrySpread     time.Duration
	rateLimitFields bool
	serverTiming    bool
	journal         *journal
}

type costOption func(*http.Request) int

func (o costOption) applyMiddleware(to *middlewareOptions) { to.cost = o }

// WithCost sets the function that tells what a request costs. The default, for
// which nil stands too, is 1.
//
// A request of cost 0 passes untouched, which is for health checks. Bound the
// cost above if it comes from the request: cost / Rate is how long everybody
// behind it waits. A negative cost is a mistake and answered with status 500.
func WithCost(cost func(*http.Request) int) MiddlewareOption { return costOption(cost) }

type errorHandlerOption func(http.ResponseWriter, *http.Request, error)

func (o errorHandlerOption) applyMiddleware(to *middlewareOptions) { to.onError = o }

// WithErrorHandler sets the function that answers requests which were not
// admitted. The default, for which nil stands too, is WriteError.
//
// It gets the Limiter's error, in which errors.As finds the *RejectError of a
// Shaper, or ErrNegativeCost, or one of the middleware's own, of which WriteError
// knows the status. It is not called for a client that has gone. The
// middleware has seen to deadlines before, and header fields that it sets
// itself (WithRateLimitHeaders, "Connection: close") are there already.
func WithErrorHandler(handle func(http.ResponseWriter, *http.Request, error)) MiddlewareOption {
	return errorHandlerOption(handle)
}

type retrySpreadOption time.Duration

func (o retrySpreadOption) applyMiddleware(to *middlewareOptions) {
	to.retrySpread = max(0, time.Duration(o))
}

// WithRetrySpread adds a random time from 0 to d, in whole seconds as the field
// is, to the Retry-After of each refusal, so that clients which were refused
// together do not come back together. The RateLimit field tells the same time.
// The *RejectError stays exact, and a handler of WithErrorHandler has to do its
// own spreading. The default is 0, for which all below a second stands too.
func WithRetrySpread(d time.Duration) MiddlewareOption { return retrySpreadOption(d) }

type serverTimingOption struct{}

func (serverTimingOption) applyMiddleware(to *middlewareOptions) { to.serverTiming = true }

// WithServerTiming tells each client how long its request waited, in
// milliseconds, in a header field that browsers' developer tools show (W3C
// Server Timing):
//
//	Server-Timing: shaper;dur=12.345
func WithServerTiming() MiddlewareOption { return serverTimingOption{} }

type loggerOption struct{ log *slog.Logger }

func (o loggerOption) applyMiddleware(to *middlewareOptions) { to.journal = newJournal(o.log) }

// WithLogger logs refusals, at level Warn and at most one a second with the
// number of those since the one before, and clients that have gone, at level
// Debug. Nothing of the request is logged, but the text of another Limiter's
// error is. The default, for which nil stands too, is to log nothing.
func WithLogger(log *slog.Logger) MiddlewareOption { return loggerOption{log} }

// gate is the http.Handler that Middleware puts in front of another.
type gate struct {
	limiter Limiter
	places  acquirer // the limiter, if it caps what is in flight; else nil
	next    http.Handler
	middlewareOptions
}

// ServeHTTP lets the request wait, and then runs the handler or answers.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := g.cost(r)
	if n == 0 {
		g.next.ServeHTTP(w, r)
		return
	}
	c := connectionOf(w, r)
	// A negative cost is not left to the Limiter: it makes some of them, x/time's
	// among them, fuller instead of emptier.
	err := ErrNegativeCost
	if n > 0 {
		if err = g.fetch(&c, n); err != nil {
			c.resume(true)
		}
	}
	if c.ahead != nil && r.Body != c.ahead {
		defer c.ahead.stop()
		outer := r
		r = new(*r)
		r.Body = c.ahead
		// net/http removes the files of a form by the request that it made, and
		// outer handlers read the pattern there.
		defer func() { outer.Pattern, outer.MultipartForm = r.Pattern, r.MultipartForm }()
	}
	var end func()
	if err == nil {
		end, err = g.wait(c, w, n)
	}
	if err != nil {
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
	g.next.ServeHTTP(w, r)
}

// fetch reads a small body ahead where the connection can't be asked, unless
// the request will be refused anyway.
func (g *gate) fetch(c *connection, n int) error {
	if c.ahead != nil || c.canAsk() || !c.fetchable() {
		return nil
	}
	if f, ok := g.limiter.(interface {
		Forecast(n int) (time.Duration, error)
	}); ok {
		if _, err := f.Forecast(n); err != nil {
			return nil
		}
	}
	if c.ahead = c.readAhead(); c.ahead == nil {
		return nil
	}
	return c.ahead.arrive(c.server, c.request.Context().Done())
}

// wait lets a request of cost n > 0 wait for the Limiter. If there is no error
// the caller has to release its place, unless release is nil: then it has none.
func (g *gate) wait(c connection, w http.ResponseWriter, n int) (release func(), err error) {
	ctx := c.request.Context()
	if c.canAsk() {
		attended, stop := attend(ctx, c.conn, c.unread())
		defer stop()
		ctx = attended
	}
	c.suspend()
	start := time.Now()
	release, err = enter(ctx, g.limiter, g.places, n)
	waited := time.Since(start)
	// What follows runs methods of outer handlers' ResponseWriters, which may
	// panic.
	handedOn := false
	defer func() {
		if release != nil && !handedOn {
			release()
		}
	}()
	if err != nil && clientGone(ctx, err) {
		err = errGone{err, waited}
	}
	if g.serverTiming {
		w.Header().Add("Server-Timing", "shaper;dur="+strconv.FormatFloat(float64(waited)/float64(time.Millisecond), 'f', 3, 64))
	}
	c.resume(waited > brief || c.ahead != nil)
	handedOn = true
	return release, err
}

// brief is below what counts as having waited: the server's time-outs are not
// begun anew for a call that was not kept.
const brief = time.Millisecond

// refuse answers a request that was not admitted.
func (g *gate) refuse(c connection, w http.ResponseWriter, err error) {
	if gone, ok := err.(errGone); ok {
		g.journal.gone(c.request.Context(), gone.waited)
		c.refuse(w.Header())
		writeGone(w, c.request)
		return
	}
	if _, refusal := errors.AsType[*RejectError](err); !refusal && errors.Is(err, context.Canceled) {
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
	if g.rateLimitFields {
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
