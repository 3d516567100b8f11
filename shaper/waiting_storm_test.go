package shaper_test

import (
	"context"
	"math/rand/v2"
	"net"
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

// Requests of a server end while they wait, just as their slots come: their contexts are
// cancelled, or their clients are found to be gone. Each call has one outcome, and no later wait
// gets the news of an earlier one, whose channel it may have.
func TestRequestsThatEndInAStormOfDepartures(t *testing.T) {
	const depth, callers = 100, 50
	t.Parallel()
	each := rounds(40, 400, 1000)
	s := mustMake(t, shaper.Limits{Rate: 20_000, Depth: depth})
	var outcomes [2]atomic.Uint64 // departed, abandoned
	var wrong atomic.Pointer[error]
	var stuck atomic.Int64
	watcher := new(serverconn.Watcher)
	left := connectionWhoseClientHasLeft(t)
	call := func() {
		request, cancel := context.WithCancel(context.WithValue(context.Background(), http.ServerContextKey, new(http.Server)))
		ending := rand.N(4)
		if ending == 0 { // The context stays as it is, and only a look at the connection tells.
			request = serverconn.NewContext(request, left)
		}
		conn := serverconn.Of(httptest.NewRecorder(), httptest.NewRequestWithContext(request, "GET", "/", nil))
		ctx := conn.PeerContext(true, watcher)
		var others sync.WaitGroup
		var returned atomic.Bool
		defer others.Wait()
		defer cancel()
		defer returned.Store(true)
		after := rand.N(4 * time.Millisecond)
		switch ending {
		case 0, 1:
			others.Go(func() {
				time.Sleep(after)
				for began := time.Now(); ctx.Err() == nil && !returned.Load(); {
					if time.Since(began) > enough {
						stuck.Add(1)
						cancel()
						return
					}
					time.Sleep(10 * time.Microsecond)
				}
			})
			if ending == 0 {
				break
			}
			fallthrough
		case 2:
			others.Go(func() { time.Sleep(after); cancel() })
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
	others := uint64(0) // calls that have the channels of the first next
	blow := func() {
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range each {
					call()
				}
			})
			all.Go(func() {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				for range each {
					if err := s.WaitN(ctx, 1); err != nil {
						wrong.Store(&err)
					}
				}
			})
			others += uint64(each)
		}
		all.Wait()
	}
	began := time.Now()
	blow()
	for l := s.Limits(); outcomes[1].Load() == 0 && l.Rate > 100; { // The machine is too slow for anybody to wait.
		require.Less(t, time.Since(began), enough, "no request has ended while it waited, down to %v", l)
		l.Rate /= 2
		require.NoError(t, s.SetLimits(l))
		blow()
	}
	require.Zero(t, stuck.Load(), "calls that neither returned nor were cancelled in time")
	if err := wrong.Load(); err != nil {
		require.NoError(t, *err)
	}
	st := s.Stats()
	require.Equal(t, outcomes[0].Load()+others, st.Departed)
	require.Equal(t, outcomes[1].Load(), st.Abandoned)
	require.Positive(t, st.Abandoned)
	require.Zero(t, st.Refused)
	require.Zero(t, st.Waiting)
}

// connectionWhoseClientHasLeft returns the server's end of a connection.
func connectionWhoseClientHasLeft(t *testing.T) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	client := dial(t, l.Addr().String())
	server, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	sendEnd(t, client.(*net.TCPConn))
	return server
}
