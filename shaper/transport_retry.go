package shaper

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// isRefusal reports whether a response says that the request was not processed. asked
// is the pause that the response asks for.
func isRefusal(response *http.Response, asked pause) bool {
	return response.StatusCode == http.StatusTooManyRequests ||
		response.StatusCode == http.StatusServiceUnavailable && asked.span > 0
}

// sendAgain sends a request of cost n once more, after a refusal that asks to hold back
// from now on. If the request cannot be sent, it returns the refusal.
//
// GetBody, the bodies and the Limiter are foreign code, which may panic. Then both
// bodies are closed. Closing the refusal's body also ends the time in flight.
func (t Transport) sendAgain(r *http.Request, n int, refusal *http.Response, asked pause) (*http.Response, error) {
	until := time.Now().Add(asked.span)
	ctx, stop := waitContextOf(r)
	defer stop()
	if deadline, timed := ctx.Deadline(); timed && !until.Before(deadline) {
		return refusal, nil // A Shaper would refuse the retry, and the refusal has not been read yet.
	}
	taken := false // The refusal's body has been read or is returned, so it must not be closed here.
	defer func() {
		if !taken {
			closeBody(refusal.Body)
		}
	}()
	// The body is asked for before the wait, so that no slot is spent if there is none.
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

// bodyAgain returns a second body for a request that has been sent already; ok reports
// whether there is one.
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

const (
	// maxDetached is how much of a refusal is kept in memory while its request waits.
	maxDetached = 64 << 10
	// maxDetaching is how long the body of a refusal may take to arrive. Most arrive at
	// once.
	maxDetaching = 5 * time.Second
)

var errCutOff = fmt.Errorf("shaper: the refusal was cut off, as its body took longer than %v to come", maxDetaching)

// detach reads the body of a response into memory. Then the connection is free and the
// request is not in flight, while the response can still be returned. detach reports
// whether the body was short enough; the response can be read in any case.
//
// A body that does not arrive in time is closed, which ends its reading. Leaving it
// open would keep the response whole but prevent the retry, and an upstream that is in
// trouble both refuses requests and is slow.
func detach(response *http.Response) bool {
	body := response.Body
	if body == nil {
		return true
	}
	cut := make(chan any) // It needs no buffer: if the timer fires, detach receives.
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
			panic(p) // Here, on the caller's goroutine, the panic can be recovered.
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

// A failedReader is the end of a body. It returns the error with which reading the body
// failed, or [io.EOF] if err is nil.
type failedReader struct{ err error }

func (f failedReader) Read([]byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	return 0, io.EOF
}

// reenter lets a refused request of cost n wait for the Limiter again: at the head of
// a [Shaper]'s line. If held is false, the request itself first waits until the instant
// until.
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
