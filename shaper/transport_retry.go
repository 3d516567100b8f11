package shaper

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// isRefusal reports whether a response that asks for that pause says that the request
// was not processed.
func isRefusal(response *http.Response, asked pause) bool {
	return response.StatusCode == http.StatusTooManyRequests ||
		response.StatusCode == http.StatusServiceUnavailable && asked.span > 0
}

// sendAgain sends a request of cost n once more, after a refusal that asks to hold back
// from now on. If the request cannot be sent, it returns the refusal.
//
// GetBody, the bodies and the Limiter are foreign code, which may panic. Then both
// bodies are closed, and as the refusal's is, the request is no longer in flight.
func (t Transport) sendAgain(r *http.Request, n int, refusal *http.Response, asked pause) (*http.Response, error) {
	until := time.Now().Add(asked.span)
	ctx, stop := waitContextOf(r)
	defer stop()
	if deadline, timed := ctx.Deadline(); timed && !until.Before(deadline) {
		return refusal, nil // A Shaper would refuse it, and the refusal is still whole.
	}
	taken := false // The refusal's body is read or returned: it is not ours to close.
	defer func() {
		if !taken {
			closeBody(refusal.Body)
		}
	}()
	// The body comes before the wait, so that no slot is spent if there is none.
	body, ok := bodyAgain(r)
	if !ok {
		taken = true
		return refusal, nil
	}
	sent := false
	defer func() {
		if !sent {
			closeBody(body)
		}
	}()
	ok = detach(refusal)
	taken = true
	if !ok {
		return refusal, nil
	}
	release, err := t.reenter(ctx, n, until, asked.held)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, err
	default:
		return refusal, nil
	}
	second := r.Clone(r.Context())
	second.Body = body
	sent = true
	response, _, err := t.send(second, release)
	return response, err
}

// bodyAgain returns the body of a request that has been sent already, and reports
// whether there can be a second one.
func bodyAgain(r *http.Request) (body io.ReadCloser, ok bool) {
	if r.Body == nil || r.Body == http.NoBody {
		return r.Body, true
	}
	if r.GetBody == nil {
		return nil, false
	}
	body, err := r.GetBody()
	return body, err == nil
}

// How much of a refusal is kept in memory while its request waits, and how long its
// body may take to arrive. A refusal is short and arrives at once; of anything else
// the length and the time are unknown.
const (
	maxDetached  = 64 << 10
	maxDetaching = 5 * time.Second
)

var errCutOff = fmt.Errorf("shaper: the refusal was cut off, as its body took longer than %v to come", maxDetaching)

// detach reads the body of a response into memory, so that the connection is free and
// the request is not in flight while the response may still be wanted. It reports
// whether the body was short enough; the response can be read in any case.
//
// A body that does not arrive in time is closed, which ends its reading. Leaving it
// open would keep the response whole but prevent the retry, and the upstream that
// refuses requests, because it is in trouble, is also the one that is slow.
func detach(response *http.Response) bool {
	body := response.Body
	if body == nil {
		return true
	}
	cut := make(chan any) // Unbuffered: whenever the timer has fired, detach receives.
	timer := time.AfterFunc(maxDetaching, func() {
		defer func() { cut <- recover() }()
		closeBody(body)
	})
	reading := true
	defer func() {
		if reading && !timer.Stop() {
			<-cut // Read has panicked, and the caller is about to close the body as well.
		}
	}()
	start, err := io.ReadAll(io.LimitReader(body, maxDetached+1))
	reading = false
	switch {
	case !timer.Stop():
		if p := <-cut; p != nil {
			panic(p) // On the caller's goroutine, where it can be recovered.
		}
		err = errCutOff
	case len(start) > maxDetached:
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(start), body), body}
		return false
	default:
		closeBody(body)
	}
	response.Body = io.NopCloser(io.MultiReader(bytes.NewReader(start), failedReader{err}))
	return true
}

// A failedReader is the end of a body: the error with which reading it failed, or
// io.EOF if err is nil.
type failedReader struct{ err error }

func (f failedReader) Read([]byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	return 0, io.EOF
}

// reenter lets a refused request of cost n wait for the Limiter again: at the head of
// a Shaper's line. If the Limiter is not held until then, the request itself first waits
// until then.
func (t Transport) reenter(ctx context.Context, n int, until time.Time, held bool) (release func(), err error) {
	if !held {
		if hold := time.Until(until); hold > 0 {
			held := time.NewTimer(hold)
			defer held.Stop()
			select {
			case <-held.C:
			case <-ctx.Done():
				return nil, errorOf(ctx)
			}
		}
	}
	return innerOf(t.Limiter).enter(ctx, n, reentry)
}
