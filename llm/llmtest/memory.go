package llmtest

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
)

// RoundTrip answers a request of a client. Bytes pass through memory, in the pieces in which they are written.
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) { return Client(s).RoundTrip(r) }

// Client returns the other end of a handler in memory, such as a gateway in front of a [Server].
func Client(h http.Handler) http.RoundTripper { return inMemory{h} }

type inMemory struct{ http.Handler }

func (m inMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	served := r.Clone(ctx)
	if served.Body == nil {
		served.Body = http.NoBody
	}
	reader, body := io.Pipe()
	w := &memory{header: http.Header{}, body: body, answered: make(chan *http.Response, 1)} // one response, once
	stop := context.AfterFunc(ctx, func() { body.CloseWithError(context.Cause(ctx)) })
	go func() { // Until the answer ends, or the client has gone.
		defer stop()
		defer func() {
			_ = served.Body.Close()
			switch p := recover(); {
			case p == nil:
				w.WriteHeader(http.StatusOK)
				_ = body.Close() // It never fails.
			case p == http.ErrAbortHandler:
				w.fail()
				_ = body.CloseWithError(io.ErrUnexpectedEOF)
			default:
				panic(p)
			}
		}()
		m.ServeHTTP(w, served)
	}()
	select {
	case response := <-w.answered:
		if response == nil {
			cancel()
			return nil, errBroken
		}
		response.Request = r
		response.Body = &closing{Reader: reader, close: func() error {
			cancel()
			return reader.Close()
		}}
		return response, nil
	case <-ctx.Done():
		cancel()
		return nil, context.Cause(ctx)
	}
}

var errBroken = errors.New("llmtest: the connection broke before the answer")

// A closing is a body.
type closing struct {
	io.Reader
	close func() error
}

func (c *closing) Close() error { return c.close() }

// A memory is the ResponseWriter of a request that does not come over a network.
type memory struct {
	header   http.Header
	body     *io.PipeWriter
	answered chan *http.Response // nil: the connection broke
	once     sync.Once
}

func (m *memory) Header() http.Header { return m.header }

func (m *memory) WriteHeader(status int) {
	m.once.Do(func() {
		m.answered <- &http.Response{
			Status:     http.StatusText(status),
			StatusCode: status,
			Proto:      "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header:        m.header.Clone(),
			ContentLength: -1,
		}
	})
}

func (m *memory) fail() {
	m.once.Do(func() { m.answered <- nil })
}

func (m *memory) Write(p []byte) (int, error) {
	m.WriteHeader(http.StatusOK)
	return m.body.Write(p)
}

// A writer writes an answer, compressed or not, and sends each piece at once.
type writer struct {
	http.ResponseWriter
	compressed bool
	z          *gzip.Writer
}

// begin writes the header.
func (w *writer) begin(contentType string) {
	w.Header().Set("Content-Type", contentType)
	if w.compressed {
		w.Header().Set("Content-Encoding", "gzip")
		w.z = gzip.NewWriter(w.ResponseWriter)
	}
	w.WriteHeader(http.StatusOK)
}

// whole writes an answer that is no stream.
func (w *writer) whole(document object) {
	w.begin("application/json")
	w.piece(encode(document))
}

// piece writes bytes and flushes them. If the client has gone, the handler ends.
func (w *writer) piece(p []byte) {
	out := io.Writer(w.ResponseWriter)
	if w.z != nil {
		out = w.z
	}
	_, err := out.Write(p)
	if err == nil && w.z != nil {
		err = w.z.Flush()
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

func (w *writer) close() {
	if w.z != nil && w.z.Close() != nil {
		panic(http.ErrAbortHandler)
	}
}
