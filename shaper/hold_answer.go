package shaper

import (
	"net/http"
	"strings"
	"time"
)

// holdOf returns for how long a response asks its client to hold back, at most
// 365 days; 0 if it does not, or not in a form that is valid. Retry-After has
// precedence, as the draft of the RateLimit fields says.
func (t Transport) holdOf(a *http.Response) time.Duration {
	refused := a.StatusCode == http.StatusTooManyRequests || a.StatusCode == http.StatusServiceUnavailable
	if refused {
		if d := retryAfterOf(a.Header); d > 0 {
			return d
		}
	}
	if refused || t.HoldWhenExhausted {
		return exhaustedFor(a.Header)
	}
	return 0
}

// retryAfterOf is what the Retry-After field (RFC 9110, section 10.2.3) says: a
// number of seconds, or a date.
//
// The date was made by the same clock as that of the Date field, and only a span
// between two readings of one clock means anything: by ours, which may be
// minutes off, a date could be long past or hours ahead. What the answer took to
// get here, and that a date knows but seconds, makes the hold longer by that, never
// shorter.
func retryAfterOf(h http.Header) time.Duration {
	text := strings.Trim(h.Get("Retry-After"), " \t")
	if seconds, ok := delaySeconds(text); ok {
		return seconds
	}
	date, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	from, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		from = time.Now()
	}
	return min(max(0, date.Sub(from)), horizon)
}

// delaySeconds reads a number of seconds, which is digits and nothing else.
func delaySeconds(text string) (d time.Duration, ok bool) {
	for i := range len(text) {
		if !isDigit(text[i]) {
			return 0, false
		}
		d = min(10*d+time.Duration(text[i]-'0')*time.Second, horizon)
	}
	return d, text != ""
}

// exhaustedFor is for how long a RateLimit field says that nothing remains: the
// longest t of the items whose r is 0.
func exhaustedFor(h http.Header) (longest time.Duration) {
	lines := h.Values("RateLimit")
	if len(lines) == 0 {
		return 0
	}
	// Several lines of a list are one with commas between them. If any part of it
	// is malformed, all of it is to be ignored (RFC 9651, section 4.2).
	f := fieldScanner{rest: strings.Trim(strings.Join(lines, ","), " ")}
	for {
		member, ok := f.quota()
		if !ok {
			return 0
		}
		if member.remaining == 0 && member.seconds > 0 {
			longest = max(longest, min(time.Duration(member.seconds), horizon/time.Second)*time.Second)
		}
		f.skip(" \t")
		if f.rest == "" {
			return longest
		}
		if !f.eat(',') {
			return 0
		}
		f.skip(" \t")
	}
}
