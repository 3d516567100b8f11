// Package httpfield reads and writes the header fields by which an HTTP server
// tells its clients when to come back: Retry-After, and RateLimit with
// RateLimit-Policy.
//
// It knows nothing of a Shaper: whoever reads a field says how far it may reach
// ahead, and whoever writes one says the numbers.
package httpfield

import (
	"math"
	"net/http"
	"strings"
	"time"
)

// RetryAfter returns how long a Retry-After field (RFC 9110, section 10.2.3) asks
// the client to wait: a number of seconds, or the time until a date. It is at most
// longest, and 0 if there is no such field, it is malformed, or its time has passed.
//
// A date was made by the same clock as the response's Date field, and only a span
// between two readings of one clock means anything: by the clock of this machine,
// which may be minutes off, the date could be long past or hours ahead. The time
// that the response took to arrive, and the fraction of a second that a date does
// not show, can only make the wait longer, never shorter.
func RetryAfter(h http.Header, longest time.Duration) time.Duration {
	text := strings.Trim(h.Get("Retry-After"), " \t")
	if n, ok := delaySeconds(text); ok {
		return span(n, longest)
	}
	date, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	from, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		from = time.Now()
	}
	return min(max(0, date.Sub(from)), longest)
}

// delaySeconds reads a number of seconds, which is digits and nothing else. What is
// too long for a Duration becomes the greatest number of seconds.
func delaySeconds(text string) (n int64, ok bool) {
	for i := range len(text) {
		if !isDigit(text[i]) {
			return 0, false
		}
		n = min(10*n+int64(text[i]-'0'), maxSeconds)
	}
	return n, text != ""
}

// maxSeconds is more than any Duration has.
const maxSeconds = math.MaxInt64/int64(time.Second) + 1

// span returns n seconds, n ≥ 0, as a Duration of at most longest.
func span(n int64, longest time.Duration) time.Duration {
	if n > int64(longest/time.Second) {
		return longest
	}
	return time.Duration(n) * time.Second
}

// Seconds returns d as Retry-After has it: in whole seconds, rounded up so that no
// client comes back too early, and at least 1.
func Seconds(d time.Duration) int64 {
	seconds := int64(d / time.Second)
	if d%time.Second > 0 {
		seconds++
	}
	return max(seconds, 1)
}
