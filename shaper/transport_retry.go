package shaper

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// isRefusal says whether an answer, which asks for that hold, means that the
// request was not processed.
func isRefusal(a *http.Response, hold time.Duration) bool {
	return a.StatusCode == http.StatusTooManyRequests || a.StatusCode == http.StatusServiceUnavailable && hold > 0
}

// sendAgain sends a request of cost n that was refused, and asked to hold back
// from now on, once more, or returns the refusal if it can't be sent.
//
// GetBody, the bodies and the Limiter are other people's code, which may panic:
// then both bodies are closed, and with the first the place is given back.
func (t Transport) sendAgain(r *http.Request, n int, refusal *http.Response, hold time.Duration) (*http.Response, error) {
	ctx, until := r.Context(), time.Now().Add(hold)
	if deadline, timed := ctx.Deadline(); timed && !until.Before(deadline) {
		return refusal, nil // As a Shaper has it, and while the answer is whole.
	}
	settled := false
	defer func() {
		if !settled {
			closeBody(refusal.Body)
		}
	}()
	// Before the wait, as a slot is not to be spent on a body that can't be had.
	body, ok := bodyAgain(r)
	if !ok {
		settled = true
		return refusal, nil
	}
	sent := false
	defer func() {
		if !sent {
			closeBody(body)
		}
	}()
	ok = detach(refusal)
	settled = true
	if !ok {
		return refusal, nil
	}
	release, err := t.reenter(ctx, n, until)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, err
	default:
		return refusal, nil
	}
	again := r.Clone(ctx)
	again.Body = body
	sent = true
	answer, _, err := t.send(again, release)
	return answer, err
}

// bodyAgain is the body of a request that has been sent, if it can be had again.
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

// How much of a refusal is kept in memory while its request waits, and how long
// it may take to come. Refusals are short and come at once; of another it is not
// known how long it is, or takes.
const (
	maxDetached  = 64 << 10
	maxDetaching = 5 * time.Second
)

var errCutOff = fmt.Errorf("shaper: the refusal was cut off, as its body took longer than %v to come", maxDetaching)

// detach reads the body of an answer into memory, so that its connection and the
// place of its request are free while the answer may still be wanted. It says
// whether the body was short enough; the answer can be read in any case.
//
// A body that does not come in time is closed, which ends its reading. To leave it
// open would keep the answer whole and the retry from happening, and an upstream
// in trouble, which is the one that refuses, is the one that is slow.
func detach(a *http.Response) bool {
	body := a.Body
	if body == nil {
		return true
	}
	cut := make(chan any) // Somebody receives whenever the timer has fired.
	timer := time.AfterFunc(maxDetaching, func() {
		defer func() { cut <- recover() }()
		closeBody(body)
	})
	reading := true
	defer func() {
		if reading && !timer.Stop() {
			<-cut // Read has panicked, and the body is about to be closed again.
		}
	}()
	start, err := io.ReadAll(io.LimitReader(body, maxDetached+1))
	reading = false
	switch {
	case !timer.Stop():
		if p := <-cut; p != nil {
			panic(p) // Here, where it can be recovered from.
		}
		err = errCutOff
	case len(start) > maxDetached:
		a.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(start), body), body}
		return false
	default:
		closeBody(body)
	}
	a.Body = io.NopCloser(io.MultiReader(bytes.NewReader(start), failedReader{err}))
	return true
}

// failedReader is the end of a body whose reading has failed, or not.
type failedReader struct{ err error }

func (f failedReader) Read([]byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	return 0, io.EOF
}

// reenter lets a request that was asked to hold back until then wait for the
// Limiter again, at the head of a Shaper's line.
func (t Transport) reenter(ctx context.Context, n int, until time.Time) (release func(), err error) {
	if !canHold(t.Limiter) {
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
	return t.enter(ctx, n, reentry)
}
