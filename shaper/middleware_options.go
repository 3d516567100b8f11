package shaper

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper/internal/serverconn"
)

// A MiddlewareOption changes how [Middleware] treats requests.
type MiddlewareOption interface{ applyMiddleware(*middlewareOptions) }

type middlewareOptions struct {
	cost            func(*http.Request) int
	onError         func(http.ResponseWriter, *http.Request, error)
	retrySpread     time.Duration
	rateLimitFields bool
	serverTiming    bool
	verdictField    string
	log             *refusalLog
}

func newMiddlewareOptions(opts []MiddlewareOption) (o middlewareOptions) {
	for _, opt := range opts {
		if opt != nil {
			opt.applyMiddleware(&o)
		}
	}
	if o.cost == nil {
		o.cost = func(*http.Request) int { return 1 }
	}
	return o
}

type costOption func(*http.Request) int

func (o costOption) applyMiddleware(to *middlewareOptions) { to.cost = o }

// WithCost sets the function that returns what a request costs. By default, or with
// nil, a request costs 1.
//
// A request of cost 0 passes untouched; give this cost to health checks. If the cost
// comes from the request, bound it: all requests behind it wait for cost / [Limits.Rate]. A
// negative cost is a mistake, which is answered with status 500.
func WithCost(cost func(*http.Request) int) MiddlewareOption { return costOption(cost) }

type errorHandlerOption func(http.ResponseWriter, *http.Request, error)

func (o errorHandlerOption) applyMiddleware(to *middlewareOptions) { to.onError = o }

// WithErrorHandler sets the function that answers requests which were not
// admitted. By default, or with nil, it is [WriteError].
//
// The function gets the [Limiter]'s error, in which [errors.As] finds the [RejectError]
// of a [Shaper]; or [ErrNegativeCost]; or an error of the middleware's own, for which
// [WriteError] knows the status. It is not called for a client that has gone. When it
// is called, the middleware has already set the deadlines of the connection and its
// own header fields ([WithRateLimitHeaders], "Connection: close").
func WithErrorHandler(handle func(http.ResponseWriter, *http.Request, error)) MiddlewareOption {
	return errorHandlerOption(handle)
}

type retrySpreadOption time.Duration

func (o retrySpreadOption) applyMiddleware(to *middlewareOptions) {
	to.retrySpread = max(0, time.Duration(o))
}

// WithRetrySpread adds a random time from 0 to d, in whole seconds, to the
// Retry-After of each refusal, so that clients which were refused together do not
// come back together. The RateLimit field has the same time. The [RejectError] stays
// exact: a function of [WithErrorHandler] must spread the times itself. The default is
// 0; less than a second adds nothing.
func WithRetrySpread(d time.Duration) MiddlewareOption { return retrySpreadOption(d) }

type serverTimingOption struct{}

func (serverTimingOption) applyMiddleware(to *middlewareOptions) { to.serverTiming = true }

// WithServerTiming adds a header field with the time that the request waited, in
// milliseconds, to each answer. Browsers' developer tools show it (W3C Server Timing):
//
//	Server-Timing: shaper;dur=12.345
func WithServerTiming() MiddlewareOption { return serverTimingOption{} }

type loggerOption struct{ log *slog.Logger }

func (o loggerOption) applyMiddleware(to *middlewareOptions) { to.log = newRefusalLog(o.log) }

// WithLogger logs refusals, at level Warn, and clients that have gone, at level Debug.
// There is at most one line about refusals a second, with the number of refusals since
// the line before. Nothing of the request is logged, except what the errors of other
// Limiters, of the key function or of the limits function contain. By default, or
// with a nil logger, nothing is logged.
func WithLogger(log *slog.Logger) MiddlewareOption { return loggerOption{log} }

type verdictFieldOption string

func (o verdictFieldOption) applyMiddleware(to *middlewareOptions) { to.verdictField = string(o) }

// WithVerdictHeader adds a header field of that name to each answer. Its value is the
// [Verdict] of a dry run, as [Verdict.String] writes it; of several dry runs, the
// harshest Verdict. Without a dry run there is no field, nor by default, nor with "".
// The handler behind the middleware finds the Verdict by [VerdictOf] in any case.
func WithVerdictHeader(name string) MiddlewareOption { return verdictFieldOption(name) }

// A refusalLog is the log of a [Middleware]. A nil refusalLog logs nothing.
type refusalLog struct {
	log        *slog.Logger
	sometimes  rate.Sometimes
	suppressed atomic.Int64 // refusals since the last line that were not logged
}

func newRefusalLog(log *slog.Logger) *refusalLog {
	if log == nil {
		return nil
	}
	return &refusalLog{log: log, sometimes: rate.Sometimes{Interval: time.Second}}
}

// logRefusal logs a refusal, at most one a second: an overload brings many refusals, and
// one line a second says as much as a line for each.
func (l *refusalLog) logRefusal(ctx context.Context, err error) {
	if l == nil {
		return
	}
	l.suppressed.Add(1)
	var count int64
	l.sometimes.Do(func() { count = l.suppressed.Swap(0) })
	if count == 0 {
		return
	}
	// The line is written after Do has returned, because Do runs one call at a time:
	// within it, a slow log would delay all refusals.
	attrs := []slog.Attr{
		slog.Int("status", responseTo(err).status),
		slog.String("error", reasonOf(err)),
		slog.Int64("refused", count),
	}
	if rejected, ok := errors.AsType[*RejectError](err); ok && rejected.RetryAfter > 0 {
		attrs = append(attrs, slog.Duration("retry_after", rejected.RetryAfter))
	}
	l.log.LogAttrs(ctx, slog.LevelWarn, "shaper: refused", attrs...)
}

// reasonOf returns the text of an error, without what may have come from the request:
// the error of a body names the client's address, and an error that wraps a refusal
// may name a key.
func reasonOf(err error) string {
	if rejected, ok := errors.AsType[*RejectError](err); ok {
		return rejected.why()
	}
	if errors.Is(err, serverconn.ErrBody) {
		return serverconn.ErrBody.Error()
	}
	return err.Error()
}

// logGone logs that a client has gone while its request waited.
func (l *refusalLog) logGone(ctx context.Context, waited time.Duration) {
	if l != nil {
		l.log.LogAttrs(ctx, slog.LevelDebug, "shaper: client gone", slog.Duration("waited", waited))
	}
}
