// Package serverconn knows what net/http's server does with the connection of a
// request, for a handler that lets requests wait before it runs another: whether
// the client is still there, when reads and writes time out, and what becomes of
// a body that nobody has read.
package serverconn

import (
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
	return context.WithValue(ctx, connKey{}, c)
}

type connKey struct{}

// A Conn is what is known of the connection of one request, and what can be done
// to it. The goroutine of the request owns it.
type Conn struct {
	request    *http.Request
	controller *http.ResponseController
	server     *http.Server // nil: not known
	conn       net.Conn     // of HTTP/1, if NewContext was used; else nil
	body       *Body        // nil: the body is not read ahead
	outer      bool         // an outer Conn of the same request reads the body ahead
}

// Of returns the Conn of the request r, which is answered by w.
func Of(w http.ResponseWriter, r *http.Request) *Conn {
	c := &Conn{request: r, controller: http.NewResponseController(w)}
	c.server, _ = r.Context().Value(http.ServerContextKey).(*http.Server)
	c.body, c.outer = r.Body.(*Body)
	if r.ProtoMajor < 2 {
		c.conn, _ = r.Context().Value(connKey{}).(net.Conn)
	}
	return c
}

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
	// An outer handler may have read the body, or closed it. Here a read of nothing
	// never blocks, and its error tells.
	_, err := r.Body.Read(nil)
	return err == nil
}

// chunksRead reports whether a chunked body of net/http has been read to its end,
// or closed. A read could block, so chunksRead looks at fields that are not
// exported. If they get other names one day, the body counts as unread.
func chunksRead(body io.Reader) bool {
	for _, name := range [...]string{"sawEOF", "closed"} {
		f := reflect.ValueOf(body).Elem().FieldByName(name)
		if f.Kind() == reflect.Bool && f.Bool() {
			return true
		}
	}
	return false
}

// bodyKind is what a request body is made of.
type bodyKind int

const (
	// foreignBody is an outer handler's, which may do anything, or one of
	// net/http of which a read of nothing fetches or awaits something: that of
	// HTTP/2, or of "Expect: 100-continue".
	foreignBody bodyKind = iota
	limitedBody          // of http.MaxBytesReader
	plainBody            // as an HTTP/1 server makes it
	// bufferedBody is one that an outer handler has read, to log or verify it,
	// and put back.
	bufferedBody
)

// kindOf looks at the name of the type, as net/http exports none. A body that is
// not known is foreign: it is not read ahead, and counts as unread. If an outer
// handler has read it all the same, and put it back in a way that is not known
// here, the request ends when ReadTimeout passes.
func kindOf(body io.Reader) bodyKind {
	t := reflect.TypeOf(body)
	if t == bufferedType {
		switch reflect.ValueOf(body).Field(0).Interface().(type) {
		case *bytes.Reader, *bytes.Buffer, *strings.Reader:
			return bufferedBody
		}
		return foreignBody
	}
	if t.Kind() != reflect.Pointer || t.Elem().PkgPath() != "net/http" {
		return foreignBody
	}
	switch t.Elem().Name() {
	case "body":
		return plainBody
	case "maxBytesReader":
		return limitedBody
	}
	return foreignBody
}

// bufferedType is what io.NopCloser makes of a reader that can write itself to a
// writer, as readers of memory can.
var bufferedType = reflect.TypeOf(io.NopCloser(bytes.NewReader(nil)))

// canAsk reports whether the connection can be asked for its client.
func (c *Conn) canAsk() bool { return c.conn != nil && canAsk(c.conn) }

// setReadDeadline sets the deadline for reading the request.
func (c *Conn) setReadDeadline(t time.Time) error {
	if c.body != nil {
		return c.body.setDeadline(t)
	}
	return c.setConnReadDeadline(t)
}

// setConnReadDeadline sets the deadline for reads of the connection. Where a
// wrapped ResponseWriter hides it, the connection itself is used.
func (c *Conn) setConnReadDeadline(t time.Time) error {
	err := c.controller.SetReadDeadline(t)
	if err != nil && c.conn != nil {
		err = c.conn.SetReadDeadline(t)
	}
	return err
}

// setWriteDeadline sets the deadline for writing the response in the same way.
func (c *Conn) setWriteDeadline(t time.Time) error {
	err := c.controller.SetWriteDeadline(t)
	if err != nil && c.conn != nil {
		err = c.conn.SetWriteDeadline(t)
	}
	return err
}

// Suspend removes the server's timeouts from an HTTP/2 request that is about to
// wait, as its stream is reset in the moment in which one passes. In HTTP/1 a
// timeout matters to a later read or write only, and [Conn.Resume] is early enough.
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

// Resume restarts the server's timeouts after a wait, so that the time of the wait
// is not taken off them.
//
// The read deadline is set only if there is a body to read: without one it would
// lie under net/http's background read, and cancel the request while its handler
// runs. An error means that the ResponseWriter hides the deadlines, and that the
// connection is not known or is shared by many requests (HTTP/2). Then nothing can
// be done.
func (c *Conn) Resume(waited time.Duration) {
	if c.server == nil {
		return
	}
	now := time.Now()
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

// readTimeout returns the server's timeout for the whole of a request, or 0.
func (c *Conn) readTimeout() time.Duration { return max(c.server.ReadTimeout, 0) }

const (
	// drainTime is how long a refusal waits for the rest of a request's body.
	// net/http sends no response before it has read up to 256 KiB of it, which
	// a client may withhold for ever. With a deadline in the past some responses
	// get lost: a reset overtakes them.
	drainTime = 100 * time.Millisecond
	// drainLength is the longest body that is worth reading, as that keeps the
	// connection for the next request.
	drainLength = 64 << 10
)

// Refuse prepares for a response that comes without the handler having run: it
// must reach a client that is still sending. It may add to the header.
func (c *Conn) Refuse(h http.Header) {
	if c.body != nil {
		c.body.stop()
	}
	if c.request.ProtoMajor >= 2 || !c.unread() {
		return
	}
	// Where no deadline can be set, only the end of the connection keeps
	// net/http from waiting for the body.
	err := c.setReadDeadline(time.Now().Add(drainTime))
	n := c.request.ContentLength
	if err != nil || n < 0 || n > drainLength {
		h.Set("Connection", "close")
	}
}

// End ends what may still go on for the request. Call it when the handler has
// returned or panicked.
func (c *Conn) End() {
	if c.body != nil && !c.outer {
		c.body.stop()
	}
}
