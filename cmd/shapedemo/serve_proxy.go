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
	"sync/atomic"
	"time"

	"example.com/leakybucket/shaper"
)

// healthPath answers without standing in the line, so that scripts can wait
// for the demo and load balancers see when it drains.
const healthPath = "/healthz"

// A proxy is a reverse proxy with a shaper in front.
type proxy struct {
	shaper *shaper.Shaper
	url    string
	log    logbook

	server    *http.Server
	transport *http.Transport
	draining  atomic.Bool
	broken    atomic.Uint64 // requests that left, and to which the upstream gave no answer

	gone  chan struct{} // closed when the server has ended
	ended error         // with what; to be read after that
}

// startProxy puts a shaper in front of target and serves on l. It must be
// closed.
func startProxy(l net.Listener, limits shaper.Limits, target *url.URL) (*proxy, error) {
	s, err := shaper.New(limits, shaper.WithName("shapedemo"), shaper.WithTrace(tracePassages()))
	if err != nil {
		return nil, err
	}
	p := &proxy{shaper: s, url: "http://" + reachable(l.Addr()), gone: make(chan struct{})}
	p.transport = http.DefaultTransport.(*http.Transport).Clone()
	p.transport.MaxIdleConns = 0 // No bound: the line is the bound.
	p.transport.MaxIdleConnsPerHost = 256
	p.transport.DisableCompression = true // Only if the client asked for it.
	p.server = &http.Server{
		Handler:           p.handler(target),
		ConnContext:       shaper.ConnContext, // So that uploads, too, are seen to leave.
		ReadHeaderTimeout: 5 * time.Second,
		// Either may be shorter than the wait: it does not count.
		ReadTimeout:  10 * time.Second,
		WriteTimeout: 30 * time.Second,
		IdleTimeout:  time.Minute,
		ErrorLog:     log.New(io.Discard, "", 0),
	}
	go func() {
		defer close(p.gone)
		if err := p.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			p.ended = err
		}
	}()
	return p, nil
}

// handler is, from the outside in: the arrival noted, the shaper, and the
// reverse proxy.
func (p *proxy) handler(target *url.URL) http.Handler {
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			// As it came: what this program can't parse the upstream may.
			r.Out.URL.RawQuery = r.In.URL.RawQuery
			r.SetURL(target)
			r.SetXForwarded()
		},
		Transport:    p.transport,
		ErrorHandler: p.upstreamFailed,
		ErrorLog:     log.New(io.Discard, "", 0),
	}
	shaped := shaper.Middleware(p.shaper,
		shaper.WithCost(func(r *http.Request) int {
			if isHealthCheck(r) {
				return 0
			}
			return 1
		}),
		shaper.WithServerTiming(),
	)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isHealthCheck(r) {
			p.health(w)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := &passage{arrived: time.Now()}
		defer p.log.follow(at, r.RemoteAddr)()
		shaped.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), passageKey{}, at)))
	})
}

// isHealthCheck says whether a request asks for the health of the demo.
func isHealthCheck(r *http.Request) bool {
	return r.URL.Path == healthPath && (r.Method == http.MethodGet || r.Method == http.MethodHead)
}

func (p *proxy) health(w http.ResponseWriter) {
	if p.draining.Load() {
		http.Error(w, "draining", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "ok\n")
}

// upstreamFailed answers for an upstream that did not. A client that has gone
// is no fault of the upstream's.
func (p *proxy) upstreamFailed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		p.broken.Add(1)
	}
	status := http.StatusBadGateway
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		status = http.StatusGatewayTimeout
	}
	http.Error(w, "shapedemo: no answer from the upstream", status)
}

// close ends the proxy at once: those in the line are refused with 503, what is
// under way is cut off. It returns what the server failed with, if it did.
func (p *proxy) close() error {
	p.draining.Store(true)
	_ = p.shaper.Close()
	// A moment, so that those refusals are still sent.
	moment, cancel := context.WithTimeout(context.Background(), 250*time.Millisecond)
	defer cancel()
	_ = p.server.Shutdown(moment)
	_ = p.server.Close()
	p.transport.CloseIdleConnections()
	<-p.gone
	return p.ended
}

// reachable is an address at which a server that listens on a can be reached
// from this machine: "any" is none.
func reachable(a net.Addr) string {
	at, ok := a.(*net.TCPAddr)
	if !ok || !at.IP.IsUnspecified() {
		return a.String()
	}
	return (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: at.Port}).String()
}
