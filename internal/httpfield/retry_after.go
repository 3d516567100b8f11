// Package httpfield reads and writes the header fields by which an HTTP server
// tells its clients when to come back: Retry-After, and RateLimit with
// RateLimit-Policy.
//
// It knows nothing of a Shaper. The caller that reads a field gives the longest time,
// and the caller that writes one gives the numbers.
package httpfield

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// RetryAfter returns how long a Retry-After field (RFC 9110, section 10.2.3) asks
// the client to wait: a number of seconds, or the time until a date. It is at most
// longest, and 0 if there is no such field, it is malformed, or its time has passed.
//
// A date is compared with the response's Date field, if there is one, because both were
// made by the same clock. By the clock of this machine, which may be minutes off, the
// date could be long past or hours ahead. The wait does not become shorter by the time
// that the response took to arrive, nor by the fraction of a second that a date does not
// show: it can only be too long.
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

// delaySeconds reads a number of seconds, which is digits and nothing else. A number that
// is too large for a Duration becomes maxSeconds. ok reports whether text is a number.
func delaySeconds(text string) (n int64, ok bool) {
	for i := range len(text) {
		if !isDigit(text[i]) {
			return 0, false
		}
		n = min(10*n+int64(text[i]-'0'), maxSeconds)
	}
	return n, text != ""
}

// maxSeconds is more seconds than any Duration has.
const maxSeconds = math.MaxInt64/int64(time.Second) + 1

// span returns n seconds, n ≥ 0, as a Duration of at most longest.
func span(n int64, longest time.Duration) time.Duration {
	if n > int64(longest/time.Second) {
		return longest
	}
	return time.Duration(n) * time.Second
}

// SetRetryAfter sets the field to a number of seconds, as [http.Header.Set] would. value is
// where the field's value is kept: a slice of one string, which may be part of an array that
// holds the values of other fields too. That spares the allocation of a slice for this one.
func SetRetryAfter(h http.Header, seconds int64, value []string) {
	value[0] = strconv.FormatInt(seconds, 10)
	h["Retry-After"] = value[:1:1]
}

// Seconds returns the number for a Retry-After field: d in whole seconds, rounded up so
// that no client comes back too early, and at least 1.
func Seconds(d time.Duration) int64 {
	seconds := int64(d / time.Second)
	if d%time.Second > 0 {
		seconds++
	}
	return max(seconds, 1)
}
