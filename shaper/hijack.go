package shaper

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
)

// untilHijacked returns the ResponseWriter to pass to a handler in place of w, and
// the function to call when the handler has returned. Together they call release
// once: when the handler hijacks the connection, else when that function is called.
//
// A ResponseWriter that cannot be hijacked, as in HTTP/2, is returned unchanged.
func untilHijacked(w http.ResponseWriter, release func()) (http.ResponseWriter, func()) {
	if !hijackable(w) {
		return w, release
	}
	var once sync.Once
	end := func() { once.Do(release) }
	return interceptHijack(w, func(hijack hijackFunc) (net.Conn, *bufio.ReadWriter, error) {
		conn, buffered, err := hijack()
		if err == nil { // If it fails the request has not ended.
			end()
		}
		return conn, buffered, err
	}), end
}

// A hijackFunc is the Hijack of an http.Hijacker.
type hijackFunc = func() (net.Conn, *bufio.ReadWriter, error)

// interceptHijack returns a ResponseWriter that does what w does, but for Hijack,
// which calls by with that of w. A ResponseWriter that cannot be hijacked, as in
// HTTP/2, is returned unchanged.
func interceptHijack(w http.ResponseWriter, by func(hijack hijackFunc) (net.Conn, *bufio.ReadWriter, error)) http.ResponseWriter {
	if !hijackable(w) {
		return w
	}
	return (&hijacker{w, by}).wrapped()
}

// hijackable says whether http.ResponseController would find a Hijack.
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

// A hijacker intercepts the Hijack of a ResponseWriter.
type hijacker struct {
	original http.ResponseWriter
	by       func(hijackFunc) (net.Conn, *bufio.ReadWriter, error)
}

// Hijack hijacks the connection.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.by(http.NewResponseController(h.original).Hijack)
}

// wrapped is the original as the handler gets it. Handlers ask by type
// assertions what a ResponseWriter can do, so of the four interfaces that they
// ask for it has those that the original has. (Others are only asked for by
// net/http, and by methods that nobody else can have, as by http.MaxBytesReader:
// see Middleware.)
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
	w := wrapping{h.original, h}
	f := flushing{h.original}
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
	// Go makes no types at run time, so there is one for each set.
	switch can {
	case flushes:
		return struct {
			wrapping
			flusher
		}{w, f}
	case hijacks:
		return struct {
			wrapping
			http.Hijacker
		}{w, h}
	case flushes | hijacks:
		return struct {
			wrapping
			flusher
			http.Hijacker
		}{w, f, h}
	case reads:
		return struct {
			wrapping
			reader
		}{w, r}
	case flushes | reads:
		return struct {
			wrapping
			flusher
			reader
		}{w, f, r}
	case hijacks | reads:
		return struct {
			wrapping
			http.Hijacker
			reader
		}{w, h, r}
	case flushes | hijacks | reads: // net/http's own, of HTTP/1.
		return struct {
			wrapping
			flusher
			http.Hijacker
			reader
		}{w, f, h, r}
	case pushes:
		return struct {
			wrapping
			pusher
		}{w, p}
	case flushes | pushes:
		return struct {
			wrapping
			flusher
			pusher
		}{w, f, p}
	case hijacks | pushes:
		return struct {
			wrapping
			http.Hijacker
			pusher
		}{w, h, p}
	case flushes | hijacks | pushes:
		return struct {
			wrapping
			flusher
			http.Hijacker
			pusher
		}{w, f, h, p}
	case reads | pushes:
		return struct {
			wrapping
			reader
			pusher
		}{w, r, p}
	case flushes | reads | pushes:
		return struct {
			wrapping
			flusher
			reader
			pusher
		}{w, f, r, p}
	case hijacks | reads | pushes:
		return struct {
			wrapping
			http.Hijacker
			reader
			pusher
		}{w, h, r, p}
	case flushes | hijacks | reads | pushes:
		return struct {
			wrapping
			flusher
			http.Hijacker
			reader
			pusher
		}{w, f, h, r, p}
	}
	return w
}

// wrapping is what every wrapper has.
type wrapping struct {
	http.ResponseWriter
	hijacker *hijacker
}

// WriteString is what io.WriteString does with the original.
func (w wrapping) WriteString(s string) (int, error) { return io.WriteString(w.ResponseWriter, s) }

// CloseNotify is that of the original. Each wrapper has it, as gin's writer asserts
// that there is one (gin.Context.Stream); where the original has none it never
// tells.
func (w wrapping) CloseNotify() <-chan bool {
	if c, ok := w.ResponseWriter.(interface{ CloseNotify() <-chan bool }); ok {
		return c.CloseNotify()
	}
	return nil
}

// Unwrap is how http.ResponseController comes to the original: by way of the
// hijacker, which it meets before one that the original hides but unwraps to.
func (w wrapping) Unwrap() http.ResponseWriter { return beneath{w.ResponseWriter, w.hijacker} }

// beneath lies between a wrapper and the original.
type beneath struct {
	http.ResponseWriter
	http.Hijacker
}

// Unwrap returns the original.
func (b beneath) Unwrap() http.ResponseWriter { return b.ResponseWriter }

// flushing flushes in both ways. The second is for http.ResponseController, which
// would see no error of the first.
type flushing struct{ original http.ResponseWriter }

// Flush is that of the original.
func (f flushing) Flush() { f.original.(http.Flusher).Flush() }

// FlushError is that of the original, or its Flush.
func (f flushing) FlushError() error { return http.NewResponseController(f.original).Flush() }
