package serverconn_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

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
