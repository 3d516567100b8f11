package caddyshaper

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"example.com/leakybucket/shaper"
)

// refuse makes the error of a request that was not admitted, for Caddy's error routes. What
// the client must be told in any case is put into the header.
func (s *Shape) refuse(w http.ResponseWriter, r *http.Request, err error) {
	c := callOf(r)
	c.times.resume()
	c.tell(reasonOf(err))
	a := answer{header: http.Header{}}
	shaper.WriteError(&a, r, err)
	h := w.Header()
	h.Set("Cache-Control", a.header.Get("Cache-Control"))
	if after := a.header.Get("Retry-After"); after != "" {
		later := spread(after, time.Duration(s.RetrySpread))
		h.Set("Retry-After", later)
		// RateLimit was set for the exact time. A client must not come too early, whichever
		// of the two it obeys.
		if fields := h["Ratelimit"]; len(fields) > 0 {
			last := &fields[len(fields)-1]
			if limit, ok := strings.CutSuffix(*last, ";t="+after); ok {
				*last = limit + ";t=" + later
			}
		}
	}
	c.err = caddyhttp.Error(a.status, err)
}

// spread adds a random number of whole seconds, from 0 to most and each equally likely, to a
// number of seconds.
func spread(seconds string, most time.Duration) string {
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil || most < time.Second {
		return seconds
	}
	return strconv.FormatInt(n+rand.Int64N(int64(most/time.Second)+1), 10)
}

// An answer takes what [shaper.WriteError] writes, for its status and header.
type answer struct {
	header http.Header
	status int
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(p []byte) (int, error) { return len(p), nil }

// reasonOf returns in one word why a request was not admitted.
func reasonOf(err error) string {
	rejected, ok := errors.AsType[*shaper.RejectError](err)
	if !ok {
		if errors.Is(err, context.DeadlineExceeded) {
			return "deadline"
		}
		return "failed"
	}
	switch reason := rejected.Reason; {
	case errors.Is(reason, shaper.ErrQueueFull):
		return "queue-full"
	case errors.Is(reason, shaper.ErrTooLate):
		return "too-late"
	case errors.Is(reason, shaper.ErrTooCostly):
		return "too-costly"
	case errors.Is(reason, shaper.ErrUnavailable):
		return "unavailable"
	case errors.Is(reason, shaper.ErrClosed):
		return "closed"
	}
	return "refused"
}
