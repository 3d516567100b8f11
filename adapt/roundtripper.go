package adapt

import (
	"context"
	"errors"
	"net/http"
	"time"

	"example.com/leakybucket/internal/httpfield"
)

// RoundTripper returns a RoundTripper that sends requests by base, nil meaning [http.DefaultTransport], and observes
// the answers, which it returns as they are. It belongs behind the line: as Base of a [shaper.Transport], or, where a
// [shaper.Middleware] has the line, as Transport of a [net/http/httputil.ReverseProxy]. It may be used by any
// number of goroutines, if base may.
//
//   - Refused is 429, and 503 or 529 that says for how long, by Retry-After or a RateLimit field of which
//     nothing remains, as a Transport reads them.
//   - Failed is an error, a time-out among them, and 502, 504, and any other 503 or 529.
//   - Not observed is 500, as it comes of the request more often than of the load; and an error after the context of the
//     request was cancelled, as its caller has left.
//   - OK is all the rest, any other 4xx too.
func (a *Controller) RoundTripper(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return roundTripper{a, base}
}

type roundTripper struct {
	controller *Controller
	base       http.RoundTripper
}

func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	left := time.Now()
	response, err := t.base.RoundTrip(r)
	if o, ok := OutcomeOf(r, response, err); ok {
		t.controller.Observe(o, time.Since(left))
	}
	return response, err
}

// CloseIdleConnections calls the method of the same name of the base, if there is one.
func (t roundTripper) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// statusOverloaded is a status that net/http has no name for. APIs of language models answer with it.
const statusOverloaded = 529

// OutcomeOf returns what the answer to a request, or the error in its place, means to [Controller.RoundTripper]. ok is false
// if it means nothing. It is for programs that see answers elsewhere, and call Observe.
func OutcomeOf(r *http.Request, response *http.Response, err error) (o Outcome, ok bool) {
	if err != nil || response == nil {
		return Failed, !errors.Is(r.Context().Err(), context.Canceled)
	}
	switch response.StatusCode {
	case http.StatusTooManyRequests:
		return Refused, true
	case http.StatusServiceUnavailable, statusOverloaded:
		if saysWhen(response.Header) {
			return Refused, true
		}
		return Failed, true
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return Failed, true
	case http.StatusInternalServerError:
		return 0, false
	}
	return OK, true
}

// saysWhen reports whether a header says for how long to hold back.
func saysWhen(h http.Header) bool {
	const longest = 365 * 24 * time.Hour
	return httpfield.RetryAfter(h, longest) > 0 || httpfield.Exhausted(h, longest) > 0
}
