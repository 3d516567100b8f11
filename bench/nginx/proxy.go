package nginx

import (
	"context"
	"encoding/gob"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/shaper"
)

// proxyChild is the child process that is compared with nginx.
const proxyChild = "nginx-proxy"

func init() { run.Register(proxyChild, runProxy) }

// proxySettings are its input.
type proxySettings struct {
	Listen   string
	Upstream string
	Limits   string // as [shaper.ParseLimits] takes them; empty: no shaper
	Stamp    bool   // tell the upstream when each request entered the line
}

// runProxy is the proxy. It ends when its input does, which is when the process
// that has started it ends.
func runProxy(in io.Reader, _ io.Writer) error {
	var s proxySettings
	if err := gob.NewDecoder(in).Decode(&s); err != nil {
		return err
	}
	handler, err := s.handler()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.Listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ConnContext: shaper.ConnContext, ReadHeaderTimeout: time.Minute}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(0)
	}()
	return server.Serve(listener)
}

// handler is httputil.ReverseProxy in its best documented use: it keeps enough
// connections to the upstream open, and its buffers.
func (s proxySettings) handler() (http.Handler, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = 0 // No bound, as with nginx's keepalive.
	transport.MaxIdleConnsPerHost = 1024
	transport.DisableCompression = true
	target := &url.URL{Scheme: "http", Host: s.Upstream}
	forward := http.Handler(&httputil.ReverseProxy{
		Rewrite:    func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:  transport,
		BufferPool: &buffers{sync.Pool{New: func() any { return new([32 << 10]byte) }}},
	})
	if s.Limits == "" {
		return forward, nil
	}
	limits, err := shaper.ParseLimits(s.Limits)
	if err != nil {
		return nil, err
	}
	var opts []shaper.Option
	if s.Stamp {
		opts = append(opts, shaper.WithTrace(&shaper.Trace{Departed: noteEntry}))
		forward = stampEntry(forward)
	}
	l, err := shaper.New(limits, opts...)
	if err != nil {
		return nil, err
	}
	handler := shaper.Middleware(l)(forward)
	if s.Stamp {
		handler = prepareEntry(handler)
	}
	return handler, nil
}

// buffers are those of a ReverseProxy, which otherwise makes one of 32 KiB for
// each response.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte       { return b.pool.Get().(*[32 << 10]byte)[:] }
func (b *buffers) Put(buffer []byte) { b.pool.Put((*[32 << 10]byte)(buffer)) }

type entryKey struct{}

// prepareEntry makes room in the request's context for the instant at which the
// request enters the line.
func prepareEntry(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), entryKey{}, new(time.Time))))
	})
}

// noteEntry writes that instant, after the wait.
func noteEntry(ctx context.Context, e shaper.Event) {
	if entry, ok := ctx.Value(entryKey{}).(*time.Time); ok {
		*entry = e.At.Add(-e.Waited)
	}
}

// stampEntry sends the instant to the upstream.
func stampEntry(next http.Handler) http.Handler {
	began := time.Now()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if entry, ok := r.Context().Value(entryKey{}).(*time.Time); ok {
			r.Header.Set(enteredHeader, strconv.FormatInt(int64(entry.Sub(began)), 10))
		}
		next.ServeHTTP(w, r)
	})
}
