package gateway_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/shaper"
)

// over serves a gateway in front of a handler by net/http.
func over(t *testing.T, next http.Handler) (g *rig, address string) {
	t.Helper()
	g = newRig(t, "openai-compatible", llm.Quota{Requests: 60}, next, func(_ *gateway.Config, l *shaper.Limits) { l.InFlight = 1 })
	server := httptest.NewUnstartedServer(g)
	server.Config.ConnContext = shaper.ConnContext
	server.Start()
	realtime.Close(t, server)
	return g, server.Listener.Addr().String()
}

// What a connection can do, it can do behind the gateway: an upgrade through a proxy, and both directions at once.
func TestAConnectionCanDoBehindTheGatewayWhatItCan(t *testing.T) {
	echo := func(conn net.Conn, from *bufio.Reader) {
		line, _ := from.ReadString('\n')
		_, _ = io.WriteString(conn, "echo "+line)
		_ = conn.Close()
	}
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "echo")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, both, err := http.NewResponseController(w).Hijack()
		if err == nil {
			echo(conn, both.Reader)
		}
	}))
	defer behind.Close()
	target, err := url.Parse(behind.URL)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		next          http.Handler
		request, sent string
		answer        []string
		status        int
	}{
		"upgrade": {
			httputil.NewSingleHostReverseProxy(target),
			"GET /v1/realtime HTTP/1.1\r\nHost: gateway\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", "hello\n",
			[]string{"HTTP/1.1 101 ", "echo hello"}, 101,
		},
		"hijack": {
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				conn, both, err := w.(http.Hijacker).Hijack()
				if err == nil {
					echo(conn, both.Reader)
				}
			}),
			"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n", "hello\n", []string{"echo hello"}, 101,
		},
		"both directions": {
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
					return
				}
				head := make([]byte, 5)
				_, _ = io.ReadFull(r.Body, head)
				_, _ = io.WriteString(w, "read "+string(head))
				w.(http.Flusher).Flush()
				rest, _ := io.ReadAll(r.Body)
				_, _ = io.WriteString(w, "end "+string(rest[len(rest)-5:]))
			}),
			"POST / HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\nContent-Length: 1048582\r\n\r\nbegin" + strings.Repeat("x", 1<<20-4), "there", []string{"read begin", "end there"}, 200,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, address := over(t, c.next)
			conn, err := net.Dial("tcp", address)
			require.NoError(t, err)
			defer conn.Close() // It fails if the test has closed it.
			require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
			_, err = io.WriteString(conn, c.request)
			require.NoError(t, err)
			from := bufio.NewReader(conn)
			if len(c.answer) > 1 { // The first part comes before the rest is sent.
				for first := ""; !strings.HasSuffix(first, c.answer[0]); {
					next, err := from.ReadByte()
					require.NoError(t, err)
					first += string(next)
				}
			}
			_, err = io.WriteString(conn, c.sent)
			require.NoError(t, err)
			rest, err := io.ReadAll(from)
			require.NoError(t, err)
			for _, part := range c.answer[min(1, len(c.answer)-1):] {
				require.Contains(t, string(rest), part)
			}
			require.NoError(t, conn.Close())
			realtime.Until(t, func() bool { return g.ended() == 1 }, "the call has ended")
			require.Zero(t, g.line.Stats().InFlight)
			require.Zero(t, g.line.Stats().Reserved)
			require.Positive(t, g.line.Stats().Level, "nothing is free")
			require.Equal(t, c.status, g.last(t).Status)
		})
	}
}

// Events pass when they come, and a client that goes while its call waits frees its place.
func TestEventsPassWhenTheyComeAndClientsThatGoFreeTheirPlace(t *testing.T) {
	more := make(chan bool)
	g, address := over(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 2 {
			_, _ = io.WriteString(w, "data: {}\n\n")
			<-more
		}
	}))
	response, err := http.Post("http://"+address, "application/json", strings.NewReader("{}"))
	require.NoError(t, err)
	defer response.Body.Close()
	events := bufio.NewReader(response.Body)
	for range 2 {
		line, err := events.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "data: {}\n", line)
		waiting, err := net.Dial("tcp", address)
		require.NoError(t, err)
		_, err = io.WriteString(waiting, "POST / HTTP/1.1\r\nHost: gateway\r\nContent-Length: 2\r\n\r\n{}")
		require.NoError(t, err)
		realtime.Until(t, func() bool { return g.line.Stats().Waiting == 1 }, "a call waits")
		require.NoError(t, waiting.Close())
		realtime.Until(t, func() bool { return g.line.Stats().Waiting == 0 }, "its place is free")
		more <- true
		_, _ = events.ReadString('\n') // the empty line
	}
}

// Neither the first wait nor that before a call is sent again uses up the server's timeout for the answer, nor does the timeout for a
// body that has come end a call in either wait.
func TestNoWaitIsTakenOffTheServersTimeouts(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		synctest.Test(t, func(t *testing.T) {
			attempts := 0
			g := newRig(t, "openai", llm.Quota{Requests: 60}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if attempts++; attempts == 1 {
					w.Header().Set("Retry-After", "30")
					w.WriteHeader(http.StatusTooManyRequests)
					return
				}
				time.Sleep(9 * time.Second)
				_, _ = io.WriteString(w, "fine")
			}), nil)
			g.line.Hold(20 * time.Second)
			client, conn := net.Pipe()
			accepted := pipe{make(chan net.Conn, 1)} // one connection
			accepted.conns <- conn
			protocols := new(http.Protocols)
			protocols.SetHTTP1(protocol == "HTTP/1.1")
			protocols.SetUnencryptedHTTP2(protocol == "HTTP/2.0")
			server := &http.Server{Handler: g, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, Protocols: protocols}
			go func() { _ = server.Serve(accepted) }()
			transport := &http.Transport{
				Protocols:   protocols,
				DialContext: func(context.Context, string, string) (net.Conn, error) { return client, nil },
			}
			r := request(t.Context(), "openai", 10, 10, false)
			r.URL.Scheme = "http"
			response, err := transport.RoundTrip(r)
			require.NoError(t, err, protocol)
			require.Equal(t, protocol, response.Proto)
			body, err := io.ReadAll(response.Body)
			require.NoError(t, err, protocol)
			require.Equal(t, "fine", string(body))
			require.Equal(t, 59*time.Second, time.Since(epoch))
			transport.CloseIdleConnections()
			require.NoError(t, server.Close())
		})
	}
}

// A pipe is a listener of connections in memory.
type pipe struct{ conns chan net.Conn }

func (p pipe) Accept() (net.Conn, error) {
	conn, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipe) Close() error {
	close(p.conns)
	return nil
}

func (pipe) Addr() net.Addr { return &net.UnixAddr{Name: "gateway"} }
