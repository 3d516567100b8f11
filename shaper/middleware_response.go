package shaper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"example.com/leakybucket/shaper/internal/httpfield"
	"example.com/leakybucket/shaper/internal/serverconn"
)

// statusClientGone is the status that access logs get for a client that has
// gone: nginx's 499, for which net/http has no name.
const statusClientGone = 499

// WriteError answers a request that a Limiter did not admit with err:
//
//   - 429 with Retry-After if the line is full or the request would leave too
//     late; without it if the request can never fit, which the body then says.
//   - 503 with Retry-After if the Shaper is closed, if its shared [Bucket] can't be
//     asked, if the deadline of an outer handler has passed, and for errors of other
//     Limiters.
//   - 408 if the body could not be read although the client is there.
//   - 500 if the cost is negative, or if the key function or the limits function of a
//     [Group] returned an error.
//   - 499 without a body, and the end of the connection, if err is
//     [context.Canceled]: the client has gone.
//
// Retry-After is that of the [RejectError] in whole seconds, rounded up, at least 1;
// for other errors it is 1. The body is a short problem+json (RFC 9457) that repeats
// nothing of the request or of err. "Cache-Control: no-store" keeps it out of caches.
//
// WriteError is the default of [WithErrorHandler]. It may also be called from such a
// handler, or after a WaitN of your own.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	responseTo(err).write(w, r)
}

// write sends the response.
func (a response) write(w http.ResponseWriter, r *http.Request) {
	if a.status == statusClientGone {
		writeGone(w, r)
		return
	}
	h := w.Header()
	dropStale(h)
	if a.retryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(a.retryAfter, 10))
	}
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "application/problem+json")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(a.status)
	// The texts are our own, in ASCII, so %q quotes them as JSON does. An error of
	// the write means that the client has gone: there is nothing left to do.
	fmt.Fprintf(w, `{"title":%q,"status":%d,"detail":%q}`+"\n", http.StatusText(a.status), a.status, a.detail)
}

// writeGone ends the request of a client that has gone.
func writeGone(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	dropStale(h)
	// In HTTP/2 the field would end the connection with all its other requests.
	// There it is not needed, because a client that has gone has reset its stream.
	if r.ProtoMajor < 2 {
		h.Set("Connection", "close")
	}
	w.WriteHeader(statusClientGone)
}

// dropStale removes what an outer handler may have set for the body of another
// response. Content-Encoding stays, as in [http.Error]: an outer handler that
// compresses what is written sets it before (golang/go#66343).
func dropStale(h http.Header) {
	for _, field := range [...]string{"Content-Length", "Etag", "Last-Modified"} {
		h.Del(field)
	}
}

// A response is the answer to a request that was not admitted.
type response struct {
	status     int
	retryAfter int64 // in seconds; 0: trying again does not help
	detail     string
}

// responseTo returns the response to an error. It looks for refusals first, because a
// refusal of a request that would have missed its context's deadline is
// [context.DeadlineExceeded] too.
func responseTo(err error) response {
	retryAfter := int64(1)
	if refusal, ok := errors.AsType[*RejectError](err); ok {
		retryAfter = httpfield.Seconds(refusal.RetryAfter)
	}
	switch {
	case isOwnFault(err):
		return response{http.StatusInternalServerError, 0, "The server could not tell the limits of the request."}
	case errors.Is(err, ErrQueueFull):
		return response{http.StatusTooManyRequests, retryAfter, "Too many requests are waiting already."}
	case errors.Is(err, ErrTooLate):
		return response{http.StatusTooManyRequests, retryAfter, "The request would have to wait too long."}
	case errors.Is(err, ErrTooCostly):
		return response{http.StatusTooManyRequests, 0, "The request costs more than can ever fit. Trying again does not help."}
	case errors.Is(err, ErrUnavailable):
		return response{http.StatusServiceUnavailable, retryAfter, "The server can't tell now whether the request may be served."}
	case errors.Is(err, ErrClosed):
		return response{http.StatusServiceUnavailable, retryAfter, "The server takes no more requests."}
	case errors.Is(err, serverconn.ErrBody):
		return response{http.StatusRequestTimeout, 0, "The body of the request did not come."}
	case errors.Is(err, ErrNegativeCost):
		return response{http.StatusInternalServerError, 0, "The server could not tell what the request costs."}
	case errors.Is(err, context.Canceled):
		return response{status: statusClientGone}
	case errors.Is(err, context.DeadlineExceeded):
		return response{http.StatusServiceUnavailable, retryAfter, "The time for the request ran out while it waited."}
	default:
		return response{http.StatusServiceUnavailable, retryAfter, "The request could not be admitted."}
	}
}

// later returns the response with a random number of whole seconds, from 0 to spread
// and each equally likely, added to its Retry-After.
func (a response) later(spread time.Duration) response {
	if a.retryAfter > 0 {
		a.retryAfter += rand.Int64N(int64(spread/time.Second) + 1)
	}
	return a
}
