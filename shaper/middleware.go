package shaper

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// statusClientGone is the status that access logs get for a client that has
// gone: nginx's 499, for which net/http has no name.
const statusClientGone = 499

// Middleware returns net/http middleware that lets each request wait for l
// before its handler runs: it delays instead of rejecting. What l does not
// admit is answered by WriteError, or by the handler of WithErrorHandler.
//
// A request costs 1 unless WithCost says otherwise; one of cost 0 passes
// untouched, without asking l. The ResponseWriter is handed on as it is, so
// flushing, hijacking and http.ResponseController work, and l is not held
// while the handler runs. Panics of the handler pass through.
//
// For a client that has gone while it waited no handler runs. Its request ends
// with status 499 without a body, which access logs see, and with
// "Connection: close", so that a client which closed only its sending half
// does not take net/http's empty 200 for success.
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
	if o.onError == nil {
		o.onError = WriteError
	}
	return func(next http.Handler) http.Handler {
		return &gate{limiter: l, next: next, middlewareOptions: o}
	}
}

// A MiddlewareOption changes how Middleware treats requests.
type MiddlewareOption interface{ applyMiddleware(*middlewareOptions) }

type middlewareOptions struct {
	cost            func(*http.Request) int
	onError         func(http.ResponseWriter, *http.Request, error)
	rateLimitFields bool
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
// Shaper, or ErrNegativeCost. It is not called for a client that has gone. The
// header fields that the middleware sets itself (WithRateLimitHeaders) are
// there already.
func WithErrorHandler(handle func(http.ResponseWriter, *http.Request, error)) MiddlewareOption {
	return errorHandlerOption(handle)
}

// gate is the http.Handler that Middleware puts in front of another.
type gate struct {
	limiter Limiter
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
	ctx := r.Context()
	// A negative cost is not left to the Limiter: it makes some of them, x/time's
	// among them, fuller instead of emptier.
	err := ErrNegativeCost
	if n > 0 {
		err = g.limiter.WaitN(ctx, n)
	}
	if err != nil {
		g.refuse(ctx, w, r, err)
		return
	}
	if g.rateLimitFields {
		addRateLimitFields(w.Header(), g.limiter, nil)
	}
	g.next.ServeHTTP(w, r)
}

// refuse answers a request that was not admitted; ctx is what it waited with.
func (g *gate) refuse(ctx context.Context, w http.ResponseWriter, r *http.Request, err error) {
	if clientGone(ctx, err) {
		writeGone(w, r)
		return
	}
	if errors.Is(err, context.Canceled) {
		// Something in the Limiter was cancelled, but not this request. The
		// error handler takes context.Canceled for a departed client, whom it
		// owes no answer; this one waits for his.
		err = fmt.Errorf("shaper: limiter gave up on a request that is still there: %v", err)
	}
	if g.rateLimitFields {
		addRateLimitFields(w.Header(), g.limiter, err)
	}
	g.onError(w, r, err)
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

// WriteError answers a request that a Limiter did not admit with err:
//
//   - 429 with Retry-After if the line is full or the request would leave too
//     late; without it if the request can never fit, which the body then says.
//   - 503 with Retry-After if the Shaper is closed, if the deadline of an outer
//     time-out has passed, and for errors of other Limiters.
//   - 500 if the cost is negative.
//   - 499 without a body, and the end of the connection, if err is
//     context.Canceled: the client has gone.
//
// Retry-After is that of the *RejectError in whole seconds, rounded up, at
// least 1; where there is none, it is 1. The body is a short problem+json (RFC
// 9457) that echoes nothing of the request and nothing of err. The answer is
// not to be stored by caches.
//
// It is the default of WithErrorHandler, and may be called from such a handler
// or after a WaitN of one's own.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	a := answerTo(err)
	if a.status == statusClientGone {
		writeGone(w, r)
		return
	}
	h := w.Header()
	dropStale(h)
	if a.retryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(a.retryAfter, 10))
	}
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "application/problem+json")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(a.status)
	// The texts are our own, in ASCII, so %q quotes them as JSON does. An error
	// of the write means that the client has gone; there is nobody to tell.
	fmt.Fprintf(w, `{"title":%q,"status":%d,"detail":%q}`+"\n", http.StatusText(a.status), a.status, a.detail)
}

// writeGone ends the request of a client that has gone.
func writeGone(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	dropStale(h)
	// In HTTP/2 the field would end the connection with all its other requests,
	// and a reset stream can't be mistaken for an empty 200.
	if r.ProtoMajor < 2 {
		h.Set("Connection", "close")
	}
	w.WriteHeader(statusClientGone)
}

// dropStale removes what an outer handler may have said of another answer's
// body. Content-Encoding stays, as in http.Error: an outer handler which
// compresses what is written says so before (golang/go#66343).
func dropStale(h http.Header) {
	for _, field := range [...]string{"Content-Length", "Etag", "Last-Modified"} {
		h.Del(field)
	}
}

// answer is what a request gets that was not admitted.
type answer struct {
	status     int
	retryAfter int64 // in seconds; 0: trying again does not help
	detail     string
}

// answerTo is the table of answers. It looks for refusals first: one that
// would have missed its context's deadline is context.DeadlineExceeded too.
func answerTo(err error) answer {
	retryAfter := int64(1)
	if refusal, ok := errors.AsType[*RejectError](err); ok {
		retryAfter = wholeSeconds(refusal.RetryAfter)
	}
	switch {
	case errors.Is(err, ErrQueueFull):
		return answer{http.StatusTooManyRequests, retryAfter, "Too many requests are waiting already."}
	case errors.Is(err, ErrTooLate):
		return answer{http.StatusTooManyRequests, retryAfter, "The request would have to wait too long."}
	case errors.Is(err, ErrTooCostly):
		return answer{http.StatusTooManyRequests, 0, "The request costs more than can ever fit. Trying again does not help."}
	case errors.Is(err, ErrClosed):
		return answer{http.StatusServiceUnavailable, retryAfter, "The server takes no more requests."}
	case errors.Is(err, ErrNegativeCost):
		return answer{http.StatusInternalServerError, 0, "The server could not tell what the request costs."}
	case errors.Is(err, context.Canceled):
		return answer{status: statusClientGone}
	case errors.Is(err, context.DeadlineExceeded):
		return answer{http.StatusServiceUnavailable, retryAfter, "The time for the request ran out while it waited."}
	default:
		return answer{http.StatusServiceUnavailable, retryAfter, "The request could not be admitted."}
	}
}

// wholeSeconds is d as Retry-After has it: rounded up, so that nobody comes
// back too early, and at least 1.
func wholeSeconds(d time.Duration) int64 {
	seconds := int64(d / time.Second)
	if d%time.Second > 0 {
		seconds++
	}
	return max(seconds, 1)
}
