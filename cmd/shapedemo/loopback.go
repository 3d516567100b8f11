package main

import (
	"net"
	"net/http"
	"net/url"
	"time"
)

// A loopback is a real HTTP server on a free port of this machine, which nobody
// but this program calls.
type loopback struct {
	url *url.URL

	server *http.Server
	gone   chan struct{} // closed when the server has ended
}

// startLoopback starts a server for a handler. It must be closed.
func startLoopback(h http.Handler) (loopback, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return loopback{}, err
	}
	b := loopback{url: &url.URL{Scheme: "http", Host: l.Addr().String()}, gone: make(chan struct{})}
	b.server = &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       time.Minute,
	}
	go func() {
		defer close(b.gone)
		// It ends by close alone; if its listener should fail before that, the
		// answers that callers get tell.
		_ = b.server.Serve(l)
	}()
	return b, nil
}

// close ends the server at once and waits until it has.
func (b loopback) close() {
	_ = b.server.Close()
	<-b.gone
}
