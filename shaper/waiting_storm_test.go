package shaper_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/internal/serverconn"
)

// Requests of a server end while they wait, just as their slots come, and whoever looks at
// their connections finds that out at the same time. Each call has one outcome, and no later
// wait gets the news of an earlier one, whose channel it may have.
func TestRequestsThatEndInAStormOfDepartures(t *testing.T) {
	const depth, callers = 100, 50
	rounds := 40
	if long {
		rounds = 1000
	}
	s := mustMake(t, shaper.Limits{Rate: 20_000, Depth: depth})
	var outcomes [2]atomic.Uint64 // departed, abandoned
	var wrong atomic.Pointer[error]
	watcher := new(serverconn.Watcher)
	call := func() {
		request, cancel := context.WithCancel(context.WithValue(context.Background(), http.ServerContextKey, new(http.Server)))
		conn := serverconn.Of(httptest.NewRecorder(), httptest.NewRequestWithContext(request, "GET", "/", nil))
		ctx := conn.PeerContext(true, watcher)
		var others sync.WaitGroup
		defer others.Wait()
		defer cancel()
		if rand.N(3) > 0 {
			after := rand.N(4 * time.Millisecond)
			others.Go(func() { time.Sleep(after); cancel() })
			others.Go(func() {
				for request.Err() == nil || ctx.Err() == nil {
					time.Sleep(10 * time.Microsecond)
				}
			})
		}
		err := s.WaitN(ctx, 1)
		conn.EndWait()
		switch err {
		case nil:
			outcomes[0].Add(1)
		case context.Canceled:
			outcomes[1].Add(1)
		default:
			wrong.Store(&err)
		}
	}
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range rounds {
				call()
			}
		})
		all.Go(func() { // These have the channels of the others next.
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			for range rounds {
				if err := s.WaitN(ctx, 1); err != nil {
					wrong.Store(&err)
				}
			}
		})
	}
	all.Wait()
	if err := wrong.Load(); err != nil {
		require.NoError(t, *err)
	}
	st := s.Stats()
	require.Equal(t, outcomes[0].Load()+callers*uint64(rounds), st.Departed)
	require.Equal(t, outcomes[1].Load(), st.Abandoned)
	require.Positive(t, st.Abandoned)
	require.Zero(t, st.Refused)
	require.Zero(t, st.Waiting)
}
