package httpfield

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Exhausted returns for how long a RateLimit field says that nothing remains
// (draft-ietf-httpapi-ratelimit-headers-11): the longest t of the items whose r is
// 0, and at most longest. It returns 0 if there is no such item, or if any part of the
// field is malformed, because then the whole field must be ignored (RFC 9651, section
// 4.2).
func Exhausted(h http.Header, longest time.Duration) (hold time.Duration) {
	// Several lines of a list are one with commas between them.
	s := scanner{rest: strings.TrimLeft(strings.Join(h.Values("RateLimit"), ","), " ")}
	for {
		item, ok := s.item()
		if !ok {
			return 0
		}
		if item.remaining == 0 && item.reset > 0 {
			hold = max(hold, span(item.reset, longest))
		}
		s.skip(" \t")
		if s.rest == "" {
			return hold
		}
		if !s.eat(',') {
			return 0
		}
		s.skip(" \t")
	}
}

// MaxInteger is the largest integer that a structured field can hold (RFC 9651): 15
// digits.
const MaxInteger = 999_999_999_999_999

// A RateLimit holds the values of one item of a RateLimit field and one of a
// RateLimit-Policy field. The numbers must not be negative; those above [MaxInteger] are
// written as MaxInteger.
type RateLimit struct {
	// Name is the name of the policy. An empty name is written as "default", and a
	// character that is not printable ASCII as '?'.
	Name string

	Quota     int64 // q: units that are free after a long pause
	Window    int64 // w: seconds in which as many become free again
	Remaining int64 // r: units that are free now
	Reset     int64 // t: seconds until more are free
}

// AddTo adds both fields to those that are there already.
func (l RateLimit) AddTo(h http.Header) {
	var buffer [128]byte // Names are seldom longer than 30 characters.
	b := appendQuoted(buffer[:0], l.Name)
	name := b
	b = appendInteger(appendInteger(b, ";q=", l.Quota), ";w=", l.Window)
	policy := len(b)
	b = append(b, name...)
	b = appendInteger(appendInteger(b, ";r=", l.Remaining), ";t=", l.Reset)
	// Both values are in one string and one array, where Header.Add makes two of each.
	both := string(b)
	values := [...]string{both[:policy], both[policy:]}
	add(h, "Ratelimit-Policy", values[0:1:1])
	add(h, "Ratelimit", values[1:2:2])
}

// SetX sets the fields X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset. If they are there
// already, from another limiter of which less remains, they stay, and of which as much remains, if its Reset is no
// earlier: else a client that one limiter refuses would come back when another has let it leave. Reset is written as the
// time at which that many seconds from now are over, in seconds since 1970, rounded up.
func (l RateLimit) SetX(h http.Header, now time.Time) {
	remaining := min(l.Remaining, MaxInteger)
	at := now.Unix() + min(l.Reset, MaxInteger)
	if now.Nanosecond() > 0 {
		at++
	}
	if there, err := strconv.ParseInt(h.Get(xRemaining), 10, 64); err == nil && there <= remaining {
		reset, err := strconv.ParseInt(h.Get(xReset), 10, 64)
		if there < remaining || err == nil && reset >= at {
			return
		}
	}
	h.Set(xLimit, strconv.FormatInt(min(l.Quota, MaxInteger), 10))
	h.Set(xRemaining, strconv.FormatInt(remaining, 10))
	h.Set(xReset, strconv.FormatInt(at, 10))
}

// The names in the canonical form.
const (
	xLimit     = "X-Ratelimit-Limit"
	xRemaining = "X-Ratelimit-Remaining"
	xReset     = "X-Ratelimit-Reset"
)

// add adds one value to a field, whose name must be in the canonical form.
func add(h http.Header, field string, value []string) {
	if there := h[field]; len(there) > 0 {
		value = append(there, value...)
	}
	h[field] = value
}

// appendInteger appends a parameter whose value is an integer of structured fields.
func appendInteger(b []byte, key string, n int64) []byte {
	return strconv.AppendInt(append(b, key...), min(n, MaxInteger), 10)
}

// appendQuoted appends a name as a string of structured fields, which is printable ASCII
// in quotes.
func appendQuoted(b []byte, name string) []byte {
	if name == "" {
		name = "default"
	}
	b = append(b, '"')
	for _, c := range name {
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\')
		case c < 0x20 || c > 0x7e:
			c = '?'
		}
		b = append(b, byte(c))
	}
	return append(b, '"')
}
