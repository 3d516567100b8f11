package serverconn_test

import (
	"context"
	"net/http"
	"reflect"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper/internal/serverconn"
)

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
