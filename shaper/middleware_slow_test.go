package shaper_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

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
	for i := range 80 {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		request := "GET /large HTTP/1.1\r\nHost: a\r\n\r\n"
		if i%2 == 0 {
			request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n"
		}
		go func() {
			_, err := io.WriteString(conn, request)
			for b := make([]byte, 1); err == nil; time.Sleep(20 * time.Millisecond) {
				if i%2 == 0 {
					_, err = conn.Write(b)
				} else {
					_, err = conn.Read(b)
				}
			}
		}()
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
