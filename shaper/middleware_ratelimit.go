package shaper

import (
	"errors"
	"math"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/internal/httpfield"
)

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
