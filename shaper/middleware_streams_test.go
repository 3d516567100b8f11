package shaper_test

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// The tests of this file are about two things. Answers may last for long, and the shaper
// must not touch them once they have begun. And when a server ends, requests in line must
// still be answered.

// duplexSite answers /ws with an echo over an upgraded connection, /events with
// an event for each word of the channel, and anything else at once.
func duplexSite(events <-chan string) http.Handler {
	site := http.NewServeMux()
	site.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		digest := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
			"Sec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(digest[:]))
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

// onDuplexSites runs a test on duplexSite itself and on a proxy for it, each behind a
// shaper.
func onDuplexSites(t *testing.T, test func(t *testing.T, addr string, events chan<- string)) {
	for _, proxied := range []bool{false, true} {
		for _, hook := range hooks {
			t.Run(fmt.Sprintf("proxied %v/%s", proxied, hook.name), func(t *testing.T) {
				events := make(chan string)
				h := duplexSite(events)
				if proxied {
					h = proxyTo(t, openServer(t, h))
				}
				s, err := shaper.New(shaper.Limits{Rate: 1000, Depth: 10})
				require.NoError(t, err)
				test(t, openServer(t, shaper.Middleware(s)(h), hook.set), events)
			})
		}
	}
}

func TestUpgradedConnectionPassesThrough(t *testing.T) {
	onDuplexSites(t, func(t *testing.T, addr string, _ chan<- string) {
		echoes := upgrade(t, addr)
		client := newClient(t)
		for _, word := range []string{"ping", "pong"} {
			echoes(word)
			require.Equal(t, "200: hello", postTo(client, "http://"+addr, nil)) // Other requests are not held up meanwhile.
		}
	})
}

func TestEventsAreFlushedOneByOne(t *testing.T) {
	onDuplexSites(t, func(t *testing.T, addr string, events chan<- string) {
		client := newClient(t)
		answer, err := client.Get("http://" + addr + "/events")
		require.NoError(t, err)
		defer answer.Body.Close()
		reader := bufio.NewReader(answer.Body)
		for _, word := range []string{"first", "second"} {
			events <- word
			line, err := reader.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "data: "+word+"\n", line)
			_, err = reader.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "200: hello", postTo(client, "http://"+addr, nil))
		}
		close(events)
		_, err = reader.ReadByte()
		require.ErrorIs(t, err, io.EOF)
	})
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
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		select {
		case pipes.conns <- server:
			return client, nil
		case <-pipes.closed:
			return nil, net.ErrClosed
		}
	}}
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
