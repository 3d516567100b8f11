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
	var l ledger
	s, err := shaper.New(shaper.Limits{Rate: 20_000, Depth: depth}, l.trace())
	require.NoError(t, err)
	watcher := new(serverconn.Watcher)
	left := connectionWhoseClientHasLeft(t)
	one := func() {
		request, cancel := context.WithCancel(context.WithValue(context.Background(), http.ServerContextKey, new(http.Server)))
		ending := rand.N(4)
		if ending == 0 { // The context stays as it is, and only a look at the connection tells.
			request = serverconn.NewContext(request, left)
		}
		c := &call{cancel: cancel, cost: 1}
		request = context.WithValue(request, callKey{}, c)
		conn := serverconn.Of(httptest.NewRecorder(), httptest.NewRequestWithContext(request, "GET", "/", nil))
		ctx := conn.PeerContext(true, watcher)
		c.Context = ctx
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
						l.fault("neither returned nor was cancelled in time")
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
		l.note(c, err)
	}
	blow := func() {
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range each {
					one()
				}
			})
			all.Go(func() { // Its calls have the channels of the first next.
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				for range each {
					c := &call{Context: ctx, cancel: func() {}, cost: 1}
					err := s.WaitN(c, 1)
					if l.note(c, err); err != nil {
						l.fault("returned %v, though its context did not end", err)
					}
				}
			})
		}
		all.Wait()
	}
	began := time.Now()
	blow()
	for limits := s.Limits(); s.Stats().Abandoned == 0 && limits.Rate > 100; { // The machine is too slow for anybody to wait.
		require.Less(t, time.Since(began), enough, "no request has ended while it waited, down to %v", limits)
		limits.Rate /= 2
		require.NoError(t, s.SetLimits(limits))
		blow()
	}
	st := s.Stats()
	l.requireAgreement(t, st)
	require.Positive(t, st.Abandoned)
	require.Zero(t, st.Refused)
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
