package shaper

import (
	"net/http"
	"time"

	"example.com/leakybucket/shaper/internal/httpfield"
)

// A pause is the time for which a response asks the client to hold back.
type pause struct {
	span time.Duration // at most MaxHold; 0: the response does not ask
	held bool          // the Limiter is held for that time, so that all its requests wait
}

// holdFrom returns for how long a response asks the client to hold back, at most 365
// days. It returns 0 if the response does not ask, or asks in a malformed field.
// Retry-After takes precedence, as the draft of the RateLimit fields demands.
func (t Transport) holdFrom(response *http.Response) time.Duration {
	refused := response.StatusCode == http.StatusTooManyRequests || response.StatusCode == http.StatusServiceUnavailable
	if refused {
		if d := httpfield.RetryAfter(response.Header, horizon); d > 0 {
			return d
		}
	}
	if refused || t.HoldWhenExhausted {
		return httpfield.Exhausted(response.Header, horizon)
	}
	return 0
}
