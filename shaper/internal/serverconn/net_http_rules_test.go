package serverconn_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
)

// These tests assert the rules of net/http that this package relies on, so that a Go
// release which changes one is noticed. Few of the rules are documented.

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

func TestNetHTTPSendsNoAnswerBeforeTheBodyUnlessItsDeadlinePasses(t *testing.T) {
	t.Parallel()
	for _, limit := range []bool{false, true} {
		t.Run(fmt.Sprintf("deadline %t", limit), func(t *testing.T) {
			t.Parallel()
			visit := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if limit {
					_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(20 * time.Millisecond))
				}
				w.WriteHeader(429)
			})
			v := visit(post("/", "he"))
			if !limit {
				v.readsNothing(aWhile)
				v.send("llo")
			}
			v.reads(429)
		})
	}
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

func TestNetHTTPReadsOnAfterADeadlineThatPassedWhileNobodyRead(t *testing.T) {
	t.Parallel()
	for _, renew := range []bool{false, true} {
		t.Run(fmt.Sprintf("renewed %t", renew), func(t *testing.T) {
			t.Parallel()
			visit := serve(t, func(w http.ResponseWriter, r *http.Request) {
				_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // as a ReadTimeout does
				time.Sleep(100 * time.Millisecond)
				if renew {
					_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(enough))
				}
				echo(w, r)
			})
			v := visit(post("/", ""))
			if renew {
				v.send("hello")
				require.Equal(t, "HELLO", v.reads(200))
			} else {
				require.Contains(t, v.reads(400), "timeout")
			}
		})
	}
}

// A read of no bytes shows whether a body has been read to its end, and the name of its
// type shows its maker.
func TestNetHTTPTellsOfABodyWithoutReadingIt(t *testing.T) {
	t.Parallel()
	type look struct {
		made          string
		before, after error
	}
	for _, c := range []struct {
		want look
		wrap func(w http.ResponseWriter, r *http.Request) io.ReadCloser
	}{
		{look{"*http.body", nil, io.EOF}, func(_ http.ResponseWriter, r *http.Request) io.ReadCloser { return r.Body }},
		{look{"*http.maxBytesReader", nil, io.EOF}, func(w http.ResponseWriter, r *http.Request) io.ReadCloser {
			return http.MaxBytesReader(w, r.Body, 9)
		}},
	} {
		t.Run(c.want.made, func(t *testing.T) {
			t.Parallel()
			looks, sent := make(chan look, 1), make(chan bool)
			visit := serve(t, func(w http.ResponseWriter, r *http.Request) {
				body := c.wrap(w, r)
				l := look{made: fmt.Sprintf("%T", body)}
				_, l.before = body.Read(nil)
				sent <- true
				_, _ = io.ReadFull(body, make([]byte, 5))
				_, l.after = body.Read(nil)
				looks <- l
			})
			v := visit(post("/", ""))
			realtime.Next(t, sent)
			v.send("hello")
			require.Equal(t, c.want, realtime.Next(t, looks))
		})
	}
}

func TestNetHTTPLosesTheAnswerWhenTheWriteTimeoutPassesInTheHandler(t *testing.T) {
	t.Parallel()
	for _, renew := range []bool{false, true} {
		t.Run(fmt.Sprintf("renewed %t", renew), func(t *testing.T) {
			t.Parallel()
			visit := serve(t, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(100 * time.Millisecond)
				if renew {
					_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(enough))
				}
				_, _ = io.WriteString(w, "answer")
			}, func(s *http.Server) { s.WriteTimeout = 50 * time.Millisecond })
			v := visit(get("/"))
			if renew {
				require.Equal(t, "answer", v.reads(200))
				return
			}
			_, err := v.from.ReadByte()
			require.ErrorIs(t, err, io.EOF)
		})
	}
}

func TestNetHTTPShutdownNeitherWakesNorCancels(t *testing.T) {
	t.Parallel()
	var server *http.Server
	runs, stopped := make(chan bool, 1), make(chan bool)
	visit := serve(t, func(w http.ResponseWriter, r *http.Request) {
		runs <- true
		<-stopped
		_, _ = fmt.Fprint(w, r.Context().Err())
	}, func(s *http.Server) { server = s })
	v := visit(get("/"))
	realtime.Next(t, runs)
	ctx, cancel := context.WithTimeout(t.Context(), aWhile)
	defer cancel()
	require.ErrorIs(t, server.Shutdown(ctx), context.DeadlineExceeded)
	close(stopped)
	require.Equal(t, "<nil>", v.reads(200))
}
