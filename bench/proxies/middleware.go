package proxies

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"time"

	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/shaper"
)

// middlewareChild is the child process that is a proxy of a few lines of Go.
const middlewareChild = "proxies-middleware"

func init() { run.Register(middlewareChild, runMiddleware) }

// startMiddleware runs this program as the proxy.
func startMiddleware(ctx context.Context, _ *programs, s setting) (*process, error) {
	var input bytes.Buffer
	if err := gob.NewEncoder(&input).Encode(s); err != nil {
		return nil, err
	}
	return startProcess(ctx, s.Listen, input.Bytes(), func(ctx context.Context) (*exec.Cmd, error) {
		return run.Command(ctx, middlewareChild)
	})
}

// runMiddleware is the proxy. It ends when its input does, which is when the process
// that has started it ends.
func runMiddleware(in io.Reader, _ io.Writer) error {
	var s setting
	if err := gob.NewDecoder(in).Decode(&s); err != nil {
		return err
	}
	limits, err := shaper.ParseLimits(fmt.Sprintf("%d/s depth %d", s.Rate, s.Line))
	if err != nil {
		return err
	}
	line, err := shaper.New(limits)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.Listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: shaper.Middleware(line)(forward(s.Upstream)), ConnContext: shaper.ConnContext, ReadHeaderTimeout: time.Minute,
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(0)
	}()
	return server.Serve(listener)
}

// forward is httputil.ReverseProxy in its best documented use: it keeps enough
// connections to the upstream open, and its buffers.
func forward(upstream string) http.Handler {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = 0 // No bound, as with nginx's keepalive.
	transport.MaxIdleConnsPerHost = 1024
	transport.DisableCompression = true
	target := &url.URL{Scheme: "http", Host: upstream}
	return &httputil.ReverseProxy{
		Rewrite:    func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:  transport,
		BufferPool: &buffers{sync.Pool{New: func() any { return new([32 << 10]byte) }}},
	}
}

// buffers are those of a ReverseProxy, which otherwise makes one of 32 KiB for
// each response.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte       { return b.pool.Get().(*[32 << 10]byte)[:] }
func (b *buffers) Put(buffer []byte) { b.pool.Put((*[32 << 10]byte)(buffer)) }
