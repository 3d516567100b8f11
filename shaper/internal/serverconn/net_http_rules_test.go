package serverconn_test

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
)

// These tests assert rules of net/http without which much of this package would not be needed, so
// that a Go release which changes one is noticed. Few of the rules are documented. The tests of the
// middleware notice if another rule changes.

// aWhile is how long a test waits to see that something does not happen.
const aWhile = 120 * time.Millisecond

// endsWithin reports whether a context ends within a time.
func endsWithin(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return true
	case <-time.After(d):
		return false
	}
}

func TestNetHTTPCancelsTheRequestOfADepartedClientUnlessItsBodyIsUnread(t *testing.T) {
	t.Parallel()
	const head = "POST / HTTP/1.1\r\nHost: a\r\n"
	leave := (*visitor).leave
	unread := func(io.ReadCloser) {}
	for _, c := range []struct {
		name    string
		request string
		read    func(body io.ReadCloser)
		out     func(*visitor)
		cancels bool
	}{
		{"GET", get("/"), unread, leave, true},
		{"GET, half-closed", get("/"), unread, (*visitor).closeHalf, true},
		{"two GETs in one segment", get("/") + get("/"), unread, leave, true},
		{"GET and a stray byte", get("/"), unread, func(v *visitor) { v.send("G"); v.leave() }, false},
		{"body sent and unread", post("/", "hello"), unread, leave, false},
		{"body sent and unread, reset", post("/", "hello"), unread, (*visitor).reset, false},
		{"body sent in part", post("/", "he"), unread, leave, false},
		{"chunked, unread", head + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", unread, leave, false},
		{"to be asked for", head + "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n", unread, leave, false},
		{"body read to its end", post("/", "hello"), func(b io.ReadCloser) { _, _ = io.ReadAll(b) }, leave, true},
		{"body read, its end not seen", post("/", "hello"),
			func(b io.ReadCloser) { _, _ = io.ReadFull(b, make([]byte, 5)) }, leave, true},
		{"body closed", post("/", "hello"), func(b io.ReadCloser) { _ = b.Close() }, leave, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			runs, cancelled := make(chan bool, 2), make(chan bool, 2)
			visit := serve(t, func(w http.ResponseWriter, r *http.Request) {
				c.read(r.Body)
				runs <- true
				d := aWhile
				if c.cancels {
					d = enough
				}
				cancelled <- endsWithin(r.Context(), d)
			})
			v := visit(c.request)
			realtime.Next(t, runs)
			c.out(v)
			require.Equal(t, c.cancels, realtime.Next(t, cancelled))
		})
	}
}

func TestNetHTTPAnswersAHalfClosedClientWithAnEmpty200(t *testing.T) {
	t.Parallel()
	runs := make(chan bool, 1)
	visit := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		runs <- true
		<-r.Context().Done()
	})
	v := visit(get("/"))
	realtime.Next(t, runs)
	v.closeHalf()
	require.Empty(t, v.reads(200))
}

func TestNetHTTPCancelsTheRequestWhenAReadDeadlinePassesInARead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, request string
		then          func(body io.Reader)
		cancels       bool
	}{
		// The read is net/http's own, by which it watches the connection.
		{"no body", get("/"), func(io.Reader) {}, true},
		{"in the handler's read", post("/", "he"), func(b io.Reader) { _, _ = io.ReadAll(b) }, true},
		{"nobody reads", post("/", "he"), func(io.Reader) {}, false},
		// The end of the body removes a deadline that was set before.
		{"body read in time", post("/", "hello"), func(b io.Reader) { _, _ = io.ReadAll(b) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cancelled := make(chan bool, 1)
			visit := serve(t, func(w http.ResponseWriter, r *http.Request) {
				_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				c.then(r.Body)
				d := aWhile
				if c.cancels {
					d = enough
				}
				cancelled <- endsWithin(r.Context(), d)
			})
			visit(c.request)
			require.Equal(t, c.cancels, realtime.Next(t, cancelled))
		})
	}
	t.Run("set under a body that has been read", func(t *testing.T) {
		t.Parallel()
		cancelled := make(chan bool, 1)
		visit := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			cancelled <- endsWithin(r.Context(), enough)
		})
		visit(post("/", "hello"))
		require.True(t, realtime.Next(t, cancelled))
	})
}
