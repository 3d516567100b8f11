package shaper

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

// ConnContext belongs in the field of the same name of an http.Server:
//
//	server := &http.Server{Handler: handler, ConnContext: shaper.ConnContext}
//
// It lets Middleware ask the connection whether its client is still there.
// net/http does not cancel the context of an HTTP/1 request while its body is
// unread (golang/go#23262), so without it an upload whose client has gone keeps
// its place in the line.
//
// Only the connection of a request that waits is asked: a request that may leave
// at once is served. After a wait a client that has closed only its sending half
// (nc -N, Node's socket.end(request)) counts as gone, as net/http has it: the
// connection looks the same in both cases.
//
// The asking is a ppoll(2) and works on Linux. Elsewhere, and on connections
// without a file descriptor, ConnContext does nothing, and Middleware reads
// small bodies ahead instead.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

type connKey struct{}

// connection is what Middleware knows of the connection of a request, and what
// it may do to it.
type connection struct {
	request    *http.Request
	controller *http.ResponseController
	server     *http.Server // nil: not known
	conn       net.Conn     // of HTTP/1, if ConnContext was set; else nil
	ahead      *ahead       // the body, if it is read ahead; else nil
	outer      bool         // it is an outer Middleware that does so
}

func connectionOf(w http.ResponseWriter, r *http.Request) *connection {
	c := &connection{request: r, controller: http.NewResponseController(w)}
	c.server, _ = r.Context().Value(http.ServerContextKey).(*http.Server)
	c.ahead, c.outer = r.Body.(*ahead)
	if r.ProtoMajor < 2 {
		c.conn, _ = r.Context().Value(connKey{}).(net.Conn)
	}
	return c
}

// unread says whether some of the body of the request may still be to be read.
// While that is so, net/http does not watch the connection of an HTTP/1 request.
func (c *connection) unread() bool {
	if c.ahead != nil {
		return c.ahead.coming()
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
		return true // Asking such a body could block, or fetch it.
	}
	// An outer handler may have read it, or closed it. A read of nothing never
	// blocks here, and tells.
	_, err := r.Body.Read(nil)
	return err == nil
}

// chunksRead says whether a chunked body of net/http has been read to its end,
// or closed. Asking it by a read could block, so its fields are looked at, by
// their names, as none are exported; under others it counts as not read.
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
	// net/http that a read of nothing fetches or waits for: that of HTTP/2, or
	// of "Expect: 100-continue".
	foreignBody bodyKind = iota
	limitedBody          // of http.MaxBytesReader
	plainBody            // as an HTTP/1 server makes it
	// bufferedBody is one that an outer handler has read, to log or verify it,
	// and put back.
	bufferedBody
)

// kindOf tells by the name of the type, as net/http exports none. A body that
// is not known is foreign: it is not read ahead, and counts as not read yet. If
// an outer handler has read it after all, and has put back what it read in a
// way that is not known here, ReadTimeout ends the request when it passes.
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

// bufferedType is what io.NopCloser makes of that which can write itself to
// somewhere, as what is in memory can.
var bufferedType = reflect.TypeOf(io.NopCloser(bytes.NewReader(nil)))

// canAsk says whether the connection can be asked for its client.
func (c *connection) canAsk() bool { return c.conn != nil && canAsk(c.conn) }

// setReadDeadline sets the deadline for reading the request.
func (c *connection) setReadDeadline(t time.Time) error {
	if c.ahead != nil {
		return c.ahead.setDeadline(t)
	}
	return c.limitReads(t)
}

// limitReads sets the deadline for reads of the connection. Where a wrapped
// ResponseWriter hides it, the connection itself is used.
func (c *connection) limitReads(t time.Time) error {
	err := c.controller.SetReadDeadline(t)
	if err != nil && c.conn != nil {
		err = c.conn.SetReadDeadline(t)
	}
	return err
}

// setWriteDeadline does the same for writing the answer.
func (c *connection) setWriteDeadline(t time.Time) error {
	err := c.controller.SetWriteDeadline(t)
	if err != nil && c.conn != nil {
		err = c.conn.SetWriteDeadline(t)
	}
	return err
}

// suspend takes the server's time-outs off a request that is about to wait, in
// HTTP/2, where a stream is reset in the moment in which one passes. In HTTP/1
// it only matters to a later read or write, and resume is early enough.
func (c *connection) suspend() {
	if !c.suspends() {
		return
	}
	if c.server.WriteTimeout > 0 {
		_ = c.setWriteDeadline(time.Time{})
	}
	if readTimeout(c.server) > 0 && c.unread() {
		_ = c.setReadDeadline(time.Time{})
	}
}

func (c *connection) suspends() bool { return c.server != nil && c.request.ProtoMajor >= 2 }

// resume starts the server's time-outs anew after a wait, so that the time in
// the line costs the request nothing.
//
// The read deadline is left alone unless there is a body to read: without one,
// it would lie under net/http's background read and cancel the request in
// mid-handler. An error means that the ResponseWriter hides the deadlines, and
// that no ConnContext was set or the connection is many requests' (HTTP/2); then
// there is nothing to be done.
func (c *connection) resume(waited bool) {
	if c.server == nil {
		return
	}
	now := time.Now()
	if d := c.server.WriteTimeout; d > 0 {
		_ = c.setWriteDeadline(now.Add(d))
	}
	if d := readTimeout(c.server); d > 0 && (waited || c.suspends()) && c.unread() {
		if c.ahead != nil {
			c.ahead.allow(d)
			return
		}
		_ = c.setReadDeadline(now.Add(d))
	}
}

// readTimeout is the server's time-out for the whole of a request, or 0.
func readTimeout(s *http.Server) time.Duration { return max(s.ReadTimeout, 0) }

const (
	// drainTime is how long a refusal waits for the rest of a request's body.
	// net/http sends no answer before it has read up to 256 KiB of it, which
	// a client may withhold for ever. Of deadlines in the past some answers
	// get lost: a reset overtakes them.
	drainTime = 100 * time.Millisecond
	// drainLength is up to which length a body is worth the reading, as it
	// saves the connection for the next request.
	drainLength = 64 << 10
)

// end ends what may still go on for the request. It is called when the handler has
// returned or panicked.
func (c *connection) end() {
	if c.ahead != nil && !c.outer {
		c.ahead.stop()
	}
}

// refuse prepares for an answer without the handler: it must reach a client who
// is still sending.
func (c *connection) refuse(h http.Header) {
	if c.ahead != nil {
		c.ahead.stop()
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
