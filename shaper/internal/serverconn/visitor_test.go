package serverconn_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// enough is how long tests of real servers wait for an event that must come. It allows for a
// machine that has other work too.
const enough = 90 * time.Second

// serve serves a handler on loopback until the test ends, and returns the function
// that connects and sends a request.
func serve(t *testing.T, h http.HandlerFunc, configure ...func(*http.Server)) (visit func(request string) *visitor) {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	for _, f := range configure {
		f(server.Config)
	}
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return func(request string) *visitor {
		t.Helper()
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		v := &visitor{conn, t, bufio.NewReader(conn)}
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(enough)))
		v.send(request)
		return v
	}
}

// A visitor is a client on a connection of its own. The test decides every byte.
//
// The tests of package shaper have a visitor too (middleware_entrance_test.go); this is
// the part of it that is needed here. Go cannot import the test files of another
// package, and a package for both would have to export, and so name anew, all that the
// tests of the middleware call on nearly every line.
type visitor struct {
	net.Conn
	t    *testing.T
	from *bufio.Reader
}

// get returns a request without a body, and post one with that much of its body of five
// bytes.
func get(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n" }

func post(path, body string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n" + body
}

func (v *visitor) send(text string) {
	v.t.Helper()
	_, err := io.WriteString(v.Conn, text)
	require.NoError(v.t, err)
}

// These are the ways in which a client goes.
func (v *visitor) leave() { _ = v.Close() }

func (v *visitor) reset() {
	_ = v.Conn.(*net.TCPConn).SetLinger(0)
	_ = v.Close()
}

func (v *visitor) closeHalf() { _ = v.Conn.(*net.TCPConn).CloseWrite() }

// reads asserts the status of the next response, and returns its body.
func (v *visitor) reads(status int) string {
	v.t.Helper()
	a, err := http.ReadResponse(v.from, nil)
	require.NoError(v.t, err)
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	require.NoError(v.t, err)
	require.Equal(v.t, status, a.StatusCode, string(body))
	return string(body)
}
