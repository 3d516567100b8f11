package shaper

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// errRequestCanceled is the error of a request whose Cancel is closed while it
// waits. That of http.Transport is of the same kind: a plain error, which is
// neither context.Canceled nor a timeout.
var errRequestCanceled = errors.New("shaper: request canceled while waiting for the Limiter")

// A waitContext is the context with which a request waits that has the deprecated
// field Cancel: it ends with the request's own context, and when Cancel is closed.
type waitContext struct {
	context.Context // derived from that of the request, and canceled with Cancel
	request         context.Context
	cancel          <-chan struct{} // Request.Cancel
}

// waitContextOf returns the context with which a request waits. The caller must call
// stop when the wait is over, and not use the context after that.
func waitContextOf(r *http.Request) (ctx context.Context, stop func()) {
	if r.Cancel == nil {
		return r.Context(), nothing
	}
	derived, stop := context.WithCancel(r.Context())
	go func() {
		select {
		case <-r.Cancel:
			stop()
		case <-derived.Done():
		}
	}()
	return &waitContext{derived, r.Context(), r.Cancel}, stop
}

// Err looks at Cancel itself, as the goroutine that waits for it may be late: what
// has been canceled before its slot comes is not to be sent.
func (c *waitContext) Err() error {
	if err := c.request.Err(); err != nil {
		return err
	}
	select {
	case <-c.cancel:
	default:
		return c.Context.Err()
	}
	// For its Timeout an http.Client gives a request a deadline and closes Cancel at
	// the same instant. Which of the two is seen first must make no difference.
	if deadline, ok := c.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return errRequestCanceled
}
