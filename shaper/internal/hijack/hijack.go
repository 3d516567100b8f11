// Package hijack wraps a ResponseWriter, so that an outer handler notices when an inner
// one hijacks the connection. The wrapper can do whatever else the ResponseWriter can.
package hijack

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync/atomic"
)

// A Func is the method of an [http.Hijacker].
type Func = func() (net.Conn, *bufio.ReadWriter, error)

// Until returns the ResponseWriter to pass to a handler in place of w, and a function
// to call when the handler has returned. release is called exactly once: when the
// handler hijacks the connection, or else when that function is called.
//
// A ResponseWriter that cannot be hijacked, as in HTTP/2, is returned unchanged.
func Until(w http.ResponseWriter, release func()) (http.ResponseWriter, func()) {
	if !hijackable(w) {
		return w, release
	}
	var over atomic.Bool
	end := func() {
		if !over.Swap(true) { // No lock is held while release runs, as it may be a caller's.
			release()
		}
	}
	return newHijacker(w, func(original Func) (net.Conn, *bufio.ReadWriter, error) {
		conn, buffered, err := original()
		if err == nil { // If the Hijack fails, the request has not ended.
			end()
		}
		return conn, buffered, err
	}).wrapped(), end
}

// Through returns a ResponseWriter that can do the same as w, and whose Hijack calls by
// with the Hijack of w.
//
// A ResponseWriter that cannot be hijacked, as in HTTP/2, is returned unchanged.
func Through(w http.ResponseWriter, by func(original Func) (net.Conn, *bufio.ReadWriter, error)) http.ResponseWriter {
	if !hijackable(w) {
		return w
	}
	return newHijacker(w, by).wrapped()
}

// hijackable reports whether [http.ResponseController] would find a Hijack.
func hijackable(w http.ResponseWriter) bool {
	for {
		switch t := w.(type) {
		case http.Hijacker:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return false
		}
	}
}

// A hijacker has a Hijack of its own in place of the ResponseWriter's.
type hijacker struct {
	original http.ResponseWriter
	by       func(original Func) (net.Conn, *bufio.ReadWriter, error)
}

func newHijacker(w http.ResponseWriter, by func(Func) (net.Conn, *bufio.ReadWriter, error)) *hijacker {
	return &hijacker{w, by}
}

// Hijack hijacks the connection.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.by(http.NewResponseController(h.original).Hijack)
}

// wrapped returns the ResponseWriter for the handler. Handlers find out by type
// assertions what a ResponseWriter can do, so of four interfaces the wrapper implements
// the same as the original. Only net/http asks for other methods, such as the unexported
// one that [http.MaxBytesReader] looks for.
func (h *hijacker) wrapped() http.ResponseWriter {
	const flushes, hijacks, reads, pushes = 1, 2, 4, 8
	type (
		flusher = interface {
			http.Flusher
			FlushError() error
		}
		reader = io.ReaderFrom
		pusher = http.Pusher
	)
	w := wrapper{h.original, h}
	f := bothFlushers{h.original}
	r, canRead := h.original.(reader)
	p, canPush := h.original.(pusher)
	can := 0
	if _, ok := h.original.(http.Flusher); ok {
		can |= flushes
	}
	if _, ok := h.original.(http.Hijacker); ok {
		can |= hijacks
	}
	if canRead {
		can |= reads
	}
	if canPush {
		can |= pushes
	}
	// Go makes no types at run time, so there is one type for each set of interfaces.
	switch can {
	case flushes:
		return struct {
			wrapper
			flusher
		}{w, f}
	case hijacks:
		return struct {
			wrapper
			http.Hijacker
		}{w, h}
	case flushes | hijacks:
		return struct {
			wrapper
			flusher
			http.Hijacker
		}{w, f, h}
	case reads:
		return struct {
			wrapper
			reader
		}{w, r}
	case flushes | reads:
		return struct {
			wrapper
			flusher
			reader
		}{w, f, r}
	case hijacks | reads:
		return struct {
			wrapper
			http.Hijacker
			reader
		}{w, h, r}
	case flushes | hijacks | reads: // net/http's own, of HTTP/1.
		return struct {
			wrapper
			flusher
			http.Hijacker
			reader
		}{w, f, h, r}
	case pushes:
		return struct {
			wrapper
			pusher
		}{w, p}
	case flushes | pushes:
		return struct {
			wrapper
			flusher
			pusher
		}{w, f, p}
	case hijacks | pushes:
		return struct {
			wrapper
			http.Hijacker
			pusher
		}{w, h, p}
	case flushes | hijacks | pushes:
		return struct {
			wrapper
			flusher
			http.Hijacker
			pusher
		}{w, f, h, p}
	case reads | pushes:
		return struct {
			wrapper
			reader
			pusher
		}{w, r, p}
	case flushes | reads | pushes:
		return struct {
			wrapper
			flusher
			reader
			pusher
		}{w, f, r, p}
	case hijacks | reads | pushes:
		return struct {
			wrapper
			http.Hijacker
			reader
			pusher
		}{w, h, r, p}
	case flushes | hijacks | reads | pushes:
		return struct {
			wrapper
			flusher
			http.Hijacker
			reader
			pusher
		}{w, f, h, r, p}
	}
	return w
}

// A wrapper has the methods that the ResponseWriters of all sets of interfaces have in common.
type wrapper struct {
	http.ResponseWriter
	hijacker *hijacker
}

// WriteString does the same as [io.WriteString] with the original.
func (w wrapper) WriteString(s string) (int, error) { return io.WriteString(w.ResponseWriter, s) }

// CloseNotify calls the method of the original. Each wrapper has it, as gin's writer asserts
// that there is one (gin.Context.Stream). Where the original has none, nothing is
// ever sent.
func (w wrapper) CloseNotify() <-chan bool {
	if c, ok := w.ResponseWriter.(interface{ CloseNotify() <-chan bool }); ok {
		return c.CloseNotify()
	}
	return nil
}

// Unwrap leads [http.ResponseController] to the original by way of an inner. So the
// controller finds the hijacker before a Hijack to which the original only unwraps.
func (w wrapper) Unwrap() http.ResponseWriter { return inner{w.ResponseWriter, w.hijacker} }

// An inner stands between a wrapper and the original.
type inner struct {
	http.ResponseWriter
	http.Hijacker
}

// Unwrap returns the original.
func (b inner) Unwrap() http.ResponseWriter { return b.ResponseWriter }

// bothFlushers has both methods that flush. [http.ResponseController] uses the second,
// as the first returns no error.
type bothFlushers struct{ original http.ResponseWriter }

// Flush calls the method of the original.
func (f bothFlushers) Flush() { f.original.(http.Flusher).Flush() }

// FlushError calls the method of the original, or its Flush.
func (f bothFlushers) FlushError() error { return http.NewResponseController(f.original).Flush() }
