package shaper_test

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/realtime"
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

// If the shaper is shut down first and the server after it, all requests in line are
// served.
func TestShaperThenServerShutdownCutsOffNobody(t *testing.T) {
	const queued = 5
	s := stuckShaper(t, queued)
	server := serve(t, shaper.Middleware(s)(echoBody), with(hooked))
	site, client := server.URL, newClient(t)

	var inTheLine []<-chan string
	for i := range queued {
		inTheLine = append(inTheLine, send(t.Context(), t, client, site, strings.NewReader("served")))
		realtime.Until(t, inLine(s, i+1), "it waits")
	}
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), enough)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			ended <- err
			return
		}
		ended <- server.Config.Shutdown(ctx)
	}()
	realtime.Until(t, func() bool { _, err := s.Forecast(1); return err != nil && s.Stats().Waiting == queued }, "no more are admitted")

	require.Contains(t, postTo(client, site, nil), "503, retry ") // The server still listens.
	require.NoError(t, s.SetLimits(shaper.Limits{Rate: 1000, Depth: queued}))
	for _, became := range inTheLine {
		require.Equal(t, "200: served", realtime.Next(t, became))
	}
	require.NoError(t, realtime.Next(t, ended))
	_, err := net.DialTimeout("tcp", server.Listener.Addr().String(), time.Second)
	require.Error(t, err)
}

// The order matters: if the server is shut down first, it waits in vain for a line that
// does not move.
func TestServerShutdownAloneNeitherWakesNorCancelsTheLine(t *testing.T) {
	s := stuckShaper(t, 1)
	server := serve(t, shaper.Middleware(s)(echoBody), with(hooked))
	became := send(t.Context(), t, newClient(t), server.URL, strings.NewReader("served"))
	realtime.Until(t, inLine(s, 1), "it waits")

	ctx, cancel := context.WithTimeout(context.Background(), 50*ms)
	defer cancel()
	require.ErrorIs(t, server.Config.Shutdown(ctx), context.DeadlineExceeded)
	require.Equal(t, 1, s.Stats().Waiting)
	require.NoError(t, s.SetLimits(shaper.Limits{Rate: rate.Inf}))
	require.Equal(t, "200: served", realtime.Next(t, became))
}
