package shaper_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A refusal must reach a client that is still sending. These tests refuse
// uploads on real connections: net/http holds an answer back until it has read
// up to 256 KiB of the body, and a connection that is closed while a part of the
// body is unread can lose the answer.

// refusingHandler returns a handler behind a shaper that refuses every request.
func refusingHandler(t testing.TB, opts ...shaper.MiddlewareOption) http.Handler {
	t.Helper()
	s, err := shaper.New(shaper.Limits{Rate: rate.Every(time.Hour)})
	require.NoError(t, err)
	require.True(t, s.Allow())
	return shaper.Middleware(s, opts...)(http.HandlerFunc(
		func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }))
}

// writeAll is the simplest of clients: it writes all, and then reads. When the
// server stops reading the write fails, but the answer can still be read.
func writeAll(addr string, body []byte) (*http.Response, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(enough)); err != nil {
		return nil, err
	}
	fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", len(body))
	_, _ = conn.Write(body)
	return readAnswer(bufio.NewReader(conn))
}

// bodySizes lie on both sides of the size that net/http drains (256 KiB), and of the size that the
// middleware finds worth draining (64 KiB).
var bodySizes = []struct {
	name string
	size int
}{{"300 B", 300}, {"64 KiB", 64 << 10}, {"300 KiB", 300 << 10}, {"4 MiB", 4 << 20}}

func TestEveryRefusalReachesAClientThatIsStillSending(t *testing.T) {
	const clients = 8
	uploads := rounds(16, 250, 1000) // of each kind; there are 8
	for _, hook := range hooks {
		addr := openServer(t, refusingHandler(t), hook.set)
		for _, body := range bodySizes {
			t.Run(hook.name+"/"+body.name, func(t *testing.T) {
				t.Parallel()
				content := make([]byte, body.size)
				var left, delivered atomic.Int64
				left.Store(int64(uploads))
				var wg sync.WaitGroup
				for range clients {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							answer, err := writeAll(addr, content)
							if err != nil {
								t.Error(err)
							} else if answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Retry-After") == "" {
								t.Error(statusLine(answer))
							} else {
								delivered.Add(1)
							}
						}
					})
				}
				wg.Wait()
				require.EqualValues(t, uploads, delivered.Load())
			})
		}
	}
}

// With net/http alone, a client that sends a part of a body and then nothing gets no
// answer, and can keep its connection open for as long as it likes.
func TestRefusalOfAWithheldBodyIsSentAndTheConnectionFreed(t *testing.T) {
	teapot := shaper.WithErrorHandler(func(w http.ResponseWriter, _ *http.Request, _ error) {
		w.WriteHeader(http.StatusTeapot)
	})
	const post = "POST / HTTP/1.1\r\nHost: a\r\n"
	for _, row := range []struct {
		name, sent string
		around     func(http.Handler) http.Handler
		opts       []shaper.MiddlewareOption
		want       int
	}{
		{name: "5 of 50 bytes", sent: post + "Content-Length: 50\r\n\r\n12345", want: 429},
		{name: "none of 50 bytes", sent: post + "Content-Length: 50\r\n\r\n", want: 429},
		{name: "5 of 100,000 bytes", sent: post + "Content-Length: 100000\r\n\r\n12345", want: 429},
		{name: "5 of a million bytes", sent: post + "Content-Length: 1000000\r\n\r\n12345", want: 429},
		{name: "chunked", sent: post + "Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n", want: 429},
		{name: "Expect", sent: post + "Content-Length: 50\r\nExpect: 100-continue\r\n\r\n", want: 429},
		{name: "Expect, chunked", sent: post + "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n", want: 429},
		{name: "answered by an error handler", sent: post + "Content-Length: 50\r\n\r\n12345",
			opts: []shaper.MiddlewareOption{teapot}, want: 418},
		{name: "hidden controller", sent: post + "Content-Length: 50\r\n\r\n12345", around: hide, want: 429},
		// A body that was put back without being read to its end is unread.
		{name: "sniffed", sent: post + "Content-Length: 50\r\n\r\n12345", around: touched(putBacks["bufio"]), want: 429},
		{name: "sniffed in part", sent: post + "Content-Length: 50\r\n\r\n12345", around: touched(putBacks["multi"]), want: 429},
	} {
		for _, hook := range hooks {
			t.Run(row.name+"/"+hook.name, func(t *testing.T) {
				t.Parallel()
				h := refusingHandler(t, row.opts...)
				if row.around != nil {
					h = row.around(h)
				}
				v := visitOn(t, dial(t, openServer(t, h, hook.set)), row.sent)
				answer, _ := v.answer()
				require.Equal(t, row.want, answer.StatusCode)
				require.True(t, answer.Close)
				if row.name == "hidden controller" && hook.name == "without" {
					return // The deadline is out of reach: only the answer can be had.
				}
				_, err := v.from.ReadByte()
				require.ErrorIs(t, err, io.EOF, "the server still waits for the body")
			})
		}
	}
}

// Clients that come back should not have to dial again.
func TestRefusalKeepsTheConnectionOfABodyThatHasCome(t *testing.T) {
	for _, hook := range hooks {
		for _, request := range []string{
			"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n" + strings.Repeat("x", 50),
			"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		} {
			v := visitOn(t, dial(t, openServer(t, refusingHandler(t), hook.set)), "")
			for range 3 {
				v.send(request)
				answer, _ := v.answer()
				require.Equal(t, http.StatusTooManyRequests, answer.StatusCode)
				require.False(t, answer.Close)
				time.Sleep(drain / 2) // The deadline of one request must not be the next one's.
			}
		}
	}
}

// drain is how long a refusal waits for the rest of a body.
const drain = 100 * time.Millisecond

// The tests of this file are about two things. Answers may last for long, and the shaper
// must not touch them once they have begun. And when a server ends, requests in line must
// still be answered.

// duplexSite answers /ws with an echo over an upgraded connection, /events with
// an event for each word of the channel, and anything else at once.
func duplexSite(events <-chan string) http.Handler {
	site := http.NewServeMux()
	site.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		_, _ = io.Copy(conn, buffered)
	})
	site.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for {
			if err := http.NewResponseController(w).Flush(); err != nil {
				return
			}
			select {
			case word, ok := <-events:
				if !ok {
					return
				}
				fmt.Fprintf(w, "data: %s\n\n", word)
			case <-r.Context().Done():
				return
			}
		}
	})
	site.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	return site
}

// proxyTo stands for the upstream that a shaper usually protects.
func proxyTo(t *testing.T, addr string) http.Handler {
	t.Helper()
	target, err := url.Parse("http://" + addr)
	require.NoError(t, err)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: transport,
	}
}

// The listener of a server that ends after its shaper stays open while the line drains, so that
// each newcomer is refused.
func TestAServerThatEndsBeforeItsShaperRefusesNobody(t *testing.T) {
	for _, order := range []struct {
		name      string
		end       func(context.Context, *http.Server, *shaper.Shaper) error
		allServed bool
	}{
		{"the server first", func(ctx context.Context, server *http.Server, s *shaper.Shaper) error {
			return errors.Join(server.Shutdown(ctx), s.Close())
		}, true},
		{"the shaper first", func(ctx context.Context, server *http.Server, s *shaper.Shaper) error {
			return errors.Join(s.Shutdown(ctx), server.Shutdown(ctx))
		}, false},
	} {
		t.Run(order.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBusyServer(t, "50/s depth 100", 40)
				time.Sleep(1001 * ms) // The line is never empty, and nothing else happens at this instant.
				b.forget()
				inLine := b.shaper.Stats().Waiting
				require.GreaterOrEqual(t, inLine, 30)
				require.NoError(t, order.end(t.Context(), b.server, b.shaper))
				b.clients.Wait()
				refused := b.answers[http.StatusServiceUnavailable]
				if order.allServed {
					require.Equal(t, map[int]int{200: inLine}, b.answers)
				} else {
					require.Greater(t, refused, inLine, "if none is refused, the order does not matter")
				}
			})
		})
	}
}

// What is left when the time is over is refused, with an answer.
func TestThoseStillInLineWhenTheTimeIsOverAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBusyServer(t, "1/s depth 100", 40)
		time.Sleep(1001 * ms)
		b.forget()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		require.ErrorIs(t, b.server.Shutdown(ctx), context.DeadlineExceeded)
		require.NoError(t, b.shaper.Close())
		b.clients.Wait()
		require.Equal(t, map[int]int{200: 10, 503: 29}, b.answers)
	})
}

// A busyServer has a line in front of its handler, and clients that keep their connections and
// send their next request 10 ms after each answer, until they reach no server any more.
type busyServer struct {
	server  *http.Server
	shaper  *shaper.Shaper
	clients sync.WaitGroup

	mu      sync.Mutex
	answers map[int]int // by status
}

// newBusyServer starts a server and its clients in a bubble.
func newBusyServer(t *testing.T, limits string, clients int) *busyServer {
	t.Helper()
	l, err := shaper.ParseLimits(limits)
	require.NoError(t, err)
	b := &busyServer{answers: map[int]int{}}
	b.shaper, err = shaper.New(l)
	require.NoError(t, err)
	b.server = &http.Server{Handler: shaper.Middleware(b.shaper)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))}
	pipes := newPipeListener()
	go func() { _ = b.server.Serve(pipes) }()
	for range clients {
		b.clients.Go(func() { b.visitAgainAndAgain(pipes) })
	}
	return b
}

// forget lets answers be counted from now on.
func (b *busyServer) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.answers)
}

func (b *busyServer) visitAgainAndAgain(pipes pipeListener) {
	transport := &http.Transport{DialContext: pipes.dial}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for ; ; time.Sleep(10 * ms) {
		answer, err := client.Get("http://site.example")
		if err != nil {
			return
		}
		_ = answer.Body.Close()
		b.mu.Lock()
		b.answers[answer.StatusCode]++
		b.mu.Unlock()
	}
}
