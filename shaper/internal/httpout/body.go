// Package httpout handles the bodies and the contexts of requests of a client that wait for a
// Limiter. The Transport says when a request waits, and for what.
package httpout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// ReleaseWithBody makes the end of the response's body call release. It reports
// whether there is a body that will.
func ReleaseWithBody(response *http.Response, method string, release func()) bool {
	if !hasBody(response, method) {
		return false
	}
	body := &releasingBody{ReadCloser: response.Body, release: release}
	response.Body = body
	if w, ok := body.ReadCloser.(io.Writer); ok {
		response.Body = releasingConn{body, w}
	}
	return true
}

// hasBody reports whether a response has a body that can be read. A ContentLength of 0
// means an empty body only in HTTP/2. In HTTP/1 net/http marks that by
// [http.NoBody], and an upgraded connection has the length 0 too.
func hasBody(response *http.Response, method string) bool {
	switch {
	case response.Body == nil, response.Body == http.NoBody, method == http.MethodHead,
		response.StatusCode == http.StatusNoContent, response.StatusCode == http.StatusNotModified:
		return false
	}
	return response.ProtoMajor != 2 || response.ContentLength != 0
}

// A releasingBody is the body of a response. The request is in flight until the body
// ends.
type releasingBody struct {
	io.ReadCloser
	over    atomic.Bool // A body may be closed while it is read, and more than once.
	release func()
}

// end calls release once. It is no [sync.Once], whose lock a caller's function in release would meet that closes the
// body.
func (b *releasingBody) end() {
	if !b.over.Swap(true) {
		b.release()
	}
}

// Read calls release when there is nothing more to read.
func (b *releasingBody) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	if err != nil {
		b.end()
	}
	return n, err
}

// Close calls release.
func (b *releasingBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// A releasingConn is a releasingBody that can be written to: after 101 Switching
// Protocols the body is the connection.
type releasingConn struct {
	*releasingBody
	io.Writer
}

// CloseWrite closes the sending half of the connection. Proxies call it on the body of
// net/http.
func (c releasingConn) CloseWrite() error {
	if w, ok := c.ReadCloser.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return fmt.Errorf("shaper: CloseWrite: %w", http.ErrNotSupported)
}

// CloseBody closes a body, which may be nil.
func CloseBody(body io.Closer) {
	if body != nil {
		_ = body.Close() // Nothing could be done about an error.
	}
}

// BodyAgain returns a second body for a request that has been sent already; ok reports
// whether there is one.
func BodyAgain(r *http.Request) (body io.ReadCloser, ok bool) {
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

// Detach reads the body of a response into memory. Then the connection is free and the
// request is not in flight, while the response can still be returned. Detach reports
// whether the body was short enough; the response can be read in any case.
//
// A body that does not arrive in time is closed, which ends its reading. Leaving it
// open would keep the response whole but prevent the retry, and an upstream that is in
// trouble both refuses requests and is slow.
func Detach(response *http.Response) bool {
	body := response.Body
	if body == nil {
		return true
	}
	cut := make(chan any) // It needs no buffer: if the timer fires, detach receives.
	timer := time.AfterFunc(maxDetaching, func() {
		defer func() { cut <- recover() }()
		CloseBody(body)
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
		CloseBody(body)
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
