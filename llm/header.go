package llm

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// longest bounds the time that a response can ask for. A Transport bounds it further.
const longest = 365 * 24 * time.Hour

// usualHold is the hold for a 429 that names no time.
const usualHold = time.Second

// refusalKept bounds the bytes of a refusal's body that are parsed.
const refusalKept = 64 << 10

// statusOverloaded is Anthropic's status for an overload, whoever asks. net/http has no name for
// it.
const statusOverloaded = 529

// limitFields names the rate-limit headers of a limit: its size, the remaining amount, and the time until it is full again.
type limitFields struct {
	kind                    Kind
	limit, remaining, reset string
}

// leftOf returns the remaining amounts of limits, except where a field is missing or malformed. Azure was seen to send -1
// for unknown (learn.microsoft.com/answers/questions/5625878, 2025-11).
func leftOf(h http.Header, limits []limitFields) (left []Left) {
	for _, l := range limits {
		limit, ok := 0, true
		if said := h.Get(l.limit); said != "" {
			limit, ok = number(said)
		}
		if remaining, known := number(h.Get(l.remaining)); known && ok {
			left = append(left, Left{l.kind, limit, remaining})
		}
	}
	return left
}

// number reads a number that is 0 or above.
func number(text string) (n int, ok bool) {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	return n, err == nil && n >= 0
}

// holdFor returns for how long a refusal asks callers to hold back. The first of these counts: retry-after-ms, which
// OpenAI's clients prefer; retry-after; the body; the latest reset of the limits of which nothing remains. A 429 without
// any of them asks for usualHold: a caller that goes on at once is refused again, and some providers count that. A 529 or
// 503 is about an overload, and its rate-limit headers do not tell when that is over. So their resets do not count, and
// without a time it asks for nothing.
func holdFor(r *http.Response, limits []limitFields, inBody func([]byte) time.Duration) time.Duration {
	switch r.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, statusOverloaded:
	default:
		return 0
	}
	now := dateOf(r.Header)
	if d := seconds(r.Header.Get("Retry-After-Ms"), time.Millisecond); d > 0 {
		return d
	}
	if d := retryAfter(r.Header.Get("Retry-After"), now); d > 0 {
		return d
	}
	if inBody != nil {
		if d := inBody(peekRefusal(r)); d > 0 {
			return min(d, longest)
		}
	}
	if r.StatusCode != http.StatusTooManyRequests {
		return 0
	}
	latest := time.Duration(0)
	for _, l := range limits {
		if n, ok := number(r.Header.Get(l.remaining)); ok && n == 0 {
			latest = max(latest, untilReset(r.Header.Get(l.reset), now))
		}
	}
	return cmp.Or(latest, usualHold)
}

// dateOf returns the instant of a response by the server's clock, as its other instants are. This machine's clock may
// differ.
func dateOf(h http.Header) time.Time {
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		return date
	}
	return time.Now()
}

// retryAfter reads a number of seconds, which some servers write with a fraction, or an HTTP date.
func retryAfter(text string, now time.Time) time.Duration {
	if date, err := http.ParseTime(strings.TrimSpace(text)); err == nil {
		return between(now, date)
	}
	return seconds(text, time.Second)
}

// untilReset reads a Go duration, an instant in RFC 3339, or a number of seconds. It returns 0 for
// a malformed text, or an instant that has passed.
func untilReset(text string, now time.Time) time.Duration {
	text = strings.TrimSpace(text)
	if d, ok := goDuration(text); ok {
		return d
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return between(now, at)
	}
	return seconds(text, time.Second)
}

// goDuration reads a duration as Go writes it, with a unit. A negative one is 0.
func goDuration(text string) (d time.Duration, ok bool) {
	d, err := time.ParseDuration(text)
	if err != nil || !strings.ContainsAny(text, "smh") { // "0" has no unit.
		return 0, false
	}
	return min(max(d, 0), longest), true
}

// seconds reads a number of units, at most 365 days of them. It returns 0 for a text that is no number above 0.
func seconds(text string, unit time.Duration) time.Duration {
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	switch {
	case err != nil, math.IsNaN(n), math.IsInf(n, 0), n <= 0:
		return 0
	case n >= float64(longest/unit):
		return longest
	}
	return time.Duration(math.Ceil(n * float64(unit)))
}

func between(now, at time.Time) time.Duration { return min(max(at.Sub(now), 0), longest) }

// peekRefusal returns the first bytes of the body of a response, which can be read as before. If it is compressed
// by gzip, they are decompressed.
func peekRefusal(r *http.Response) []byte {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	body := readAhead(r.Body, refusalKept, -1, nil) // Whoever reads the body gets the error.
	r.Body = body
	if !isGzip(r.Header) {
		return body.read
	}
	plain, err := gzip.NewReader(bytes.NewReader(body.read))
	if err != nil {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(plain, refusalKept)) // A part may be enough.
	return text
}

// isGzip reports whether a body is compressed by gzip, and by nothing else.
func isGzip(h http.Header) bool {
	encoding := strings.ToLower(strings.TrimSpace(h.Get("Content-Encoding")))
	return encoding == "gzip" || encoding == "x-gzip"
}
