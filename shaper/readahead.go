package shaper

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// aheadLength is the longest body that is read ahead: what a waiter may cost
// beyond its goroutine.
const aheadLength = 64 << 10

// ahead is a request body that is read by a goroutine of its own while the
// request waits: once it has been read to its end, net/http watches the
// connection. It is also the body that the handler gets, and hands on what has
// come as it comes.
//
// A read with a deadline would do without the goroutine, but when one passes
// net/http cancels the request.
type ahead struct {
	body  io.Reader
	limit func(time.Time) error // sets the deadline for reads of body
	ended chan struct{}         // closed when all has been read, or none can be

	mu   sync.Mutex
	more sync.Cond
	data []byte
	err  error // why data does not grow any more
	read int   // by the handler
	gone bool  // the connection is a hijacker's
	// patience is how long the handler's first read that has to wait may take.
	// A deadline that passed before, in our own read, would cancel a handler
	// that does not care for the body.
	patience time.Duration
}

// fetchable says whether the body of the request may be read ahead: if it is
// small and of known length, and nobody's but net/http's. Others' would run
// beside the handler, http.MaxBytesReader's with its hand on the header.
func (c *connection) fetchable() bool {
	if c.ahead != nil {
		return false
	}
	n := c.request.ContentLength
	return 0 < n && n <= aheadLength && c.unread() && kindOf(c.request.Body) == plainBody
}

// readAhead begins to read the body of a request that is fetchable, or returns
// nil if it could not stop again.
func (c *connection) readAhead() *ahead {
	if c.limitReads(time.Time{}) != nil {
		return nil
	}
	// There is no memory yet for what has only been announced.
	a := &ahead{body: c.request.Body, limit: c.limitReads, ended: make(chan struct{})}
	a.more.L = &a.mu
	go a.fetch(make([]byte, min(c.request.ContentLength, 4<<10)))
	return a
}

// fetch reads the body, part by part. The goroutine ends with it, or when stop
// sets a deadline.
func (a *ahead) fetch(part []byte) {
	defer close(a.ended)
	for {
		n, err := a.body.Read(part)
		if a.note(part[:n], err); err != nil {
			return
		}
	}
}

// note takes what a read has brought.
func (a *ahead) note(part []byte, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.data, a.err = append(a.data, part...), err
	if err == io.EOF {
		// net/http has removed the deadline when its read came to the end, but
		// setDeadline may have been called since.
		_ = a.limit(time.Time{})
	}
	a.more.Broadcast()
}

// bodyFailed returns the error of reading the body ahead, if that is what has ended
// the context of a request whose client is there for an answer. It is nil if the
// client has gone.
func (c *connection) bodyFailed() error {
	a := c.ahead
	if a == nil {
		return nil
	}
	// net/http cancels the request whatever the error of a read is, and the error
	// is noted just after.
	select {
	case <-a.ended:
	case <-time.After(drainTime):
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil || a.err == io.EOF || errors.Is(a.err, io.ErrUnexpectedEOF) {
		return nil
	}
	if broken, ok := errors.AsType[net.Error](a.err); ok && !broken.Timeout() {
		return nil
	}
	return fmt.Errorf("%w: %w", errBody, a.err)
}

// errBody marks the error of a body that could not be read although its client
// is there.
var errBody = errors.New("shaper: body of the request could not be read")

// coming says whether more of the body may come.
func (a *ahead) coming() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err == nil
}

// setDeadline sets the deadline for the rest of the body. Once that has been
// read, the deadline would lie under net/http's own read, which watches the
// connection, and cancel the request. So then it does nothing.
func (a *ahead) setDeadline(t time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == io.EOF || a.gone {
		return nil
	}
	return a.limit(t)
}

// allow gives the handler time d for the rest of the body, from when it asks.
func (a *ahead) allow(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.patience = d
}

// stop ends the goroutine, within drainTime, before the request ends: net/http
// wants the body to itself then.
func (a *ahead) stop() {
	_ = a.setDeadline(time.Now().Add(drainTime))
	<-a.ended
}

// hijack hijacks the connection, for a handler that has not read all of the body:
// what has been read ahead comes first from the reader that is returned, as it does
// from net/http alone.
//
// If the body has not come to its end, the read that is under way has to be broken
// off. That cancels the request's context, as every error of a read does in net/http.
func (a *ahead) hijack(hijack hijackFunc) (net.Conn, *bufio.ReadWriter, error) {
	_ = a.setDeadline(time.Unix(1, 0))
	<-a.ended
	conn, buffered, err := hijack() // It removes all deadlines.
	if err != nil {
		_ = a.setDeadline(time.Time{})
		return conn, buffered, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = true
	rest := a.data[a.read:]
	a.read = len(a.data)
	if a.err != io.EOF {
		a.err = http.ErrHijacked
	}
	if len(rest) == 0 {
		return conn, buffered, nil
	}
	// All that is known already is made to lie in one buffer: who takes over the
	// connection may take what is Buffered, and then read the connection itself.
	known := len(rest) + buffered.Reader.Buffered()
	reader := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(rest), buffered.Reader), max(known, 4<<10))
	if _, err := reader.Peek(known); err != nil {
		return conn, buffered, err
	}
	return conn, bufio.NewReadWriter(reader, buffered.Writer), nil
}

// Read hands on what has come, and waits for more.
func (a *ahead) Read(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(p) > 0 && a.read == len(a.data) && a.err == nil {
		if a.patience > 0 {
			_ = a.limit(time.Now().Add(a.patience))
			a.patience = 0
		}
		a.more.Wait()
	}
	if a.read == len(a.data) {
		return 0, a.err
	}
	n := copy(p, a.data[a.read:])
	a.read += n
	return n, nil
}

// Close leaves the rest to net/http, which closes the body itself.
func (a *ahead) Close() error { return nil }
