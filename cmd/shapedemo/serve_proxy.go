package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"example.com/leakybucket/shaper"
)

// healthPath is answered without waiting in the line, so that scripts can wait
// for the demo to start, and load balancers see when it drains.
const healthPath = "/healthz"

// A proxy is a reverse proxy with a shaper in front.
type proxy struct {
	shaper   *shaper.Shaper
	url      string
	requests requestLogs

	server         *http.Server
	transport      *http.Transport
	takesPauses    atomic.Bool   // a 503 of the upstream that asks for a pause holds the line
	upstreamErrors atomic.Uint64 // requests that left, but got no response from the upstream

	done     chan struct{} // closed when the server has ended
	serveErr error         // with what; to be read after that
}

// startProxy puts a shaper in front of target and serves on l. Requests pass the
// outer middleware before they come to the shaper, the first one first. The caller
// must close the proxy.
func startProxy(l net.Listener, limits shaper.Limits, target *url.URL, outer ...func(http.Handler) http.Handler) (*proxy, error) {
	s, err := shaper.New(limits, shaper.WithName("shapedemo"), shaper.WithTrace(traceRequests()))
	if err != nil {
		return nil, err
	}
	p := &proxy{shaper: s, url: "http://" + reachable(l.Addr()), done: make(chan struct{})}
	p.transport = http.DefaultTransport.(*http.Transport).Clone()
	p.transport.MaxIdleConns = 0 // Unlimited: the shaper limits what goes upstream.
	p.transport.MaxIdleConnsPerHost = 256
	p.transport.DisableCompression = true // Compression is between the client and the upstream.
	p.server = &http.Server{
		Handler:           p.handler(target, outer),
		ConnContext:       shaper.ConnContext, // To notice clients that disconnect during an upload.
		ReadHeaderTimeout: 10 * time.Second,
		// These two may be shorter than the wait, which does not count.
		ReadTimeout:  10 * time.Second,
		WriteTimeout: 30 * time.Second,
		IdleTimeout:  time.Minute,
		ErrorLog:     log.New(io.Discard, "", 0),
	}
	go func() {
		defer close(p.done)
		if err := p.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			p.serveErr = err
		}
	}()
	return p, nil
}

// handler returns the handler of the proxy. From the outside in, it records the
// arrival, passes the outer middleware, waits in the shaper, and forwards the
// request to target.
func (p *proxy) handler(target *url.URL, outer []func(http.Handler) http.Handler) http.Handler {
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			// The query unchanged: the upstream may accept one that net/url rejects.
			r.Out.URL.RawQuery = r.In.URL.RawQuery
			r.SetURL(target)
			r.SetXForwarded()
		},
		Transport:      p.transport,
		ModifyResponse: p.takePause,
		ErrorHandler:   p.upstreamFailed,
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	shaped := shaper.Middleware(p.shaper,
		shaper.WithCost(costOf),
		shaper.WithServerTiming(),
	)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isHealthCheck(r) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = io.WriteString(w, "ok\n")
			return
		}
		forward.ServeHTTP(w, r)
	}))
	for _, middleware := range slices.Backward(outer) {
		shaped = middleware(shaped)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entry := &requestLog{arrived: time.Now()}
		defer p.requests.add(entry, r.RemoteAddr)()
		shaped.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestLogKey{}, entry)))
	})
}

// costOf returns what a request costs: nothing if it asks for the health of the
// demo, so that it need not wait.
func costOf(r *http.Request) int {
	if isHealthCheck(r) {
		return 0
	}
	return 1
}

// isHealthCheck reports whether a request asks for the health of the demo.
func isHealthCheck(r *http.Request) bool {
	return r.URL.Path == healthPath && (r.Method == http.MethodGet || r.Method == http.MethodHead)
}

// takePause holds the line for as long as a busy upstream asks for, as a
// [shaper.Transport] does, if takesPauses is set. It is not by default: a server
// behind -upstream may ask for minutes.
func (p *proxy) takePause(r *http.Response) error {
	if p.takesPauses.Load() && r.StatusCode == http.StatusServiceUnavailable && r.Header.Get("Retry-After") != "" {
		p.shaper.Hold(retryAfter(r.Header))
	}
	return nil
}

// upstreamFailed responds when the upstream did not. If the client has
// disconnected, that is not counted as an error of the upstream.
func (p *proxy) upstreamFailed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		p.upstreamErrors.Add(1)
	}
	status := http.StatusBadGateway
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		status = http.StatusGatewayTimeout
	}
	http.Error(w, "shapedemo: no response from the upstream", status)
}

// drain takes no more connections, and returns when all requests that have come are
// answered, or ctx is done. A client that does not read its response must not keep the
// program alive: once the line is empty, drain waits for 10 seconds more at most.
func (p *proxy) drain(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		look := time.NewTicker(100 * time.Millisecond)
		defer look.Stop()
		for last := time.Now(); time.Since(last) < 10*time.Second; {
			if p.shaper.Stats().Waiting > 0 {
				last = time.Now()
			}
			select {
			case <-look.C:
			case <-ctx.Done():
				return
			}
		}
		cancel()
	}()
	_ = p.server.Shutdown(ctx) // It stops listening before it waits.
}

// close ends the proxy at once: waiting requests are refused with 503, requests
// in progress are cut off. It returns the error that ended the server, if one did
// before.
func (p *proxy) close() error {
	_ = p.shaper.Close()
	// The refusals need a moment to be sent.
	moment, cancel := context.WithTimeout(context.Background(), 250*time.Millisecond)
	defer cancel()
	_ = p.server.Shutdown(moment)
	_ = p.server.Close()
	p.transport.CloseIdleConnections()
	<-p.done
	return p.serveErr
}

// reachable returns an address at which this machine can reach a server that
// listens on a, which may be the unspecified address.
func reachable(a net.Addr) string {
	at, ok := a.(*net.TCPAddr)
	if !ok || !at.IP.IsUnspecified() {
		return a.String()
	}
	return (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: at.Port}).String()
}
