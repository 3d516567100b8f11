package shaper_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

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
	s, err := shaper.New(limitsOf(t, fmt.Sprintf("1 per 1h depth %d", depth)))
	require.NoError(t, err)
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
	l, err := shaper.ParseLimits(text)
	require.NoError(t, err)
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
