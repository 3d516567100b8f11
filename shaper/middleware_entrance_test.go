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
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// An entrance is a real server with a shaper in front of its handler. The next slot is an
// hour off, so no request is admitted before a call of admit.
//
// Its parts may be changed until it is opened.
type entrance struct {
	*shaper.Shaper
	*httptest.Server
	t       testing.TB
	limiter shaper.Limiter                  // what the requests wait for
	outer   func(http.Handler) http.Handler // around the middleware
	handler http.HandlerFunc                // answers 200 if nil
	pipes   bool                            // it is in a bubble

	ran  chan string // paths of the requests that the handler got
	ends chan string // path and status of each, as an access log has them
}

func newEntrance(t testing.TB, depth int) *entrance {
	t.Helper()
	s := must(shaper.New(limitsOf(t, fmt.Sprintf("1 per 1h depth %d", depth))))
	require.True(t, s.Allow())
	e := &entrance{
		Shaper: s, t: t, limiter: s,
		outer: func(h http.Handler) http.Handler { return h },
		ran:   make(chan string, 10_000), // More than any test sends.
		ends:  make(chan string, 10_000),
	}
	e.Server = newServer(t, nil, with(hooked))
	t.Cleanup(func() { require.NoError(t, e.Shaper.Close()) }) // Before the server ends, which waits for its handlers.
	return e
}

// newBlindEntrance returns an entrance whose connections can't be asked: its server has
// no ConnContext.
func newBlindEntrance(t testing.TB, depth int) *entrance {
	t.Helper()
	e := newEntrance(t, depth)
	e.Config.ConnContext = nil
	e.handler = echo
	return e
}

// newPipeEntrance returns a blind entrance that is in a bubble.
func newPipeEntrance(t testing.TB, depth int) *entrance {
	t.Helper()
	e := newBlindEntrance(t, depth)
	onPipes(e.Server)
	e.pipes = true
	return e
}

// wrapListener puts a wrapper around each connection.
type wrapListener struct {
	net.Listener
	wrap func(net.Conn) net.Conn
}

func (l wrapListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.wrap(c), nil
}

// withHook skips the test where ConnContext does nothing.
func withHook(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("a connection can be asked for its client on Linux only")
	}
}

func limitsOf(t testing.TB, text string) shaper.Limits {
	t.Helper()
	l := must(shaper.ParseLimits(text))
	return l
}

// open starts the server.
func (e *entrance) open(options ...serverOption) *entrance {
	e.t.Helper()
	inner := shaper.Middleware(e.limiter)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.ran <- r.URL.Path
		if e.handler != nil {
			e.handler(w, r)
		}
	}))
	outer := e.outer(inner)
	e.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		log := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		defer func() { e.ends <- fmt.Sprint(r.URL.Path, " ", log.status) }()
		outer.ServeHTTP(log, r)
	})
	start(e.Server, options...)
	return e
}

// statusWriter is the writer that a logging middleware puts around a ResponseWriter.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// admit changes the limits, so that the requests in line are admitted.
func (e *entrance) admit(limits string) {
	e.t.Helper()
	require.NoError(e.t, e.SetLimits(limitsOf(e.t, limits)))
}

// reaches waits until the condition what is true of the shaper. Real servers take their
// time.
func (e *entrance) reaches(what string, is func(st shaper.Stats) bool) {
	e.t.Helper()
	defer func() {
		if e.t.Failed() {
			st := e.Stats()
			e.t.Logf("departed %d, refused %d, abandoned %d; handlers that have ended: %d", st.Departed, st.Refused, st.Abandoned, len(e.ends))
		}
	}()
	realtime.Until(e.t, func() bool { return is(e.Stats()) }, what)
}

func (e *entrance) waiting(n int) {
	e.t.Helper()
	if e.pipes {
		synctest.Wait()
	}
	e.reaches(fmt.Sprint(n, " waiting"), func(st shaper.Stats) bool { return st.Waiting == n })
}

func (e *entrance) abandoned(n int) {
	e.t.Helper()
	e.reaches(fmt.Sprint(n, " abandoned"), func(st shaper.Stats) bool { return st.Abandoned == uint64(n) })
}

// ended returns the next line of the access log.
func (e *entrance) ended() string {
	e.t.Helper()
	return realtime.Next(e.t, e.ends)
}

// A visitor is a client on a connection of its own. The test decides every byte.
type visitor struct {
	net.Conn
	t    testing.TB
	from *bufio.Reader
}

// visit connects and sends a request, all in one segment.
func (e *entrance) visit(request string) *visitor {
	e.t.Helper()
	addr := e.Listener.Addr()
	conn, err := e.Client().Transport.(*http.Transport).DialContext(context.Background(), addr.Network(), addr.String())
	require.NoError(e.t, err)
	return visitOn(e.t, conn, request)
}

func visitOn(t testing.TB, conn net.Conn, request string) *visitor {
	t.Helper()
	t.Cleanup(func() { conn.Close() })
	v := &visitor{conn, t, bufio.NewReader(conn)}
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(enough)))
	v.send(request)
	return v
}

func (v *visitor) send(text string) {
	v.t.Helper()
	_, err := io.WriteString(v.Conn, text)
	require.NoError(v.t, err)
}

// get returns a request without a body, and post one with that much of its body of five
// bytes.
func get(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n" }

func post(path, body string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n" + body
}

// chunked returns a request with some of a body of unknown length, which is never read
// ahead.
func chunked(path string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe"
}

// The ways in which a client goes. After leave the server's system knows of it.
func (v *visitor) leave() {
	v.t.Helper()
	if tcp, ok := v.Conn.(*net.TCPConn); ok {
		sendEnd(v.t, tcp)
	}
	_ = v.Close()
}

func (v *visitor) reset() {
	_ = v.Conn.(*net.TCPConn).SetLinger(0)
	_ = v.Close()
}

func (v *visitor) closeHalf() { _ = v.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// answer reads an answer and its body to the end.
func (v *visitor) answer() (*http.Response, string) {
	v.t.Helper()
	a, err := http.ReadResponse(v.from, nil)
	require.NoError(v.t, err)
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	require.NoError(v.t, err)
	return a, string(body)
}

// reads asserts the status of the next answer, and returns its body.
func (v *visitor) reads(status int) string {
	v.t.Helper()
	a, body := v.answer()
	require.Equal(v.t, status, a.StatusCode, body)
	return body
}

// readsNothing asserts that no byte comes for a while.
func (v *visitor) readsNothing(d time.Duration) {
	v.t.Helper()
	require.NoError(v.t, v.SetReadDeadline(time.Now().Add(d)))
	_, err := v.from.Peek(1)
	require.ErrorIs(v.t, err, os.ErrDeadlineExceeded)
	require.NoError(v.t, v.SetReadDeadline(time.Now().Add(enough)))
}

// echo answers with the body, or with 400 and the error of reading it.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, err.Error())
		return
	}
	_, _ = io.WriteString(w, strings.ToUpper(string(body)))
}

// Clients that send and read a byte now and then get their seats like all others. The time-outs of the server take them away again,
// and do not run while a request waits.
func TestSlowClientsDoNotHoldAllSeats(t *testing.T) {
	t.Parallel()
	var once sync.Once
	allTaken := make(chan struct{})
	s := made.Shaper(t, "1000/s burst 100 depth 200 inflight 20", shaper.WithTrace(&shaper.Trace{
		Enqueued: func(context.Context, shaper.Event) { // Its burst is not used up, so it waits as all seats are taken.
			once.Do(func() { close(allTaken) })
		},
	}))
	server := httptest.NewUnstartedServer(shaper.Middleware(s)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil && r.URL.Path == "/large" {
			for block := make([]byte, 1<<20); err == nil; {
				_, err = w.Write(block)
			}
		}
	})))
	server.Config.ReadTimeout, server.Config.WriteTimeout = 500*time.Millisecond, 500*time.Millisecond
	server.Config.ConnContext = shaper.ConnContext
	server.Start()
	realtime.Close(t, server)
	// On a busy machine the first may have been timed out before the last come, so each comes again until the test ends.
	ctx, cancel := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	t.Cleanup(clients.Wait)
	t.Cleanup(cancel)
	for i := range 80 {
		request := "GET /large HTTP/1.1\r\nHost: a\r\n\r\n"
		if i%2 == 0 {
			request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n"
		}
		clients.Go(func() {
			for ctx.Err() == nil {
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				if err != nil {
					continue
				}
				stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
				_, err = io.WriteString(conn, request)
				for b := make([]byte, 1); err == nil; time.Sleep(20 * time.Millisecond) {
					if i%2 == 0 {
						_, err = conn.Write(b)
					} else {
						_, err = conn.Read(b)
					}
				}
				stop()
				_ = conn.Close()
			}
		})
	}
	<-allTaken
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	statuses := make(chan int, 40)
	for range cap(statuses) {
		go func() {
			w, err := client.Get(server.URL)
			if err != nil {
				statuses <- 0
				return
			}
			w.Body.Close()
			statuses <- w.StatusCode
		}()
	}
	for range cap(statuses) {
		require.Equal(t, http.StatusOK, <-statuses)
	}
}

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
		bubble(t, k.name, func(t *testing.T) {
			// TLS takes up to 5 s to close a connection from which the other side reads no more.
			t.Cleanup(func() { time.Sleep(time.Minute) })
			test(t, k)
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
	s := must(shaper.New(shaper.Limits{Rate: rate.Every(time.Hour), Depth: depth}))
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
	r := must(http.NewRequestWithContext(ctx, "POST", url, body))
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
