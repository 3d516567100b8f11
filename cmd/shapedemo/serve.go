package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

// A frontListener is where the demo serves. It is opened before anything else
// happens, so that a port in use is reported first.
type frontListener struct {
	listener net.Listener // nil if the program does not serve
	page     net.Listener // for the page that shows the proxy; nil: there is none
	moved    bool         // to a free port, as the default port was in use
}

// listenFront listens at the addresses of c. If the proxy's address is in use it takes a free port
// instead, but only if the user has not chosen the address. The caller must close the listeners.
func listenFront(c config) (front frontListener, err error) {
	if !c.serves() {
		return front, nil
	}
	if c.inspect != "" {
		if front.page, err = net.Listen("tcp", c.inspect); err != nil {
			return front, fmt.Errorf("-inspect %q: %w", c.inspect, err)
		}
	}
	if front.listener, err = net.Listen("tcp", c.addr); err != nil && !c.addrGiven {
		front.moved = true
		front.listener, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		err = fmt.Errorf("-addr %q: %w", c.addr, err)
	}
	return front, err
}

// close closes the listeners that no server has closed already.
func (f frontListener) close() {
	for _, l := range []net.Listener{f.listener, f.page} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// serve puts a shaper in front of an upstream, serves until graceful is done, and
// then drains the line, until immediate is done at the latest. It serves the page
// meanwhile, if there is a listener for the page. It returns the exit status.
func serve(graceful, immediate context.Context, t *terminal, c config, front frontListener) (int, error) {
	s, err := shaper.New(c.limits, shaper.WithName("shapedemo"))
	if err != nil {
		return exitFailed, err
	}
	target := c.upstream
	if target == nil {
		upstream, err := startLoopback(newFragileUpstream(capacityFor(newLimitsInfo(c.limits), c.burst), nil))
		if err != nil {
			return exitFailed, err
		}
		defer upstream.close()
		target = upstream.url
	}
	p := startProxy(front.listener, s, target)
	printHowToTry(t, c, front, p.url.String())
	client := newClient(256)
	defer client.CloseIdleConnections()
	var send func(context.Context) result
	if c.upstream == nil { // No clients are sent to a server of the user's.
		send = func(ctx context.Context) result { return get(ctx, client, p.url.String()) }
	}
	panel := newPanel(s, send)
	defer panel.close()
	if front.page != nil {
		defer servePage(front.page, panel)()
		t.say("Watch it:  %s\n", t.coloured(bold, "http://"+front.page.Addr().String()+"/"))
	}
	select {
	case <-p.server.done:
		return exitFailed, p.close()
	case <-graceful.Done():
	}
	panel.end() // The page goes on, and shows how the line drains.
	return drain(immediate, t, p)
}

// printHowToTry prints where the demo serves, and commands to try it with.
func printHowToTry(t *terminal, c config, front frontListener, at string) {
	if c.shows() {
		t.say("") // An empty line after the results of the burst, which have the limits.
	} else {
		printLimits(t, c.limits)
		if c.upstream != nil {
			t.say("  upstream   %s", c.upstream.Redacted())
		}
		t.say("")
	}
	if front.moved {
		t.say("%s is in use: taking a free port.", defaultAddr)
	}
	// So many clients that some are refused, but not more than a shell can start.
	clients := min(max(20, int(1.3*float64(min(newLimitsInfo(c.limits).fits, 1000)))), 500)
	t.say("Serving on %s until Ctrl-C. Try:\n", t.coloured(bold, at))
	t.say("  curl -i %s/", at)
	t.say("  for i in $(seq %d); do curl -so /dev/null -w '%%{http_code}\\n' %s/ & done | sort | uniq -c", clients, at)
	if c.limits.String() == defaultLimits { // The README of the script says how it judges others.
		t.say("  k6 run -e BASE_URL=%s loadtest/k6.js", at)
	}
	t.say("")
}

// drain takes no more connections, lets all waiting requests leave, waits until they
// have their responses, and closes the proxy. When ctx is done it ends at once.
func drain(ctx context.Context, t *terminal, p *proxy) (int, error) {
	before := p.shaper.Stats()
	t.say("%s", drainMessage(before.Waiting, newLimitsInfo(before.Limits)))
	p.drain(ctx)
	cut := p.shaper.Stats().Waiting
	err := p.close()
	if ctx.Err() != nil {
		t.say("Stopped at once; %d waiting requests got a 503.", cut)
		return exitInterrupted, nil
	}
	if err != nil {
		return exitFailed, err
	}
	if before.Waiting == 0 {
		t.say("Stopped.")
		return exitOK, nil
	}
	after := p.shaper.Stats()
	t.say("Drained: %d served, %d gave up.", after.Departed-before.Departed, after.Abandoned-before.Abandoned)
	return exitOK, nil
}

// drainMessage returns the text to print before the line is drained, with how long that takes.
func drainMessage(waiting int, info limitsInfo) string {
	if waiting == 0 {
		return "No request is waiting: stopping (Ctrl-C again to stop at once)."
	}
	longest := math.Ceil(float64(waiting)*info.interval*10) / 10
	bound := "at most"
	if info.limits.InFlight > 0 {
		bound = "at least" // How long the upstream takes is unknown.
	}
	return fmt.Sprintf("Draining %s (%s %s; Ctrl-C again to stop at once).", countOf(waiting, "waiting request"), bound, limitwords.Seconds(longest))
}

// healthPath is answered without waiting in the line, so that scripts can wait
// for the demo to start, and load balancers see when it drains.
const healthPath = "/healthz"

// A proxy is a reverse proxy with a shaper in front.
type proxy struct {
	*server
	shaper    *shaper.Shaper
	transport *http.Transport
}

// startProxy puts s in front of target and serves on l. Requests pass the outer
// middleware before they come to the shaper. The caller must close the proxy, which
// closes s.
func startProxy(l net.Listener, s *shaper.Shaper, target *url.URL, outer ...func(http.Handler) http.Handler) *proxy {
	p := &proxy{shaper: s}
	p.transport = http.DefaultTransport.(*http.Transport).Clone()
	p.transport.MaxIdleConns = 0 // Unlimited: the shaper limits what goes upstream.
	p.transport.MaxIdleConnsPerHost = 256
	p.transport.DisableCompression = true // Compression is between the client and the upstream.
	p.server = startServer(l, &http.Server{
		Handler:           p.handler(target, outer),
		ConnContext:       shaper.ConnContext, // To notice clients that disconnect during an upload.
		ReadHeaderTimeout: 10 * time.Second,
		// These two may be shorter than the wait, which does not count.
		ReadTimeout:  10 * time.Second,
		WriteTimeout: 30 * time.Second,
		IdleTimeout:  time.Minute,
	})
	return p
}

// handler returns the handler of the proxy. From the outside in, a request passes the
// outer middleware, waits in the shaper, and is forwarded to target.
func (p *proxy) handler(target *url.URL, outer []func(http.Handler) http.Handler) http.Handler {
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			// The query unchanged: the upstream may accept one that net/url rejects.
			r.Out.URL.RawQuery = r.In.URL.RawQuery
			r.SetURL(target)
			r.SetXForwarded()
		},
		Transport:    p.transport,
		ErrorHandler: upstreamFailed,
		ErrorLog:     log.New(io.Discard, "", 0),
	}
	h := shaper.Middleware(p.shaper, shaper.WithCost(costOf), shaper.WithHeaders(shaper.HeaderServerTiming))(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if costOf(r) == 0 {
				respond(w, "ok\n")
				return
			}
			forward.ServeHTTP(w, r)
		}))
	for _, middleware := range outer {
		h = middleware(h)
	}
	return h
}

// costOf returns the cost of a request: 0 if it asks for the health of the demo, so that it need
// not wait.
func costOf(r *http.Request) int {
	if r.URL.Path == healthPath && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		return 0
	}
	return 1
}

// upstreamFailed responds when the upstream did not.
func upstreamFailed(w http.ResponseWriter, _ *http.Request, err error) {
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
		for p.shaper.Stats().Waiting > 0 && ctx.Err() == nil {
			sleep(ctx, 100*time.Millisecond)
		}
		sleep(ctx, 10*time.Second)
		cancel()
	}()
	_ = p.server.Shutdown(ctx) // It stops listening before it waits.
}

// close ends the proxy at once: waiting requests are refused with 503, requests
// in progress are cut off. It returns the error that ended the server, if one did
// before.
func (p *proxy) close() error {
	_ = p.shaper.Close()
	p.server.shutDown() // The refusals need a moment to be sent.
	p.transport.CloseIdleConnections()
	return p.server.err
}

// A server serves on its listener until it is closed.
type server struct {
	*http.Server
	url  *url.URL      // at which this machine can reach it
	done chan struct{} // closed when the server has ended
	err  error         // of its listener, if it was not closed; to be read after that
}

// startServer serves on l. The caller must close the server.
func startServer(l net.Listener, of *http.Server) *server {
	of.ErrorLog = log.New(io.Discard, "", 0)
	s := &server{Server: of, url: &url.URL{Scheme: "http", Host: reachable(l.Addr())}, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.err = err
		}
	}()
	return s
}

// startLoopback serves a handler on a free port of 127.0.0.1. Only this program calls it. The
// caller must close the server.
func startLoopback(h http.Handler) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return startServer(l, &http.Server{
		Handler: h,
		// On a busy machine this program may come to write a request, or to read it, late.
		ReadHeaderTimeout: 30 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
	}), nil
}

// close ends the server at once and waits until it has ended.
func (s *server) close() {
	_ = s.Close()
	<-s.done
}

// shutDown closes the server after a moment in which it may finish its answers.
func (s *server) shutDown() {
	moment, cancel := context.WithTimeout(context.Background(), 250*time.Millisecond)
	defer cancel()
	_ = s.Shutdown(moment)
	s.close()
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
