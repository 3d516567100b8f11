package caddyshaper_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
	"example.com/leakybucket/internal/realtime"
)

// dial returns a connection to the site.
func (s *site) dial() net.Conn {
	s.t.Helper()
	conn, err := net.Dial("unix", s.socket)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(s.t, conn.SetDeadline(time.Now().Add(enough)))
	return conn
}

// sendOn sends a request that waits in the line of a name. It returns the function that ends
// the connection.
func (s *site) sendOn(request, name string) (hangUp func()) {
	s.t.Helper()
	conn := s.dial()
	_, err := io.WriteString(conn, request)
	require.NoError(s.t, err)
	realtime.Until(s.t, func() bool { return caddyshaper.Waiting(name) == 1 }, "it waits")
	return func() {
		require.NoError(s.t, conn.Close())
		realtime.Until(s.t, func() bool { return caddyshaper.Waiting(name) == 0 }, "it has left the line")
	}
}

// upgrade makes a connection of another protocol through the site.
func (s *site) upgrade() (send func(string), receive func() string) {
	s.t.Helper()
	conn := s.dial()
	_, err := io.WriteString(conn, "GET /ws HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: shout\r\n\r\n")
	require.NoError(s.t, err)
	from := bufio.NewReader(conn)
	resp, err := http.ReadResponse(from, nil)
	require.NoError(s.t, err)
	require.Equal(s.t, http.StatusSwitchingProtocols, resp.StatusCode)
	send = func(text string) {
		_, err := io.WriteString(conn, text)
		require.NoError(s.t, err)
	}
	receive = func() string {
		line, err := from.ReadString('\n')
		require.NoError(s.t, err)
		return line
	}
	return send, receive
}

// echoUpgraded is an upstream that answers each line in capitals.
func echoUpgraded(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", "shout")
	w.WriteHeader(http.StatusSwitchingProtocols)
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	for {
		line, err := buffered.ReadString('\n')
		if err != nil {
			return
		}
		if _, err := io.WriteString(conn, strings.ToUpper(line)); err != nil {
			return
		}
	}
}

func readAll(t testing.TB, r io.Reader) string {
	t.Helper()
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(text)
}
