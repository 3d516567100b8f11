// Package serverconn deals with the connection of a request in net/http's server, for
// a handler that lets requests wait before it runs another handler. It finds out
// whether the client is still there, restarts the timeouts of reads and writes, and
// reads or drops a body that no handler has read.
package serverconn

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"time"
)

// NewContext returns a context from which [Of] learns the connection of a
// request. It is a function for the field ConnContext of [http.Server].
func NewContext(ctx context.Context, c net.Conn) context.Context {
	server, _ := ctx.Value(http.ServerContextKey).(*http.Server)
	return &connContext{ctx, c, server}
}

// A connContext is the context of a connection, with the two values that [Of] needs: to look for
// them one after the other would take twice as long.
type connContext struct {
	context.Context
	conn   net.Conn
	server *http.Server // nil: not known
}

type connKey struct{}

// Value returns the connContext itself for a connKey.
func (c *connContext) Value(key any) any {
	if key == (connKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// A Conn is the connection of one request. The goroutine of the request owns it. [Of]
// makes one. It is all that the middleware allocates for a request that is admitted at
// once, so everything that the request needs is in it. Each request that waits has
// one, so it is small: 144 bytes.
type Conn struct {
	writer  http.ResponseWriter
	request *http.Request
	server  *http.Server // nil: not known
	conn    net.Conn     // of HTTP/1, if NewContext was used; else nil
	body    *Body        // nil: the body is not read ahead
	wait    wait         // see PeerContext
	outer   bool         // an outer Conn of the same request reads the body ahead
}

// Of returns the Conn of the request r, whose ResponseWriter is w.
func Of(w http.ResponseWriter, r *http.Request) *Conn {
	c := &Conn{writer: w, request: r}
	c.body, c.outer = r.Body.(*Body)
	known, ok := r.Context().Value(connKey{}).(*connContext)
	if !ok {
		c.server, _ = r.Context().Value(http.ServerContextKey).(*http.Server)
		return c
	}
	c.server = known.server
	if r.ProtoMajor < 2 {
		c.conn = known.conn
	}
	return c
}

// Writer returns the ResponseWriter of the request.
func (c *Conn) Writer() http.ResponseWriter { return c.writer }

// Request returns the request.
func (c *Conn) Request() *http.Request { return c.request }

// unread reports whether some of the body may not have been read yet. While that
// is so, net/http does not watch the connection of an HTTP/1 request.
func (c *Conn) unread() bool {
	if c.body != nil {
		return c.body.coming()
	}
	r := c.request
	if r.ContentLength == 0 || r.Body == nil || r.Body == http.NoBody {
		return false
	}
	kind := kindOf(r.Body)
	if kind == bufferedBody {
		return false
	}
	if r.ContentLength < 0 && kind == plainBody {
		return !chunksRead(r.Body)
	}
	if r.ContentLength < 0 || kind == foreignBody {
		return true // A read of nothing could block, or ask the client for the body.
	}
	// An outer handler may have read the body, or closed it. A read of nothing never
	// blocks here, and then returns an error.
	_, err := r.Body.Read(nil)
	return err == nil
}

// chunksRead reports whether a chunked body of net/http has been read to its end,
// or closed. A read could block, so chunksRead looks at unexported fields. If a Go
// release renames them, the body counts as unread.
func chunksRead(body io.Reader) bool {
	for _, name := range [...]string{"sawEOF", "closed"} {
		f := reflect.ValueOf(body).Elem().FieldByName(name)
		if f.Kind() == reflect.Bool && f.Bool() {
			return true
		}
	}
	return false
}

// bodyKind says which package made a request body, and so how it may be read.
type bodyKind int

const (
	// foreignBody is the body of an outer handler, which may do anything, or one of
	// net/http for which even a read of nothing may wait or ask the client to send:
	// the body of HTTP/2, or of "Expect: 100-continue".
	foreignBody bodyKind = iota
	limitedBody          // of http.MaxBytesReader
	plainBody            // as an HTTP/1 server makes it
	// bufferedBody is a body that an outer handler has read, to log or verify it,
	// and put back: in one of the ways that are usual, or as a body that says so by a
	// method HasCome() bool.
	bufferedBody
)

// kindOf returns the kind of a body by its type. A body of an unknown type is foreign: it is
// not read ahead, and counts as unread. If an outer handler has read such a body and put it
// back in a way that is not known here, the request ends when ReadTimeout passes.
func kindOf(body io.Reader) bodyKind {
	switch reflect.TypeOf(body) {
	case plainType:
		return plainBody
	case limitedType:
		return limitedBody
	case bufferedType:
		switch reflect.ValueOf(body).Field(0).Interface().(type) {
		case *bytes.Reader, *bytes.Buffer, *strings.Reader:
			return bufferedBody
		}
	default:
		if b, ok := body.(interface{ HasCome() bool }); ok && b.HasCome() {
			return bufferedBody
		}
	}
	return foreignBody
}

// net/http and io do not export these types. bufferedType is the one that [io.NopCloser]
// returns for an [io.WriterTo], which readers of memory are.
var (
	plainType    = typeOfPlainBody()
	limitedType  = reflect.TypeOf(http.MaxBytesReader(nil, http.NoBody, 0))
	bufferedType = reflect.TypeOf(io.NopCloser(bytes.NewReader(nil)))
)

// typeOfPlainBody returns the type of the body of a request that was read as a server does.
func typeOfPlainBody() reflect.Type {
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na")))
	if err != nil {
		return nil
	}
	return reflect.TypeOf(r.Body)
}

// canAsk reports whether the connection can be asked if its client is still there.
func (c *Conn) canAsk() bool { return c.conn != nil && canAsk(c.conn) }

// setReadDeadline sets the deadline for reading the request.
func (c *Conn) setReadDeadline(t time.Time) error {
	if c.body != nil {
		return c.body.setDeadline(t)
	}
	return c.setConnReadDeadline(t)
}

// setConnReadDeadline sets the deadline for reads of the connection. If a wrapped
// ResponseWriter hides it, the connection's own method is used.
func (c *Conn) setConnReadDeadline(t time.Time) error {
	err := http.NewResponseController(c.writer).SetReadDeadline(t)
	if err != nil && c.conn != nil {
		err = c.conn.SetReadDeadline(t)
	}
	return err
}

// setWriteDeadline sets the deadline for writing the response, in the same way.
func (c *Conn) setWriteDeadline(t time.Time) error {
	err := http.NewResponseController(c.writer).SetWriteDeadline(t)
	if err != nil && c.conn != nil {
		err = c.conn.SetWriteDeadline(t)
	}
	return err
}

// Suspend removes the server's timeouts from an HTTP/2 request that is about to wait,
// because net/http resets its stream as soon as one passes. In HTTP/1 a timeout matters
// only to a later read or write, and [Conn.Resume] is early enough.
func (c *Conn) Suspend() {
	if !c.suspends() {
		return
	}
	if c.server.WriteTimeout > 0 {
		_ = c.setWriteDeadline(time.Time{})
	}
	if c.readTimeout() > 0 && c.unread() {
		_ = c.setReadDeadline(time.Time{})
	}
}

func (c *Conn) suspends() bool { return c.server != nil && c.request.ProtoMajor >= 2 }

// Resume restarts the server's timeouts after a wait, so that the wait does not use
// them up. How long it was matters only if the request may have a body. now is the time, or
// zero if the caller has not read the clock.
//
// The read deadline is set only if there is a body to read: without one it would apply
// to net/http's background read, and cancel the request while its handler runs. Errors
// of setting a deadline are ignored. They mean that the ResponseWriter hides the
// deadlines, and that the connection is not known or is shared by many requests
// (HTTP/2): then nothing can be done.
func (c *Conn) Resume(now time.Time, waited time.Duration) {
	if c.server == nil || c.server.WriteTimeout <= 0 && c.readTimeout() == 0 {
		return
	}
	if now.IsZero() {
		now = time.Now()
	}
	if d := c.server.WriteTimeout; d > 0 {
		_ = c.setWriteDeadline(now.Add(d))
	}
	if d := c.readTimeout(); d > 0 && (waited > brief || c.body != nil || c.suspends()) && c.unread() {
		if c.body != nil {
			c.body.restartTimeout(d)
			return
		}
		_ = c.setReadDeadline(now.Add(d))
	}
}

// MayHaveBody reports whether the request may have a body.
func (c *Conn) MayHaveBody() bool { return c.request.ContentLength != 0 }

// readTimeout returns the server's timeout for the whole of a request, or 0.
func (c *Conn) readTimeout() time.Duration { return max(c.server.ReadTimeout, 0) }

const (
	// drainTime is how long a refusal waits for the rest of a request's body.
	// net/http sends no response before it has read up to 256 KiB of the body, which
	// a client may withhold for ever. If the deadline were in the past, a reset could
	// overtake the response, which would be lost.
	drainTime = 100 * time.Millisecond
	// drainLength is the longest body that is worth reading in order to keep the
	// connection for the next request.
	drainLength = 64 << 10
)

// Refuse prepares for a response without the handler, which must reach a client that is
// still sending. It may add a field to the header.
func (c *Conn) Refuse(h http.Header) {
	if c.body != nil {
		c.body.stop()
	}
	if c.request.ProtoMajor >= 2 || !c.MayHaveBody() {
		return
	}
	if c.body == nil && hasCome(c.request.Body) || !c.unread() {
		return // net/http need not wait for the rest.
	}
	// If no deadline can be set, only "Connection: close" keeps net/http from waiting
	// for the body.
	err := c.setReadDeadline(time.Now().Add(drainTime))
	n := c.request.ContentLength
	if err != nil || n < 0 || n > drainLength {
		h.Set("Connection", "close")
	}
}

// End ends everything that may still go on for the request. Call it when the handler has returned
// or panicked.
func (c *Conn) End() {
	c.EndWait()
	if c.body != nil && !c.outer {
		c.body.stop()
	}
}
