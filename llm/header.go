package llm

import (
	"bytes"
	"cmp"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/leakybucket/internal/httpfield"
)

// longest bounds the time that a response can ask for. A Transport bounds it further.
const longest = 365 * 24 * time.Hour

// usualHold is the hold for a 429 that names no time.
const usualHold = time.Second

// refusalKept bounds the bytes of a refusal's body that are parsed.
const refusalKept = 64 << 10

// refusalPatience is how long the body of a refusal may take to come before it is cut off, as in [shaper.Transport].
const refusalPatience = 5 * time.Second

// statusOverloaded is Anthropic's status for an overload, whoever asks. net/http has no name for
// it.
const statusOverloaded = 529

// limitFields names the rate-limit headers of a limit: its size, the remaining amount, and the time until it is full again. A limit
// of a kind that a [Quota] does not have, such as one per day, has no kind.
type limitFields struct {
	kind                    Kind
	limit, remaining, reset string
}

// otherFields are those of limits that a Quota does not have: they say only how long a refusal lasts.
var otherFields = []limitFields{
	perSpan("", "Requests-Day"), perSpan("", "Tokens-Day"), perSpan("", "Requests-Hour"), perSpan("", "Tokens-Hour"), // Cerebras
	{"", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}, // OpenRouter and GitHub, in ms and s since 1970: withcoral/coral#89, RocketChat/docs-old#1358
	{"", "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset"},       // the draft of the IETF until 2022
}

// perSpan returns the fields of a limit whose name has its span (inference-docs.cerebras.ai/support/rate-limits, 2026-11).
func perSpan(k Kind, name string) limitFields {
	return limitFields{k, "X-Ratelimit-Limit-" + name, "X-Ratelimit-Remaining-" + name, "X-Ratelimit-Reset-" + name}
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

// holdFor returns for how long a refusal asks callers to hold back; 0 if no wait cures it. The first of these counts:
// retry-after-ms, which OpenAI's clients prefer; retry-after; RetryInfo in the body; the latest reset of the limits of which
// nothing remains; the text of the error. A 429 without
// any of them asks for usualHold: a caller that goes on at once is refused again, and some providers count that. A 529 or
// 503 is about an overload, and its rate-limit headers do not tell when that is over. So their resets do not count, and
// without a time it asks for nothing.
func holdFor(r *http.Response, limits []limitFields) time.Duration {
	switch r.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, statusOverloaded:
	default:
		return 0
	}
	c := complaintIn(peekRefusal(r), true)
	if c == nil {
		c = new(complaint)
	}
	if shouldNotRetry(r.Header) || c.isFinal() {
		return 0
	}
	now := dateOf(r.Header)
	d := cmp.Or(seconds(r.Header.Get("Retry-After-Ms"), time.Millisecond), retryAfter(r.Header.Get("Retry-After"), now), c.retryInfo())
	if d > 0 || r.StatusCode != http.StatusTooManyRequests {
		return d
	}
	return cmp.Or(untilFull(r.Header, limits, now), untilFull(c.header(), limits, now), c.inText(), usualHold)
}

// untilFull returns the latest reset of the limits of which nothing remains. Where a field does not say what remains, a limit
// per day is not taken to be the one that is used up.
func untilFull(h http.Header, limits []limitFields, now time.Time) (latest time.Duration) {
	latest = httpfield.Exhausted(h, longest)
	for _, l := range slices.Concat(limits, otherFields) {
		said := h.Get(l.remaining)
		if n, ok := number(said); ok && n == 0 || said == "" && !strings.HasSuffix(l.reset, "-Day") {
			latest = max(latest, untilReset(h.Get(l.reset), now))
		}
	}
	return latest
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
	return secondsOrInstant(text, now)
}

// untilReset reads a Go duration, an instant in RFC 3339, an HTTP date, or a number as secondsOrInstant does. It returns 0 for
// a malformed text, or an instant that has passed.
func untilReset(text string, now time.Time) time.Duration {
	text = strings.TrimSpace(text)
	if d, ok := goDuration(text); ok {
		return d
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		at, err = http.ParseTime(text)
	}
	if err == nil {
		return between(now, at)
	}
	return secondsOrInstant(text, now)
}

// secondsOrInstant reads a number of seconds, or an instant in seconds or milliseconds since 1970, which no number of seconds to wait
// is as large as.
func secondsOrInstant(text string, now time.Time) time.Duration {
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	switch {
	case err == nil && 1e9 <= n && n < 1e11:
		return between(now, time.UnixMicro(int64(n*1e6)))
	case err == nil && 1e11 <= n && n < 1e14:
		return between(now, time.UnixMilli(int64(n)))
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

// peekRefusal returns the first bytes of the body of a response, which can be read as before. If it is compressed,
// they are decompressed.
func peekRefusal(r *http.Response) []byte {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	source := r.Body
	cutOff := time.AfterFunc(refusalPatience, func() { _ = source.Close() })
	body := readAhead(source, refusalKept, -1, nil) // Whoever reads the body gets the error.
	cutOff.Stop()
	r.Body = body
	coding := codingOf(r.Header)
	if coding == "" {
		return body.read
	}
	plain, err := unpacked(bytes.NewReader(body.read), coding)
	if err != nil {
		return nil
	}
	defer plain.Close()                                       // It can't fail.
	text, _ := io.ReadAll(io.LimitReader(plain, refusalKept)) // A part may be enough.
	return text
}
