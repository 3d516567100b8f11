package httpout

import (
	"context"
	"errors"
	"net/http"
	"time"
)

//lint:file-ignore SA1019 Request.Cancel is deprecated, but http.Transport heeds it.

// errRequestCanceled is returned if Request.Cancel is closed while the request waits.
// It is of the kind that [http.Transport] returns: neither [context.Canceled] nor a
// timeout, and without an exported name.
var errRequestCanceled = errors.New("shaper: request canceled while waiting for the Limiter")

// A waitContext is the context of the wait of a request whose deprecated field Cancel is
// set. It ends with the request's own context, or when Cancel is closed.
type waitContext struct {
	context.Context // derived from the request's, and canceled when Cancel is closed
	request         context.Context
	cancel          <-chan struct{} // Request.Cancel
}

// WaitContextOf returns the context in which a request waits. The caller must call stop
// when the wait is over, and must not use the context after that.
func WaitContextOf(r *http.Request) (ctx context.Context, stop func()) {
	if r.Cancel == nil {
		return r.Context(), func() {}
	}
	// If the goroutine used stop instead of a variable of its own, stop would be on the
	// heap, also for requests without a Cancel.
	derived, cancel := context.WithCancel(r.Context())
	go func() { // Until stop is called.
		select {
		case <-r.Cancel:
			cancel()
		case <-derived.Done():
		}
	}()
	return &waitContext{derived, r.Context(), r.Cancel}, cancel
}

// Err looks at Cancel itself, because the goroutine that waits for Cancel may be late: a
// request that is canceled before its slot comes must not be sent.
func (c *waitContext) Err() error {
	if err := c.request.Err(); err != nil {
		return err
	}
	select {
	case <-c.cancel:
	default:
		return c.Context.Err()
	}
	// For its Timeout an http.Client both sets a deadline and closes Cancel at that
	// instant. The error is a timeout's, whichever of the two is seen first.
	if deadline, ok := c.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return errRequestCanceled
}
