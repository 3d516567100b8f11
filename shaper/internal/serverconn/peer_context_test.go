package serverconn_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper/internal/serverconn"
)

// ofServer returns the Conn of a request that has that context and seems to come from a
// server.
func ofServer(ctx context.Context) *serverconn.Conn {
	ctx = context.WithValue(ctx, http.ServerContextKey, new(http.Server))
	return serverconn.Of(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
}

// call returns the context to call a limiter with, and what to call when that has returned.
func call(c *serverconn.Conn, onlyWaitersAskDone bool) (ctx context.Context, stop func()) {
	return c.PeerContext(onlyWaitersAskDone, new(serverconn.Watcher)), c.EndWait
}

func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// endsAfter returns when the context ends.
func endsAfter(ctx context.Context) time.Duration {
	since := time.Now()
	<-ctx.Done()
	return time.Since(since)
}

func TestARequestWhoseLimiterNeverAsksForDoneIsNotGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := call(ofServer(ended()), true)
		defer stop()
		require.NoError(t, ctx.Err())
		time.Sleep(time.Hour) // This is not a wait for a slot.
		require.NoError(t, ctx.Err())
	})
}

func TestTheEndOfTheRequestsContextCountsAfterAWait(t *testing.T) {
	for _, c := range []struct {
		onlyWaitersAskDone bool
		after              time.Duration
	}{{true, time.Millisecond}, {false, 20 * time.Millisecond}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := call(ofServer(ended()), c.onlyWaitersAskDone)
			defer stop()
			require.NoError(t, ctx.Err())
			require.Equal(t, c.after, endsAfter(ctx))
			require.Equal(t, context.Canceled, ctx.Err())
		})
		synctest.Test(t, func(t *testing.T) {
			request, cancel := context.WithCancel(context.Background())
			ctx, stop := call(ofServer(request), c.onlyWaitersAskDone)
			defer stop()
			time.AfterFunc(time.Minute, cancel)
			require.Equal(t, time.Minute, endsAfter(ctx))
		})
		// A limiter that sleeps asks the context afterwards, or never.
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := call(ofServer(ended()), c.onlyWaitersAskDone)
			defer stop()
			time.Sleep(c.after + time.Millisecond)
			require.Equal(t, !c.onlyWaitersAskDone, ctx.Err() != nil)
		})
	}
}

func TestADeadlineCountsAtOnce(t *testing.T) {
	for _, onlyWaitersAskDone := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			expired, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			ctx, stop := call(ofServer(expired), onlyWaitersAskDone)
			defer stop()
			require.Equal(t, time.Second, endsAfter(ctx))
			require.Equal(t, context.DeadlineExceeded, ctx.Err())

			ctx, stop = call(ofServer(expired), onlyWaitersAskDone)
			defer stop()
			require.Equal(t, context.DeadlineExceeded, ctx.Err())
			require.Zero(t, endsAfter(ctx))
		})
	}
}

// Some limiters keep the context of a call until the request that it admitted has ended.
func TestTheContextOutlivesTheCall(t *testing.T) {
	for _, onlyWaitersAskDone := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			request, cancel := context.WithCancel(context.Background())
			ctx, stop := call(ofServer(request), onlyWaitersAskDone)
			done := ctx.Done()
			stop()
			time.Sleep(time.Hour)
			synctest.Wait()
			require.NoError(t, ctx.Err())
			cancel()
			<-done
			require.Equal(t, context.Canceled, ctx.Err())
		})
	}
}

// A request that leaves at once does not count as gone if its context ended before. But
// what keeps the context after the call must not wait for an end that has come already.
func TestTheContextEndsWithTheCallIfTheRequestHasEndedBefore(t *testing.T) {
	for _, onlyWaitersAskDone := range []bool{true, false} {
		for _, asks := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := call(ofServer(ended()), onlyWaitersAskDone)
				if asks {
					ctx.Done()
					synctest.Wait()
				}
				require.NoError(t, ctx.Err())
				stop()
				require.Equal(t, context.Canceled, ctx.Err())
				require.Zero(t, endsAfter(ctx))
			})
		}
	}
}

// A limiter that has not asked for Done during the call may do so afterwards.
func TestTheContextCanBeAskedAfterTheCall(t *testing.T) {
	for _, onlyWaitersAskDone := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			request, cancel := context.WithCancel(context.Background())
			ctx, stop := call(ofServer(request), onlyWaitersAskDone)
			stop()
			require.NoError(t, ctx.Err())
			cancel()
			require.Equal(t, context.Canceled, ctx.Err())
			require.Zero(t, endsAfter(ctx))
		})
	}
}

// The context of a request that is from no server is the caller's own: whatever ends it,
// it is not a client that has closed its sending half.
func TestARequestFromNoServerKeepsItsContext(t *testing.T) {
	r := httptest.NewRequestWithContext(ended(), "GET", "/", nil)
	ctx, stop := call(serverconn.Of(httptest.NewRecorder(), r), true)
	defer stop()
	require.Equal(t, r.Context(), ctx)
}

// Handlers that run after the wait may give the request another context while its own ends, as over HTTP/2 it does when the
// client goes. The race detector is what fails here.
func TestTheRequestIsNotReadAfterTheWait(t *testing.T) {
	outer, cancel := context.WithCancel(t.Context())
	c := ofServer(outer)
	ctx, stop := call(c, true)
	done := ctx.Done()
	stop()
	cancel()
	*c.Request() = *c.Request().WithContext(context.Background())
	<-done
}

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

// deadlines counts how often the deadline for reading is set, for a refusal of its request.
type deadlines struct {
	http.ResponseWriter
	set int
}

func (d *deadlines) SetReadDeadline(time.Time) error { d.set++; return nil }

// A refusal sets a deadline for the rest of the body only if the rest has not come: else it
// would take half as long again. This also shows that the fields of net/http have the names by
// which that is found out.
func TestARefusalSetsADeadlineOnlyForABodyThatHasNotCome(t *testing.T) {
	const length = 2000 // With the header it is less than net/http's buffer.
	head := "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000\r\n\r\n"
	body := strings.Repeat("x", length)
	for name, c := range map[string]struct {
		request string
		reads   int // by an outer handler
		wrap    func(io.ReadCloser) io.ReadCloser
		set     int
	}{
		"all of it":                {head + body, 0, nil, 0},
		"all of it, read in part":  {head + body, 10, nil, 0},
		"a part":                   {head + body[:length-1], 0, nil, 1},
		"a part, read in part":     {head + body[:length-1], 10, nil, 1},
		"none":                     {head, 0, nil, 1},
		"the next request, too":    {head + body + get("/"), 0, nil, 0},
		"all of a chunked one":     {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 0, nil, 1},
		"one that asks for itself": {"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello", 0, nil, 1},
		"one that is wrapped": {head + body, 0, func(b io.ReadCloser) io.ReadCloser {
			return struct {
				io.Reader
				io.Closer
			}{b, b}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := make(chan int, 2) // There may be a next request.
			visit := serve(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadFull(r.Body, make([]byte, c.reads))
				if c.wrap != nil {
					r.Body = c.wrap(r.Body)
				}
				d := &deadlines{ResponseWriter: w}
				serverconn.Of(d, r).Refuse(w.Header())
				found <- d.set
				w.Header().Set("Connection", "close")
				_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			})
			visit(c.request)
			require.Equal(t, c.set, realtime.Next(t, found))
		})
	}
}

// waitsFor waits with a context of PeerContext for news or for the end of the context, as a
// Shaper does. It returns how long that took, and whether there was news.
func waitsFor(t *testing.T, ctx context.Context, news chan struct{}) (time.Duration, bool) {
	t.Helper()
	since := time.Now()
	w, done := serverconn.BeginWait(ctx, news)
	require.NotNil(t, w)
	came := w.Await(news, done)
	return time.Since(since), came
}

func TestAWaitEndsWithTheContextOfItsRequest(t *testing.T) {
	for name, c := range map[string]struct {
		request func(parent context.Context) (context.Context, context.CancelFunc)
		after   time.Duration
		err     error
	}{
		"cancelled while it waits": {func(parent context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(parent)
			time.AfterFunc(time.Minute, cancel)
			return ctx, cancel
		}, time.Minute, context.Canceled},
		"cancelled before, which counts after a millisecond": {func(parent context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(parent)
			cancel()
			return ctx, cancel
		}, time.Millisecond, context.Canceled},
		"a deadline, which counts at once": {func(parent context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(parent, time.Microsecond)
		}, time.Microsecond, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				request, cancel := c.request(t.Context())
				defer cancel()
				ctx, stop := call(ofServer(request), true)
				defer stop()
				after, news := waitsFor(t, ctx, make(chan struct{}, 1))
				require.Equal(t, c.after, after)
				require.False(t, news)
				require.Equal(t, c.err, ctx.Err())
			})
		})
	}
}

// A request that leaves within a millisecond has not waited, even if its client has closed its
// sending half.
func TestNewsWithinAMillisecondComeBeforeTheEndOfTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := call(ofServer(ended()), true)
		defer stop()
		news := make(chan struct{}, 1)
		time.AfterFunc(time.Millisecond-1, func() { news <- struct{}{} })
		after, came := waitsFor(t, ctx, news)
		require.Equal(t, time.Millisecond-1, after)
		require.True(t, came)
		require.NoError(t, ctx.Err())
	})
}

// A hook may wait with the context, too, in another goroutine. Either of them is told of the end.
func TestTwoWaitsWithOneContextBothEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		request, cancel := context.WithCancel(t.Context())
		ctx, stop := call(ofServer(request), true)
		defer stop()
		news := make(chan struct{}, 1)
		first, done := serverconn.BeginWait(ctx, news)
		require.NotNil(t, first)
		second, otherDone := serverconn.BeginWait(ctx, make(chan struct{}, 1))
		require.Nil(t, second)
		time.AfterFunc(time.Second, cancel)
		since := time.Now()
		require.False(t, first.Await(news, done))
		<-otherDone
		require.Equal(t, time.Second, time.Since(since))

		// The context has ended, and a wait that begins now ends at once.
		third, done := serverconn.BeginWait(ctx, news)
		require.Nil(t, third)
		<-done
	})
}

// A context that is none of a server's request is waited for as it is.
func TestAnotherContextIsWaitedForAsItIs(t *testing.T) {
	ctx := ended()
	w, done := serverconn.BeginWait(ctx, nil)
	require.Nil(t, w)
	require.Equal(t, ctx.Done(), done)
}

// Uploads that nobody has read wait, some of them are let in, and the clients of the others
// vanish. One Watcher finds each of these, wherever it is in the list, and whether the list was
// empty in between or not.
func TestAWatcherFindsEachClientThatHasGone(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("a connection can be asked for its client on Linux only")
	}
	t.Parallel()
	type upload struct {
		conn *serverconn.Conn
		news chan struct{}
		err  chan error // of its context, after its wait
	}
	watcher := new(serverconn.Watcher)
	came := make(chan upload, 1)
	visit := serve(t, func(w http.ResponseWriter, r *http.Request) {
		u := upload{serverconn.Of(w, r), make(chan struct{}, 1), make(chan error, 1)}
		ctx := u.conn.PeerContext(true, watcher)
		waiting, done := serverconn.BeginWait(ctx, u.news)
		came <- u
		waiting.Await(u.news, done)
		u.err <- ctx.Err()
	}, func(s *http.Server) { s.ConnContext = serverconn.NewContext })
	// Each is looked at every 250 ms. That takes longer on a busy machine, but not each time.
	const rounds, soon = 2, time.Second
	for inTime, began := 0, time.Now(); inTime < rounds; {
		require.Less(t, time.Since(began), enough, "three clients that have gone are found within %v in %d rounds only", soon, inTime)
		var visitors []*visitor
		var uploads []upload
		for range 6 {
			visitors = append(visitors, visit(post("/", "he")))
			uploads = append(uploads, realtime.Next(t, came))
		}
		for _, i := range []int{0, 2, 5} {
			uploads[i].conn.EndWait()
			uploads[i].conn.EndWait() // as End does
		}
		for _, i := range []int{4, 1, 3} {
			require.NoError(t, visitors[i].Close())
		}
		since := time.Now()
		for _, i := range []int{1, 3, 4} {
			require.Equal(t, context.Canceled, realtime.Next(t, uploads[i].err))
			uploads[i].conn.EndWait()
		}
		if time.Since(since) < soon {
			inTime++
		}
		for _, i := range []int{0, 2, 5} {
			uploads[i].news <- struct{}{}
			require.NoError(t, realtime.Next(t, uploads[i].err))
		}
	}
}

// Each request that waits has a Conn. (The size holds on 64-bit machines.)
func TestAConnIsSmall(t *testing.T) {
	if strconv.IntSize != 64 {
		t.Skip("the size is that of 64-bit machines")
	}
	require.LessOrEqual(t, reflect.TypeFor[serverconn.Conn]().Size(), uintptr(144))
}

func TestMain(m *testing.M) {
	// A connection that is closed with an unread body sleeps for half a second in
	// net/http, which is as long as goleak waits.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}
