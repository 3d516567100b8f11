package shaper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/internal/httpfield"
	"example.com/leakybucket/shaper/internal/serverconn"
)

// statusClientGone is the status that access logs get for a client that has
// gone: nginx's 499, for which net/http has no name.
const statusClientGone = 499

// WriteError answers a request that a [Limiter] did not admit with err:
//
//   - 429 with Retry-After if the line is full or the request would leave too
//     late; without it if the request can never fit, which the body then says.
//   - 503 with Retry-After if the [Shaper] is closed, if its shared [Bucket] can't be
//     asked, if the deadline of an outer handler has passed, and for errors of other
//     Limiters.
//   - 408 if the body could not be read although the client is there.
//   - 500 if the cost is negative, or if the key function or the limits function of a
//     [Group] returned an error.
//   - 499 without a body, and the end of the connection, if err is
//     [context.Canceled]: the client has gone.
//
// Retry-After is that of the [RejectError] in whole seconds, rounded up, at least 1;
// for other errors it is 1. The body is a short problem+json (RFC 9457) that repeats
// nothing of the request or of err. "Cache-Control: no-store" keeps it out of caches.
//
// WriteError is the default of [WithErrorHandler]. It may also be called from such a
// handler, or after a [Shaper.WaitN] of your own.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	responseTo(err).write(w, r)
}

// write sends the response.
func (a response) write(w http.ResponseWriter, r *http.Request) {
	if a.status == statusClientGone {
		writeGone(w, r)
		return
	}
	h := w.Header()
	dropStale(h)
	// The fields are set as [http.Header.Set] would set them, but their values are in one
	// array, because a slice for each would be three quarters of all allocations.
	values := [...]string{"no-store", "application/problem+json", "nosniff", ""}
	h["Cache-Control"] = values[0:1:1]
	h["Content-Type"] = values[1:2:2]
	h["X-Content-Type-Options"] = values[2:3:3]
	if a.retryAfter > 0 {
		httpfield.SetRetryAfter(h, a.retryAfter, values[3:])
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // An error means that the client has gone: there is nothing left to do.
}

// writeGone ends the request of a client that has gone.
func writeGone(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	dropStale(h)
	// In HTTP/2 the field would end the connection with all its other requests.
	// There it is not needed, because a client that has gone has reset its stream.
	if r.ProtoMajor < 2 {
		h.Set("Connection", "close")
	}
	w.WriteHeader(statusClientGone)
}

// dropStale removes what an outer handler may have set for the body of another
// response. Content-Encoding stays, as in [http.Error]: an outer handler that
// compresses what is written sets it before (golang/go#66343).
func dropStale(h http.Header) {
	for _, field := range [...]string{"Content-Length", "Etag", "Last-Modified"} {
		delete(h, field)
	}
}

// A response is the answer to a request that was not admitted.
type response struct {
	*problem
	retryAfter int64 // in seconds; 0: trying again does not help
}

// A problem is what a response says is wrong. newProblem makes one.
type problem struct {
	status int
	body   []byte // nil: none
}

// newProblem returns a problem whose body is made once, as most refusals say the same.
func newProblem(status int, detail string) *problem {
	// The texts are our own, in ASCII, so %q quotes them as JSON does.
	body := fmt.Appendf(nil, `{"title":%q,"status":%d,"detail":%q}`+"\n", http.StatusText(status), status, detail)
	// A ResponseWriter may append to what it is given. Without room behind it, that is a copy.
	return &problem{status, slices.Clip(body)}
}

// All problems that there are.
var (
	problemGone        = &problem{status: statusClientGone}
	problemOwnFault    = newProblem(http.StatusInternalServerError, "The server could not tell the limits of the request.")
	problemQueueFull   = newProblem(http.StatusTooManyRequests, "Too many requests are waiting already.")
	problemNoLine      = newProblem(http.StatusTooManyRequests, "More requests have come than the limit allows.")
	problemBlocked     = newProblem(http.StatusTooManyRequests, "Requests are refused for a time, because too many have come.")
	problemTooLate     = newProblem(http.StatusTooManyRequests, "The request would have to wait too long.")
	problemTooCostly   = newProblem(http.StatusTooManyRequests, "The request costs more than can ever fit. Trying again does not help.")
	problemUnavailable = newProblem(http.StatusServiceUnavailable, "The server can't tell now whether the request may be served.")
	problemClosed      = newProblem(http.StatusServiceUnavailable, "The server takes no more requests.")
	problemBody        = newProblem(http.StatusRequestTimeout, "The body of the request did not come.")
	problemCost        = newProblem(http.StatusInternalServerError, "The server could not tell what the request costs.")
	problemDeadline    = newProblem(http.StatusServiceUnavailable, "The time for the request ran out while it waited.")
	problemOther       = newProblem(http.StatusServiceUnavailable, "The request could not be admitted.")
)

// responseTo returns the response to an error. It looks for refusals first, because a
// refusal of a request that would have missed its context's deadline is
// [context.DeadlineExceeded] too.
func responseTo(err error) response {
	retryAfter := int64(1)
	if refusal, ok := errors.AsType[*RejectError](err); ok {
		retryAfter = httpfield.Seconds(refusal.RetryAfter)
		if err == error(refusal) && refusal.Reason == ErrQueueFull {
			return response{problemFull(refusal.also), retryAfter} // Most refusals are spared the rest.
		}
	}
	switch {
	case isOwnFault(err):
		return response{problemOwnFault, 0}
	case errors.Is(err, ErrBlocked):
		return response{problemBlocked, retryAfter}
	case errors.Is(err, ErrNoLine):
		return response{problemNoLine, retryAfter}
	case errors.Is(err, ErrQueueFull):
		return response{problemQueueFull, retryAfter}
	case errors.Is(err, ErrTooLate):
		return response{problemTooLate, retryAfter}
	case errors.Is(err, ErrTooCostly):
		return response{problemTooCostly, 0}
	case errors.Is(err, ErrUnavailable):
		return response{problemUnavailable, retryAfter}
	case errors.Is(err, ErrClosed):
		return response{problemClosed, retryAfter}
	case errors.Is(err, serverconn.ErrBody):
		return response{problemBody, 0}
	case errors.Is(err, ErrNegativeCost):
		return response{problemCost, 0}
	case errors.Is(err, context.Canceled):
		return response{problemGone, 0}
	case errors.Is(err, context.DeadlineExceeded):
		return response{problemDeadline, retryAfter}
	default:
		return response{problemOther, retryAfter}
	}
}

// problemFull returns the problem of an [ErrQueueFull] that is also something else.
func problemFull(also *alsoError) *problem {
	switch also {
	case withoutLine:
		return problemNoLine
	case byBlock:
		return problemBlocked
	}
	return problemQueueFull
}

// later returns the response with a random number of whole seconds, from 0 to spread
// and each equally likely, added to its Retry-After.
func (a response) later(spread time.Duration) response {
	if a.retryAfter > 0 {
		a.retryAfter += rand.Int64N(int64(spread/time.Second) + 1)
	}
	return a
}

type rateLimitFieldsOption struct{}

func (rateLimitFieldsOption) applyMiddleware(to *middlewareOptions) { to.rateLimitFields = true }

// WithRateLimitHeaders adds the header fields of
// draft-ietf-httpapi-ratelimit-headers-11 to all answers: to requests that were
// admitted and to those that were refused. It is off by default, because the fields
// show an attacker how much load uses up the limit.
//
//	RateLimit-Policy: "name";q=Burst+Depth;w=q/Rate
//	RateLimit: "name";r=free;t=seconds
//
// Here q is how many requests an empty bucket admits at once: [Limits.Burst] of them leave
// and [Limits.Depth] wait. w is the time in which q of them drain. r is how many requests the
// bucket would admit now: the free units, floor(Burst − level), plus the places that
// are free in the line, Depth − waiting, neither below 0. After [ErrClosed] r is 0.
// While the line is held no units are free, and while the bucket is blocked ([WithBlock])
// r is 0. With [Limits.InFlight], which q does not
// include, at most as many units are free as seats. Units and places are added as if
// each request cost 1. In a refusal t is the Retry-After of [WriteError] if there is
// one; otherwise t is the time until the level is 0. Times are whole seconds, rounded
// up. The numbers come from [Shaper.Stats] just after the decision.
//
// A client that obeys the fields slows down before it is refused, and more than it
// has to. Times are whole seconds, so at 10/s with a Burst of 2 the second request
// is answered with r=0;t=1, and a client that then waits for t lets most of its
// slots pass. By default a [Transport] therefore holds back only after refusals. Set
// the option for clients that spread their requests over t, or that show the numbers
// to people. Others are served better by the line and by Retry-After.
//
// The name is that of [WithName], or "default"; characters other than printable
// ASCII become '?'. There are no fields at [rate.Inf], for requests of cost 0, with
// status 500 (the server's mistake), for a [Limiter] without a method Stats() Stats,
// and in a [Group] for a key that shares a bucket. If several middlewares stand around
// a handler, each adds its own fields to those that are there.
func WithRateLimitHeaders() MiddlewareOption { return rateLimitFieldsOption{} }

// addRateLimitFields adds both fields for a request that l admitted, or refused with
// err, for which the response is a.
func addRateLimitFields(h http.Header, l inner, err error, a response) {
	st, ok := l.stats()
	if !ok {
		return
	}
	perSecond := st.Limits.Rate
	if !(perSecond > 0) || perSecond == rate.Inf { // NaN is not above 0.
		return
	}
	burst, depth := st.Limits.burst(), int64(st.Limits.Depth)
	quota := exact.Sum(burst, depth)

	var free int64
	if !errors.Is(err, ErrClosed) {
		units := max(0, min(math.Floor(float64(burst)-st.Level), httpfield.MaxInteger))
		switch {
		case !st.HeldUntil.IsZero():
			units = 0
		case st.Limits.InFlight > 0:
			units = min(units, float64(max(0, st.Limits.InFlight-st.InFlight)))
		}
		free = exact.Sum(int64(units), max(0, depth-int64(st.Waiting)))
	}
	reset := drainSeconds(st.Level, perSecond)
	if !st.BlockedUntil.IsZero() {
		free, reset = 0, max(reset, int64(math.Ceil(time.Until(st.BlockedUntil).Seconds())))
	}
	if a.retryAfter > 0 {
		reset = a.retryAfter // A client must not come too early, whichever field it obeys.
	}
	httpfield.RateLimit{
		Name:      st.Name,
		Quota:     quota,
		Window:    drainSeconds(float64(quota), perSecond),
		Remaining: free,
		Reset:     reset,
	}.AddTo(h)
}

// drainSeconds returns how long so many units take to leak, in whole seconds,
// rounded up. As in the schedule, the rate counts to one part in 2⁵⁰: 21 units at
// 0.7/s take 30 seconds and not 31.
func drainSeconds(units float64, perSecond rate.Limit) int64 {
	seconds := math.Ceil(units / float64(perSecond) * (1 - 0x1p-50))
	return int64(min(seconds, httpfield.MaxInteger))
}
