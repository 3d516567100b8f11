package shaper

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/internal/httpfield"
	"example.com/leakybucket/shaper/internal/httpin"
	"example.com/leakybucket/shaper/shared"
)

// A MiddlewareOption changes how [Middleware] treats requests.
type MiddlewareOption interface{ applyMiddleware(*middlewareOptions) }

type middlewareOptions struct {
	cost         func(*http.Request) int
	costs        func(*http.Request) []int // at each level; nil: cost is for the first
	key          KeyFunc
	onError      func(http.ResponseWriter, *http.Request, error)
	retrySpread  time.Duration
	headers      Headers
	waitField    string
	reserve      bool
	verdictField string
	log          *refusalLog
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

func (o costOption) applyMiddleware(to *middlewareOptions) { to.cost, to.costs = o, nil }

// WithCost sets the function that returns the cost of a request; by default, or with nil, it is 1. A request of cost
// 0 passes untouched, such as a health check. Bound a cost that comes from the request: all behind it wait for cost
// / [Limits.Rate]. A negative cost is a mistake, which is answered with status 500.
func WithCost(cost func(*http.Request) int) MiddlewareOption { return costOption(cost) }

type costsOption func(*http.Request) []int

func (o costsOption) applyMiddleware(to *middlewareOptions) {
	if to.cost, to.costs = nil, o; o != nil {
		to.cost, to.reserve = func(r *http.Request) int { return largestOf(o(r)) }, true
	}
}

// largestOf returns the largest of costs at several levels; below 0 if one is.
func largestOf(costs []int) (largest int) {
	for _, n := range costs {
		if largest = max(largest, n); n < 0 {
			return n
		}
	}
	return largest
}

// WithCosts is [WithCost] for a [Shaper] [WithMeters]: the function returns the estimate of a request at each level, as
// for [Shaper.ReserveEach], and [WithReserve] comes with it. A request of costs that are all 0 passes untouched. The function may be
// called several times for a request, with the same result. Of WithCost and WithCosts the last one counts.
func WithCosts(costs func(*http.Request) []int) MiddlewareOption { return costsOption(costs) }

type keyOption KeyFunc

func (o keyOption) applyMiddleware(to *middlewareOptions) { to.key = KeyFunc(o) }

// WithKey makes [Middleware] let each request wait as its key, in front of a [Shaper] [WithFairQueue]. For any other
// [Limiter] Middleware panics, and so does [Group.Middleware]. If key returns an error, the request is answered with
// status 500. For a request of cost 0 it is not called. By default, or with nil, all requests have the key "".
func WithKey(key KeyFunc) MiddlewareOption { return keyOption(key) }

type errorHandlerOption func(http.ResponseWriter, *http.Request, error)

func (o errorHandlerOption) applyMiddleware(to *middlewareOptions) { to.onError = o }

// WithErrorHandler sets the function that answers requests which were not admitted; by default, or with nil,
// [WriteError]. It gets the [Limiter]'s error, or one of the middleware's own ([Reason], [AnswerTo]), when the
// middleware has set the connection's deadlines and its own header fields. It is not called for a client that has
// gone.
func WithErrorHandler(handle func(http.ResponseWriter, *http.Request, error)) MiddlewareOption {
	return errorHandlerOption(handle)
}

type retrySpreadOption time.Duration

func (o retrySpreadOption) applyMiddleware(to *middlewareOptions) {
	to.retrySpread = max(0, time.Duration(o))
}

// WithRetrySpread adds a random time from 0 to d, in whole seconds, to the Retry-After of each refusal, so that
// clients which were refused together do not come back together: once for a request, for [WriteError], [AnswerTo]
// and the RateLimit fields. The [RejectError] stays exact. The default is 0; less than a second adds nothing.
func WithRetrySpread(d time.Duration) MiddlewareOption { return retrySpreadOption(d) }

// WithWaitField names a header field by which a request says how long it is willing to be in line: in seconds ("2",
// "0.5") or as a duration of the text form of [Limits] ("1500ms"). That bounds its wait, in all lines of a [Chain]
// together, if [WithLineTimeout] does not sooner; with 0 it leaves at once, or is refused with [ErrTooLate]. A field
// that is missing, malformed, negative, or there twice counts as none, and Limiters that are not of this package
// ignore it. By default, or with "", no field is read.
func WithWaitField(name string) MiddlewareOption { return waitFieldOption(name) }

type waitFieldOption string

func (o waitFieldOption) applyMiddleware(to *middlewareOptions) { to.waitField = string(o) }

// untilField returns a context with the bound that a request states in its field.
//
// It is not inlined, so that it takes no stack of a request that waits.
//
//go:noinline
func (o *middlewareOptions) untilField(ctx context.Context, r *http.Request) context.Context {
	fields := r.Header.Values(o.waitField)
	if len(fields) != 1 {
		return ctx
	}
	d, ok := parseWait(fields[0])
	if !ok {
		return ctx
	}
	return &waitContext{Context: ctx, until: time.Now().Add(d)}
}

// parseWait returns the time that a text states, in seconds or with a unit.
func parseWait(text string) (d time.Duration, ok bool) {
	if len(text) > maxQuote {
		return 0, false
	}
	if strings.Trim(text, numeric) == "" {
		text += "s"
	}
	s := scanner{text: text}
	d = min(s.duration(word{text, 0}), horizon)
	return d, s.mistake == nil
}

type loggerOption struct{ log *refusalLog }

func (o loggerOption) applyMiddleware(to *middlewareOptions) { to.log = o.log }

// WithLogger logs refusals, at level Warn, at most one line a second with their number, and clients that have gone,
// at level Debug. Nothing of the request is logged, unless the error of another Limiter, of the key function or of
// the limits function contains it. Middlewares that are given the same option share the line. By default, or with
// nil, nothing is logged.
func WithLogger(log *slog.Logger) MiddlewareOption { return loggerOption{newRefusalLog(log)} }

type verdictFieldOption string

func (o verdictFieldOption) applyMiddleware(to *middlewareOptions) { to.verdictField = string(o) }

// WithVerdictHeader adds a header field of that name to each answer, with [Verdict.String] of a dry run; of several
// the harshest. Without a dry run there is no field, nor by default, nor with "".
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
		slog.Int("status", responseTo(err).Status),
		slog.String("error", reasonOf(err)),
		slog.Int64("refused", count),
	}
	if rejected, ok := errors.AsType[*RejectError](err); ok && rejected.RetryAfter > 0 {
		attrs = append(attrs, slog.Duration("retry_after", rejected.RetryAfter))
	}
	l.log.LogAttrs(ctx, slog.LevelWarn, "shaper: refused", attrs...)
}

// reasonOf returns the text of an error, without parts that may have come from the
// request: the error of a body names the client's address, and an error that wraps a
// refusal may name a key.
func reasonOf(err error) string {
	if rejected, ok := errors.AsType[*RejectError](err); ok {
		return rejected.why()
	}
	if errors.Is(err, ErrBody) {
		return ErrBody.Error()
	}
	return err.Error()
}

// logGone logs that a client has gone while its request waited.
func (l *refusalLog) logGone(ctx context.Context, waited time.Duration) {
	if l != nil {
		l.log.LogAttrs(ctx, slog.LevelDebug, "shaper: client gone", slog.Duration("waited", waited))
	}
}

// WriteError answers a request that a [Limiter] did not admit with err:
//
//   - 429 with Retry-After if the line is full or the request would leave too late; without it if the request can
//     never fit.
//   - 503 with Retry-After if the [Shaper] is closed, if its [shared.Bucket] can't be asked, if the deadline of
//     an outer handler has passed, and for errors of other Limiters.
//   - 408 for [ErrBody]; 500 if the cost is negative, or a key function or limits function has failed.
//   - 499 without a body, and the end of the connection, for [context.Canceled]: the client has gone.
//
// Retry-After is the RetryAfter of the [RejectError] in whole seconds, rounded up, at least 1; for other errors it
// is 1. The body is a short problem+json (RFC 9457) that repeats nothing of the request or of err. No cache stores
// it.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	responseTo(err).Later(spreadOf(r.Context())).Write(w, r)
}

// An Answer is the response that [WriteError] writes.
type Answer struct {
	Status     int
	Title      string        // the words of the status; empty for 499, which has no body
	Detail     string        // a sentence for people; empty for 499
	RetryAfter time.Duration // whole seconds, rounded up, at least one; 0: there is no such field, as trying again does not help
}

// AnswerTo returns the [Answer] to an error of [Middleware] or of a Limiter, for a program that writes it in a form
// of its own.
func AnswerTo(r *http.Request, err error) Answer {
	a := responseTo(err).Later(spreadOf(r.Context()))
	return Answer{a.Status, http.StatusText(a.Status), a.Detail, time.Duration(a.RetryAfter) * time.Second}
}

// spreadKey is the key of the random part of the Retry-After of a request, in seconds, in its context.
type spreadKey struct{}

// spreadOf returns that part.
func spreadOf(ctx context.Context) int64 {
	n, _ := ctx.Value(spreadKey{}).(int64)
	return n
}

// All problems that there are.
var (
	problemGone        = &httpin.Problem{Status: httpin.StatusClientGone}
	problemOwnFault    = httpin.NewProblem(http.StatusInternalServerError, "The server could not tell the limits of the request.")
	problemQueueFull   = httpin.NewProblem(http.StatusTooManyRequests, "Too many requests are waiting already.")
	problemNoLine      = httpin.NewProblem(http.StatusTooManyRequests, "More requests have come than the limit allows.")
	problemBlocked     = httpin.NewProblem(http.StatusTooManyRequests, "Requests are refused for a time, because too many have come.")
	problemTooLate     = httpin.NewProblem(http.StatusTooManyRequests, "The request would have to wait too long.")
	problemWaited      = httpin.NewProblem(http.StatusTooManyRequests, "The request has waited too long.")
	problemTooCostly   = httpin.NewProblem(http.StatusTooManyRequests, "The request costs more than can ever fit. Trying again does not help.")
	problemUnavailable = httpin.NewProblem(http.StatusServiceUnavailable, "The server can't tell now whether the request may be served.")
	problemClosed      = httpin.NewProblem(http.StatusServiceUnavailable, "The server takes no more requests.")
	problemBody        = httpin.NewProblem(http.StatusRequestTimeout, "The body of the request did not come.")
	problemCost        = httpin.NewProblem(http.StatusInternalServerError, "The server could not tell what the request costs.")
	problemDeadline    = httpin.NewProblem(http.StatusServiceUnavailable, "The time for the request ran out while it waited.")
	problemOther       = httpin.NewProblem(http.StatusServiceUnavailable, "The request could not be admitted.")
)

// problems has the problem for each [Reason]; problemOther is for any other.
var problems = map[string]*httpin.Problem{
	"no-key": problemOwnFault, "no-limits": problemOwnFault, "negative-cost": problemCost,
	"blocked": problemBlocked, "no-line": problemNoLine, "queue-full": problemQueueFull, "too-late": problemTooLate,
	"too-costly": problemTooCostly, "unavailable": problemUnavailable, "closed": problemClosed,
	"no-body": problemBody, "gone": problemGone, "deadline": problemDeadline,
}

// responseTo returns the response to an error.
func responseTo(err error) httpin.Response {
	retryAfter := int64(1)
	if refusal, ok := errors.AsType[*RejectError](err); ok {
		retryAfter = httpfield.Seconds(refusal.RetryAfter)
		if err == error(refusal) && refusal.Reason == ErrQueueFull {
			return httpin.Response{Problem: problemFull(refusal.also), RetryAfter: retryAfter} // Most refusals are spared the rest.
		}
	}
	problem := problems[Reason(err)]
	switch problem {
	case nil:
		problem = problemOther
	case problemTooLate:
		if errors.Is(err, errWaitedTooLong) {
			problem = problemWaited
		}
	case problemOwnFault, problemCost, problemTooCostly, problemBody, problemGone:
		retryAfter = 0 // Trying again does not help.
	}
	return httpin.Response{Problem: problem, RetryAfter: retryAfter}
}

// problemFull returns the problem of an [ErrQueueFull] that is also something else.
func problemFull(also *alsoError) *httpin.Problem {
	switch also {
	case withoutLine:
		return problemNoLine
	case byBlock:
		return problemBlocked
	}
	return problemQueueFull
}

// Headers are header fields that a [Middleware] adds to all answers: to requests that were admitted
// and to those that were refused.
type Headers uint8

const (
	// HeaderRateLimit has what is left of the limit, as in draft-ietf-httpapi-ratelimit-headers-11:
	//
	//	RateLimit-Policy: "name";q=Burst+Depth;w=q/Rate
	//	RateLimit: "name";r=free;t=seconds
	//
	// q is how many requests an empty bucket admits at once, and w the time in which they drain. r is how many it would admit
	// now, as if each cost 1: the free units, floor(Burst − level), and the places that are free in the line. While the line is
	// held no units are free, with a cap at most as many as seats, and while the bucket is blocked or closed r is 0. In a refusal
	// t is the Retry-After of [WriteError], otherwise the time until the level is 0; times are whole seconds, rounded up.
	//
	// A client that obeys the fields slows down more than it has to: at 10/s with a Burst of 2 the second request is answered
	// with r=0;t=1. Add them for clients that spread their requests over t, or that show the numbers to people.
	//
	// The name comes from [WithName], or is "default". There are none at [rate.Inf], for requests of cost 0, with status 500, for
	// a [Limiter] without a method Stats() Stats, and in a [Group] for a key that shares a bucket.
	HeaderRateLimit Headers = 1 << iota

	// HeaderXRateLimit has the same numbers in X-RateLimit-Limit (q), -Remaining (r) and -Reset (the time at which t is over, in
	// seconds since 1970), as the API of GitHub has them. Of several middlewares the one of which the least remains counts.
	HeaderXRateLimit

	// HeaderServerTiming has the time that the request waited, in milliseconds (W3C Server Timing): Server-Timing:
	// shaper;dur=12.345. Browsers' developer tools show it.
	HeaderServerTiming

	limitHeaders = HeaderRateLimit | HeaderXRateLimit
)

type headersOption Headers

func (o headersOption) applyMiddleware(to *middlewareOptions) { to.headers |= Headers(o) }

// WithHeaders adds header fields to all answers; several add up. By default there are none: what is left of a limit
// shows an attacker how much load uses it up.
func WithHeaders(h Headers) MiddlewareOption { return headersOption(h) }

// addTo adds the fields of the limit for a request that l admitted, or refused with err, for which the
// response is a.
func (o Headers) addTo(h http.Header, l inner, err error, a httpin.Response) {
	fields, ok := rateLimitOf(l, err, a)
	if !ok {
		return
	}
	if o&HeaderRateLimit != 0 {
		fields.AddTo(h)
	}
	if o&HeaderXRateLimit != 0 {
		fields.SetX(h, time.Now())
	}
}

// rateLimitOf returns the numbers of the fields. ok reports whether there are any.
func rateLimitOf(l inner, err error, a httpin.Response) (fields httpfield.RateLimit, ok bool) {
	st, ok := l.stats()
	if !ok {
		return fields, false
	}
	perSecond := st.Limits.Rate
	if !(perSecond > 0) || perSecond == rate.Inf { // NaN is not above 0.
		return fields, false
	}
	burst, depth := st.Limits.burst(), int64(st.Limits.Depth)
	quota := exact.Sum(burst, depth)

	var free int64
	if !errors.Is(err, ErrClosed) && st.Bucket.State != shared.StateDown {
		units := max(0, min(math.Floor(float64(burst)-st.Level), httpfield.MaxInteger))
		switch {
		case !st.HeldUntil.IsZero():
			units = 0
		case st.Limits.InFlight > 0 && !st.DryRun: // No request of a shadow has a seat.
			units = min(units, float64(max(0, st.Limits.InFlight-st.InFlight)))
		}
		if st.Bucket.State == shared.StateLocal || st.Bucket.SeatsTarget > 0 { // The burst is a part of Limits.Burst, or there are seats.
			units = min(units, float64(st.Free))
		}
		free = exact.Sum(int64(units), max(0, depth-int64(st.Waiting)))
	}
	reset := drainSeconds(st.Level, perSecond)
	if !st.BlockedUntil.IsZero() {
		free, reset = 0, max(reset, int64(math.Ceil(time.Until(st.BlockedUntil).Seconds())))
	}
	if a.RetryAfter > 0 {
		reset = a.RetryAfter // A client must not come too early, whichever field it obeys.
	}
	return httpfield.RateLimit{
		Name:      st.Name,
		Quota:     quota,
		Window:    drainSeconds(float64(quota), perSecond),
		Remaining: free,
		Reset:     reset,
	}, true
}

// drainSeconds returns how long so many units take to leak, in whole seconds,
// rounded up. As in the schedule, the rate counts to one part in 2⁵⁰: 21 units at
// 0.7/s take 30 seconds and not 31.
func drainSeconds(units float64, perSecond rate.Limit) int64 {
	seconds := math.Ceil(units / float64(perSecond) * (1 - 0x1p-50))
	return int64(min(seconds, httpfield.MaxInteger))
}
