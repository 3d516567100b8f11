package http

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"example.com/leakybucket/shaper"
)

// longest is longer than any measurement takes, also on a busy machine.
const longest = 5 * time.Minute

// newServer returns a server with timeouts, as our documentation asks for, because the
// middleware moves the deadlines that they set. They are so long that no request meets one.
func newServer(h http.Handler, connContext bool) *http.Server {
	server := &http.Server{Handler: h, ReadHeaderTimeout: longest, ReadTimeout: longest, WriteTimeout: longest}
	if connContext {
		server.ConnContext = shaper.ConnContext
	}
	return server
}

// bodyLength is how long bodies are, if there are any.
const bodyLength = 1 << 10

// requestText returns a request, for a connection, with a body or without.
func requestText(withBody bool) string {
	if !withBody {
		return "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
	}
	return fmt.Sprintf("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", bodyLength, strings.Repeat("x", bodyLength))
}

// inRequest runs f in the handler of a request that has come over a connection, as
// what middleware does with a request depends on its connection, its server and the
// type of its body.
func inRequest(connContext, withBody bool, f func(w http.ResponseWriter, r *http.Request) error) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	failed := make(chan error, 1) // f returns once, so that this never blocks.
	server := newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { failed <- f(w, r) }), connContext)
	served := make(chan error, 1) // likewise of Serve
	go func() { served <- server.Serve(listener) }()
	defer func() { _ = server.Close(); <-served }()

	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := io.WriteString(client, requestText(withBody)); err != nil {
		return err
	}
	_, err = bufio.NewReader(client).ReadByte() // The response begins when the handler has returned.
	select {
	case failed := <-failed:
		return errors.Join(failed, err)
	default:
		return fmt.Errorf("the request was not served: %w", err)
	}
}

// An answer takes the place of net/http's ResponseWriter for requests that are repeated.
// It drops what is written, and keeps the header and the status.
type answer struct {
	http.ResponseWriter // that of the connection, for its deadlines
	header              http.Header
	status              int
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) Write(b []byte) (int, error) { return len(b), nil }
func (a *answer) WriteHeader(status int)      { a.status = status }

// SetReadDeadline is what [http.ResponseController] finds in net/http's ResponseWriter.
func (a *answer) SetReadDeadline(t time.Time) error {
	return a.ResponseWriter.(interface{ SetReadDeadline(time.Time) error }).SetReadDeadline(t)
}

// SetWriteDeadline is likewise.
func (a *answer) SetWriteDeadline(t time.Time) error {
	return a.ResponseWriter.(interface{ SetWriteDeadline(time.Time) error }).SetWriteDeadline(t)
}

// again serves the request once more and returns the status.
func (a *answer) again(h http.Handler, r *http.Request) int {
	clear(a.header)
	a.status = 0
	h.ServeHTTP(a, r)
	return a.status
}

// served is the handler behind the middlewares.
var served = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
