package shaper_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// What tests of HTTP on real connections share: servers on loopback, clients, and
// how to wait for what must come.

// enough is how long tests of real time wait for what must come, on a machine that
// has other work too.
const enough = 90 * time.Second

// A serverOption changes a server before it starts.
type serverOption func(*httptest.Server)

// serve serves a handler on loopback until the test ends. The Client of the server is
// one for it.
func serve(t testing.TB, h http.Handler, options ...serverOption) *httptest.Server {
	t.Helper()
	server := newServer(t, h)
	start(server, options...)
	return server
}

// newServer returns a server to be started, whose fields Config and Listener may be
// changed before. It ends with the test.
func newServer(t testing.TB, h http.Handler, options ...serverOption) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	for _, set := range options {
		set(server)
	}
	t.Cleanup(func() {
		if client := server.Client(); client != nil {
			client.CloseIdleConnections()
		}
		server.CloseClientConnections()
		server.Close()
	})
	return server
}

// start starts a server of newServer.
func start(server *httptest.Server, options ...serverOption) {
	for _, set := range options {
		set(server)
	}
	listener := server.Listener
	if wrapped, ok := listener.(wrapListener); ok {
		listener = wrapped.Listener
	}
	if server.TLS != nil {
		server.StartTLS()
	} else {
		server.Start()
	}
	server.Client().Timeout = enough
	if pipes, ok := listener.(pipeListener); ok {
		server.Client().Transport.(*http.Transport).DialContext = pipes.dial
	}
}

func overTLS(s *httptest.Server)   { s.TLS = new(tls.Config) }
func overHTTP2(s *httptest.Server) { s.TLS, s.EnableHTTP2 = new(tls.Config), true }

// onPipes is for a server in a bubble: its clients are at the other ends of pipes, on which time
// passes as in the rest of the bubble. A pipe can't be asked for its client.
func onPipes(s *httptest.Server) {
	_ = s.Listener.Close()
	s.Listener = newPipeListener()
}

// pipeListener accepts the connections that are sent to it.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newPipeListener() pipeListener {
	closed := make(chan struct{})
	return pipeListener{make(chan net.Conn), closed, sync.OnceFunc(func() { close(closed) })}
}

func (l pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l pipeListener) Close() error { l.close(); return nil }

// Addr returns a name that the certificate of an httptest.Server has.
func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "example.com"} }

// dial connects a client. A pipe has no buffer as a network has, and both sides of TLS write a last
// word before they read that of the other, so there are two pipes and a buffer between them.
func (l pipeListener) dial(context.Context, string, string) (net.Conn, error) {
	client, near := net.Pipe()
	far, server := net.Pipe()
	select {
	case l.conns <- server:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	carry := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		_ = to.Close()
	}
	go carry(far, near)
	go carry(near, far)
	return client, nil
}

// with makes an option of what changes an http.Server.
func with(set ...func(*http.Server)) serverOption {
	return func(s *httptest.Server) {
		for _, f := range set {
			f(s.Config)
		}
	}
}

// openServer serves a handler on loopback until the test ends, and returns the
// address.
func openServer(t testing.TB, h http.Handler, configure ...func(*http.Server)) string {
	t.Helper()
	return serve(t, h, with(configure...)).Listener.Addr().String()
}

func hooked(s *http.Server)   { s.ConnContext = shaper.ConnContext }
func unhooked(s *http.Server) {}

var hooks = []struct {
	name string
	set  func(*http.Server)
}{{"with ConnContext", hooked}, {"without", unhooked}}

// A connectionKind is one of the ways in which a request can come.
type connectionKind struct {
	name      string
	wrap      func(http.Handler) http.Handler
	configure func(*http.Server)
	tls, h2   bool
}

func asIs(h http.Handler) http.Handler { return h }

var connectionKinds = []connectionKind{
	{name: "HTTP/1", wrap: asIs, configure: hooked},
	{name: "HTTP/1 without ConnContext", wrap: asIs, configure: unhooked},
	{name: "HTTP/1 with the controller hidden", wrap: hide, configure: hooked},
	{name: "HTTP/1 over TLS", wrap: asIs, configure: hooked, tls: true},
	{name: "HTTP/1 over TLS with the controller hidden", wrap: hide, configure: hooked, tls: true},
	{name: "HTTP/2", wrap: asIs, configure: hooked, tls: true, h2: true},
	{name: "HTTP/2 without ConnContext", wrap: asIs, configure: unhooked, tls: true, h2: true},
}

var http2Kind = connectionKind{name: "HTTP/2", wrap: asIs, configure: hooked, tls: true, h2: true}

// open serves a handler until the test ends, and returns a client for it.
func (k connectionKind) open(t testing.TB, h http.Handler, configure ...func(*http.Server)) (*http.Client, string) {
	t.Helper()
	return k.serve(t, h, with(configure...))
}

func (k connectionKind) serve(t testing.TB, h http.Handler, options ...serverOption) (*http.Client, string) {
	t.Helper()
	options = append(options, with(k.configure))
	switch {
	case k.h2:
		options = append(options, overHTTP2)
	case k.tls:
		options = append(options, overTLS)
	}
	server := serve(t, k.wrap(h), options...)
	return server.Client(), server.URL
}

// inBubbles runs a test in a bubble for each kind of connection.
func inBubbles(t *testing.T, test func(t *testing.T, k connectionKind)) {
	for _, k := range connectionKinds {
		t.Run(k.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// TLS takes up to 5 s to close a connection from which the other side reads no more.
				t.Cleanup(func() { time.Sleep(time.Minute) })
				test(t, k)
			})
		})
	}
}

// hidden is a ResponseWriter that keeps http.ResponseController from its work,
// as wrappers without an Unwrap do.
type hidden struct{ http.ResponseWriter }

func hide(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(hidden{w}, r) })
}

// countConnections counts those that a server has got.
func countConnections(n *atomic.Int64) func(*http.Server) {
	return func(s *http.Server) {
		s.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				n.Add(1)
			}
		}
	}
}

// stuckShaper is one whose line moves only when its limits change.
func stuckShaper(t *testing.T, depth int) *shaper.Shaper {
	t.Helper()
	s, err := shaper.New(shaper.Limits{Rate: rate.Every(time.Hour), Depth: depth})
	require.NoError(t, err)
	require.True(t, s.Allow())
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func inLine(s *shaper.Shaper, n int) func() bool {
	return func() bool { return s.Stats().Waiting == n }
}

func newClient(t testing.TB) *http.Client {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: enough}
}

// dial opens a connection that lasts until the test ends.
func dial(t testing.TB, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(enough)))
	return conn
}

// readAnswer reads an answer whole.
func readAnswer(r *bufio.Reader) (*http.Response, error) {
	answer, err := http.ReadResponse(r, nil)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	answer.Body = io.NopCloser(bytes.NewReader(body))
	return answer, err
}

// send sends a request in the background and returns what will become of it.
func send(ctx context.Context, t *testing.T, client *http.Client, url string, body io.Reader) <-chan string {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "POST", url, body)
	require.NoError(t, err)
	return do(client, r)
}

func do(client *http.Client, r *http.Request) <-chan string {
	became := make(chan string, 1)
	go func() {
		answer, err := client.Do(r)
		if err != nil {
			became <- err.Error()
			return
		}
		became <- inWords(answer)
	}()
	return became
}

// postTo returns the status and the body of the answer, or what went wrong.
func postTo(client *http.Client, url string, body io.Reader) string {
	answer, err := client.Post(url, "text/plain", body)
	if err != nil {
		return err.Error()
	}
	return inWords(answer)
}

func inWords(answer *http.Response) string {
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s: %s", statusLine(answer), body)
}

// upgrade asks the site at an address for its echo (see duplexSite) on a connection
// of its own, and returns a function that says a word and waits for it to come back.
func upgrade(t *testing.T, addr string) (echoes func(word string)) {
	t.Helper()
	conn := dial(t, addr)
	_, err := io.WriteString(conn, "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	require.NoError(t, err)
	reader := bufio.NewReader(conn)
	answer, err := http.ReadResponse(reader, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, answer.StatusCode)
	return func(word string) {
		t.Helper()
		_, err := io.WriteString(conn, word)
		require.NoError(t, err)
		back := make([]byte, len(word))
		_, err = io.ReadFull(reader, back)
		require.NoError(t, err)
		require.Equal(t, word, string(back))
	}
}
