package shaper

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper/internal/exact"
)

type rateLimitFieldsOption struct{}

func (rateLimitFieldsOption) applyMiddleware(to *middlewareOptions) { to.rateLimitFields = true }

// WithRateLimitHeaders tells clients the capacity, in the header fields of
// draft-ietf-httpapi-ratelimit-headers-11, on admitted answers as on refused
// ones. It is off by default: strangers learn from it how much load is enough.
//
//	RateLimit-Policy: "name";q=Burst+Depth;w=q/Rate
//	RateLimit: "name";r=free;t=seconds
//
// From an empty bucket q requests are admitted at once (Burst leave, Depth
// wait), and w is the time in which as many drain. The free ones of them are r:
// the units up to Burst, floor(Burst − level), and the places in the line,
// Depth − waiting, neither below 0; after ErrClosed r is 0. While the line is held
// no units are free, and with Limits.InFlight, of which q knows nothing, no more
// than there are requests to the cap. Units and places
// are added as if each request cost 1. In a refusal t is the Retry-After of
// WriteError if it gives one, else t is the time until the level is 0. Times
// are whole seconds, rounded up. The numbers come from Stats just after the
// decision.
//
// The name is that of WithName, or "default"; characters other than printable
// ASCII become '?'. There are no fields at rate.Inf, nor for requests of cost
// 0, nor from a Limiter without a method Stats() Stats, nor in a Group for a key that
// shares a bucket. The fields are added to
// those that are there: several middlewares around a handler each tell theirs.
func WithRateLimitHeaders() MiddlewareOption { return rateLimitFieldsOption{} }

// addRateLimitFields adds both fields for a request that l admitted, or did
// not admit with err, for which it gets a.
func addRateLimitFields(h http.Header, l Limiter, err error, a answer) {
	var st Stats
	switch l := l.(type) {
	case interface{ peek() (Stats, bool) }: // It need not ask for the Limits of a key.
		var ok bool
		if st, ok = l.peek(); !ok {
			return
		}
	case interface{ Stats() Stats }:
		st = l.Stats()
	default:
		return
	}
	perSecond := st.Limits.Rate
	if !(perSecond > 0) || perSecond == rate.Inf { // NaN is not above 0.
		return
	}
	name := quoteName(st.Name)
	burst, depth := st.Limits.burst(), int64(st.Limits.Depth)
	quota := exact.Sum(burst, depth)

	var free int64
	if !errors.Is(err, ErrClosed) {
		units := max(0, min(math.Floor(float64(burst)-st.Level), maxFieldInteger))
		switch {
		case !st.HeldUntil.IsZero():
			units = 0
		case st.Limits.InFlight > 0:
			units = min(units, float64(max(0, st.Limits.InFlight-st.InFlight)))
		}
		free = exact.Sum(int64(units), max(0, depth-int64(st.Waiting)))
	}
	reset := drainSeconds(st.Level, perSecond)
	if a.retryAfter > 0 {
		reset = a.retryAfter // A client that heeds either must not come earlier than by the other.
	}
	h.Add("RateLimit-Policy", name+
		";q="+fieldInteger(quota)+
		";w="+fieldInteger(drainSeconds(float64(quota), perSecond)))
	h.Add("RateLimit", name+
		";r="+fieldInteger(free)+
		";t="+fieldInteger(reset))
}

// drainSeconds is how long so many units take to leak, in whole seconds,
// rounded up. A rate is read as exactly as the schedule reads it, to one part
// in 2⁵⁰, so that 21 units at 0.7/s are 30 seconds and not 31.
func drainSeconds(units float64, perSecond rate.Limit) int64 {
	seconds := math.Ceil(units / float64(perSecond) * (1 - 0x1p-50))
	return int64(min(seconds, maxFieldInteger))
}

// maxFieldInteger is the largest integer that a structured field can hold
// (RFC 9651): 15 digits.
const maxFieldInteger = 999_999_999_999_999

// fieldInteger writes n ≥ 0 as an integer of structured fields.
func fieldInteger(n int64) string { return strconv.FormatInt(min(n, maxFieldInteger), 10) }

// quoteName writes a shaper's name as a string of structured fields, which is
// printable ASCII in quotes.
func quoteName(name string) string {
	if name == "" {
		return `"default"`
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range name {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
		case c < 0x20 || c > 0x7e:
			c = '?'
		}
		b.WriteByte(byte(c))
	}
	b.WriteByte('"')
	return b.String()
}
