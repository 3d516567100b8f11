package shaper_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/realtime"
)

// Clients go away in every way while requests of every kind wait in one line. The
// requests leave the line within a second, no handler runs, and each slot goes to the next
// waiter.
func TestADepartedClientLeavesTheLine(t *testing.T) {
	withHook(t)
	t.Parallel()
	unlessLate(t, time.Second, departedClientsLeaveTheLine)
}

func departedClientsLeaveTheLine(t testing.TB, limit time.Duration) {
	const head = " %s HTTP/1.1\r\nHost: a\r\n"
	requests := map[string]string{
		"GET":                  "GET" + head + "\r\n",
		"GET-with-a-body":      "GET" + head + "Content-Length: 5\r\n\r\nhello",
		"two-GETs":             "GET" + head + "\r\n" + get("/second"),
		"sent":                 "POST" + head + "Content-Length: 5\r\n\r\nhello",
		"sent-in-part":         "POST" + head + "Content-Length: 5\r\n\r\nhe",
		"withheld":             "POST" + head + "Content-Length: 5\r\n\r\n",
		"great-sent-in-part":   "PUT" + head + "Content-Length: 1000000\r\n\r\nhe",
		"chunked-sent":         "POST" + head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"chunked-sent-in-part": "POST" + head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhe",
		"chunked-withheld":     "POST" + head + "Transfer-Encoding: chunked\r\n\r\n",
		"to-be-asked-for":      "POST" + head + "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n",
		"HTTP-1.0":             "POST %s HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello",
	}
	ways := map[string]func(*visitor){
		"closes": (*visitor).leave, "resets": (*visitor).reset, "half-closes": (*visitor).closeHalf,
	}
	e := newEntrance(t, 100).open()
	want, gone := []string{}, map[string]*visitor{}
	for kind, request := range requests {
		for way := range ways {
			path := "/" + kind + "/" + way
			gone[path] = e.visit(fmt.Sprintf(request, path))
			want = append(want, path+" 499")
		}
	}
	e.waiting(len(gone))
	other := e.visit(get("/next"))
	e.waiting(len(gone) + 1)

	for path, v := range gone {
		ways[path[strings.LastIndex(path, "/")+1:]](v)
	}
	since := time.Now()
	e.waiting(1)
	require.Less(t, time.Since(since), limit, "they are asked every 250 ms")
	var ended []string
	for range gone {
		ended = append(ended, e.ended())
	}
	require.ElementsMatch(t, want, ended)
	for path, v := range gone {
		if strings.HasSuffix(path, "/half-closes") {
			a, body := v.answer()
			require.Equal(t, 499, a.StatusCode, path)
			require.True(t, a.Close, path)
			require.Empty(t, body, path)
		}
	}
	e.admit("100/s depth 1")
	other.reads(200)
	require.Equal(t, "/next", realtime.Next(t, e.ran))
	require.EqualValues(t, 2, e.Stats().Departed, "the first slot of all, and this one")
	require.EqualValues(t, len(gone), e.Stats().Abandoned)
	require.Zero(t, e.Stats().Refused)
}

// net/http stops watching a connection on which a byte of the next request has come. So
// the middleware notices that the client has gone only when its slot comes.
func TestAClientWhoIsNotWatchedIsAskedForWhenItsSlotComes(t *testing.T) {
	for _, more := range []struct{ name, text string }{
		{"a stray byte", "G"}, {"a pipelined request", get("/later")},
	} {
		t.Run(more.name, func(t *testing.T) {
			withHook(t)
			t.Parallel()
			e := newEntrance(t, 2).open()
			gone := e.visit(get("/gone"))
			e.waiting(1)
			other := e.visit(get("/next"))
			e.waiting(2)
			gone.send(more.text)
			gone.leave()
			require.Equal(t, 2, e.Stats().Waiting)

			e.admit("100/s depth 2")
			other.reads(200)
			require.ElementsMatch(t, []string{"/gone 499", "/next 200"}, []string{e.ended(), e.ended()})
			require.Equal(t, "/next", realtime.Next(t, e.ran))
			require.EqualValues(t, 1, e.Stats().Abandoned)
			require.EqualValues(t, 2, e.Stats().Departed)
		})
	}
}

// x/time's limiter spends the slot, but the handler is spared.
func TestADepartedClientIsSeenThroughAnyLimiter(t *testing.T) {
	withHook(t)
	t.Parallel()
	for _, c := range []struct {
		name, request, more string
		every               time.Duration
	}{
		{"seen while it waits", post("/gone", "hello"), "", time.Hour},
		{"seen when the slot comes", get("/gone"), "G", 200 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := newEntrance(t, 0)
			l := rate.NewLimiter(rate.Every(c.every), 1)
			require.True(t, l.Allow())
			waits, left := make(chan bool, 1), make(chan bool)
			e.limiter = limiterFunc(func(ctx context.Context, n int) error {
				waits <- true
				<-left
				time.Sleep(100 * waitOfAnother) // The steps that make a wait of it may each be late.
				return l.WaitN(ctx, n)
			})
			e.open()
			gone := e.visit(c.request)
			realtime.Next(t, waits)
			gone.send(c.more)
			gone.leave()
			close(left)
			require.Equal(t, "/gone 499", e.ended())
			require.Empty(t, e.ran)
		})
	}
}

func TestALineFullOfVanishedUploadsAdmitsANewcomerHalfASecondLater(t *testing.T) {
	withHook(t)
	t.Parallel()
	unlessLate(t, 500*time.Millisecond, vanishedUploadsMakeWay)
}

func vanishedUploadsMakeWay(t testing.TB, limit time.Duration) {
	const depth = 20
	e := newEntrance(t, depth).open()
	var all []*visitor
	for range depth {
		all = append(all, e.visit(post("/gone", "he")))
	}
	e.waiting(depth)
	e.visit(get("/refused")).reads(429)

	for _, v := range all {
		v.leave()
	}
	time.Sleep(limit)
	newcomer := e.visit(get("/newcomer"))
	e.waiting(1)
	require.EqualValues(t, depth, e.Stats().Abandoned)
	e.admit("100/s depth 1")
	newcomer.reads(200)
}

// The connection of an upload that waits is asked, and then the upload is admitted.
func TestAnUploadWhoseClientStaysIsLetIn(t *testing.T) {
	for _, c := range []struct{ name, head, body string }{
		{"body sent", post("/", "hello"), ""},
		{"body withheld until it is let in", post("/", "he"), "llo"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := newEntrance(t, 1)
			e.handler = echo
			e.open()
			v := e.visit(c.head)
			e.waiting(1)
			time.Sleep(300 * time.Millisecond) // The connection is asked meanwhile.
			e.admit("100/s depth 1")
			v.send(c.body)
			require.Equal(t, "HELLO", v.reads(200))
			require.Zero(t, e.Stats().Abandoned)
		})
	}
}

// Neither deadlines nor watchers stay behind on a connection.
func TestAConnectionIsGoodForManyWaits(t *testing.T) {
	for _, hook := range []bool{true, false} {
		t.Run(map[bool]string{true: "asked", false: "read ahead"}[hook], func(t *testing.T) {
			t.Parallel()
			unlessLate(t, 500*time.Millisecond, func(t testing.TB, timeout time.Duration) {
				e := newEntrance(t, 9)
				if !hook {
					e.Config.ConnContext = nil
				}
				e.Config.ReadTimeout, e.Config.WriteTimeout = timeout, timeout
				e.Config.IdleTimeout = time.Minute
				e.handler = echo
				e.open()
				e.admit("500/s depth 9")
				v := e.visit("")
				for i := range 50 {
					switch i % 3 {
					case 0:
						v.send(post("/", "hello"))
						require.Equal(t, "HELLO", v.reads(200))
					case 1:
						v.send(get("/"))
						require.Empty(t, v.reads(200))
					case 2: // Pipelined: answered both, in order.
						v.send(post("/", "first") + post("/", "other") + get("/"))
						require.Equal(t, "FIRST", v.reads(200))
						require.Equal(t, "OTHER", v.reads(200))
						require.Empty(t, v.reads(200))
					}
				}
				time.Sleep(timeout * 6 / 5) // Longer than the timeouts.
				v.send(post("/", "hello"))
				require.Equal(t, "HELLO", v.reads(200))
				require.Zero(t, e.Stats().Abandoned)
			})
		})
	}
}

// A connection is asked again and again.
func TestAClientWhoDepartsLateIsSeen(t *testing.T) {
	withHook(t)
	t.Parallel()
	e := newEntrance(t, 1).open()
	gone := e.visit(chunked("/gone"))
	e.waiting(1)
	time.Sleep(600 * time.Millisecond)
	gone.leave()
	e.abandoned(1)
}

func TestADepartedClientIsSeenThroughTLS(t *testing.T) {
	withHook(t)
	t.Parallel()
	e := newEntrance(t, 1).open(overTLS)
	conn, err := tls.Dial("tcp", e.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	gone := visitOn(t, conn, chunked("/gone"))
	e.waiting(1)
	gone.leave()
	e.abandoned(1)
	require.Equal(t, "/gone 499", e.ended())
}

func TestADepartedClientIsSeenOnAUnixSocket(t *testing.T) {
	withHook(t)
	t.Parallel()
	e := newEntrance(t, 1)
	require.NoError(t, e.Listener.Close())
	var err error
	e.Listener, err = net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	e.open()
	gone := e.visit(chunked("/gone"))
	e.waiting(1)
	gone.leave()
	e.abandoned(1)
	require.Equal(t, "/gone 499", e.ended())
}

// In HTTP/2 a client goes by resetting its stream, and the connection stays. With a
// ReadTimeout the middleware must not find out by a read whether the body has been read:
// even a read of nothing would wait for the first byte.
func TestADepartedClientIsSeenInHTTP2(t *testing.T) {
	withheld, end := io.Pipe()
	for _, c := range []struct {
		name   string
		body   io.Reader
		length int64
		end    func() error
	}{
		{"no body", nil, 0, func() error { return nil }},
		{"greater than the window", bytes.NewReader(make([]byte, 4<<20)), 4 << 20, func() error { return nil }},
		{"withheld", withheld, 5, end.Close},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEntrance(t, 1)
			e.Config.ReadTimeout = time.Minute
			e.open(overHTTP2)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, "POST", e.URL+"/gone", c.body)
			require.NoError(t, err)
			r.ContentLength = c.length
			failed := make(chan error, 1)
			go func() {
				a, err := e.Client().Do(r)
				if err == nil {
					a.Body.Close()
				}
				failed <- err
			}()
			e.waiting(1)
			cancel()
			require.NoError(t, c.end()) // The client looks up from its own read of the body only now.
			require.ErrorIs(t, realtime.Next(t, failed), context.Canceled)
			e.abandoned(1)
			require.Equal(t, "/gone 499", e.ended())

			e.admit("100/s depth 1")
			a, err := e.Client().Get(e.URL + "/next")
			require.NoError(t, err)
			require.NoError(t, a.Body.Close())
			require.Equal(t, 2, a.ProtoMajor)
			require.Equal(t, "/next", realtime.Next(t, e.ran))
			require.EqualValues(t, 2, e.Stats().Departed)
		})
	}
}

// The middleware looks through a wrapper of a connection that has NetConn, and serves the
// requests of one that does not.
func TestAConnectionThatCannotBeAskedIsServed(t *testing.T) {
	t.Parallel()
	e := newEntrance(t, 1)
	e.handler = echo
	e.Listener = wrapListener{e.Listener, func(c net.Conn) net.Conn { return struct{ net.Conn }{c} }}
	e.open()
	v := e.visit(post("/", "hello"))
	e.waiting(1)
	e.admit("100/s depth 1")
	require.Equal(t, "HELLO", v.reads(200))
}

// Clients wait in a line, every other one with an upload that nobody has read, and
// half of them vanish in each of the ways to do so. Then the line moves on, before
// the connections of the uploads have been asked for their clients: the departure
// itself must find out.
func TestNoSlotIsSpentOnTheVanished(t *testing.T) {
	withHook(t)
	t.Parallel()
	clients := rounds(400, 1000, 1000)
	e := newEntrance(t, clients)
	e.handler = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	e.open()
	var vanish []*visitor
	stays := 0
	for i := range clients {
		upload := i%2 == 0
		switch vanishes := i/2%2 == 0; {
		case vanishes && upload:
			vanish = append(vanish, e.visit(post("/vanishes", "hello"[:i/4%6])))
		case vanishes:
			vanish = append(vanish, e.visit(get("/vanishes")))
		case upload:
			e.visit(post("/stays", "hello"))
			stays++
		default:
			e.visit(get("/stays"))
			stays++
		}
	}
	e.waiting(clients)
	for i, v := range vanish { // Those first of which nothing tells when the server's system knows.
		switch i % 3 {
		case 1:
			v.reset()
		case 2:
			v.closeHalf()
		}
	}
	for i, v := range vanish {
		if i%3 == 0 {
			v.leave()
		}
	}
	e.admit(fmt.Sprintf("1000/s depth %d", clients))
	ended := map[string]int{}
	for range clients {
		ended[e.ended()]++
	}
	require.LessOrEqual(t, ended["/vanishes 204"], 1)
	require.Equal(t, stays, ended["/stays 204"])
	require.InDelta(t, stays+1, e.Stats().Departed, 1, "the first slot of all is not theirs")
	require.InDelta(t, len(vanish), e.Stats().Abandoned, 1)
}
