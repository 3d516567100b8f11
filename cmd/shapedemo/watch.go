package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"example.com/leakybucket/inspect"
)

// A watchPage serves the page that shows the proxy's bucket, with buttons of the demo's
// own, on a listener of its own.
type watchPage struct {
	url       string
	control   *control
	inspector *inspect.Inspector

	server *http.Server
	done   chan struct{} // closed when the server has ended
}

// listenPage listens at the address of c for the page, or returns nil if there is to be
// none. The page has buttons that change the demo, so it is for this machine only.
func listenPage(c config) (net.Listener, error) {
	if c.inspect == "" || c.once || c.outbound {
		return nil, nil
	}
	wrong := func(err error) error { return fmt.Errorf("-inspect %q: %w", c.inspect, err) }
	at, err := net.ResolveTCPAddr("tcp", c.inspect)
	if err != nil {
		return nil, wrong(err)
	}
	if !at.IP.IsLoopback() {
		return nil, wrong(errors.New("the page is for this machine only, so the address must be a loopback address such as 127.0.0.1:9000"))
	}
	l, err := net.ListenTCP("tcp", at)
	if err != nil {
		return nil, wrong(err)
	}
	return l, nil
}

// startPage serves the page about a proxy on l. The upstream is nil if it is a server of
// the user's. The caller must close the page.
func startPage(l net.Listener, p *proxy, d *dryRuns, upstream *fragileUpstream) *watchPage {
	i := inspect.New(
		inspect.WithTitle("shapedemo"),
		inspect.WithScript("/demo/panel.js"),
		inspect.WithLogger(slog.New(slog.DiscardHandler)),
	)
	i.Add("proxy", inspect.Of(p.shaper))
	i.Add("candidate", inspect.Of(d.candidate))
	i.Add("clients", inspect.OfGroup(d.clients))
	w := &watchPage{
		url:       "http://" + l.Addr().String() + "/",
		control:   newControl(p, d, upstream, p.shaper.Limits()),
		inspector: i,
		done:      make(chan struct{}),
	}
	demo := i.Guard(protected(w.control.handler()))
	w.server = &http.Server{
		// No ServeMux decides between the two: it would clean the paths of the Inspector,
		// in which there are keys.
		Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/demo/") {
				demo.ServeHTTP(rw, r)
				return
			}
			i.ServeHTTP(rw, r)
		}),
		// A time limit for all of an answer would end the streams of events.
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	go func() {
		defer close(w.done)
		// Serve returns when the server is closed. If its listener fails before that,
		// the proxy goes on without a page.
		_ = w.server.Serve(l)
	}()
	return w
}

// endClients lets no more clients come. The page goes on, so that it shows how the line
// drains.
func (w *watchPage) endClients() { w.control.end() }

// close ends the page and waits until it has ended. The streams come first: a server that
// shuts down waits for them.
func (w *watchPage) close() {
	w.control.end()
	w.control.clients.close()
	_ = w.inspector.Close()
	moment, cancel := context.WithTimeout(context.Background(), 250*time.Millisecond)
	defer cancel()
	_ = w.server.Shutdown(moment)
	_ = w.server.Close()
	<-w.done
}
