package shaper_test

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/internal/serverconn"
)

// ending is how the context of a call ends in a contest.
type ending int

const (
	endsNever     ending = iota
	endsInLine           // cancelled from another goroutine, a little after the entry
	endsAtSlot           // cancelled from another goroutine when another request has just left
	endsInTime           // by a deadline near the predicted departure
	endsUnnoticed        // Err returns an error in the line, and nothing wakes the call
	endings              // how many there are

	endsWithItsRequest // that of a server, which is cancelled or whose client is found to be gone
)

// A contest is a storm in which contexts end around the instant at which their
// calls would leave.
type contest struct {
	storm
	s *shaper.Shaper

	// targets are contexts of calls in line that a call which leaves may cancel.
	targets [16]atomic.Pointer[call]
	gone    net.Conn // whose client has gone
	watcher *serverconn.Watcher

	races  atomic.Int64 // calls that entered the line
	passes atomic.Int64 // calls that left at once
}

func newContest(t *testing.T, l shaper.Limits) *contest {
	c := &contest{gone: connectionWhoseClientHasLeft(t), watcher: new(serverconn.Watcher)}
	c.most, c.also = l.InFlight, c.end
	var err error
	c.s, err = shaper.New(l, c.trace())
	require.NoError(t, err)
	shaper.AuditRefusals(c.s)
	return c
}

// end ends contexts when a hook is told of a call.
func (c *contest) end(one *call, told hookKind, _ shaper.Event) {
	switch told {
	case wasEnqueued:
		c.races.Add(1)
		switch one.ending {
		case endsInLine:
			c.meddlers.Go(func() {
				for range rand.N(20) {
					runtime.Gosched()
				}
				one.cancel()
			})
		case endsAtSlot:
			c.targets[rand.N(len(c.targets))].Store(one)
		case endsUnnoticed:
			one.over = true // Err is asked at entry, and once after the slot.
		}
	case wasDeparted:
		if target := c.targets[rand.N(len(c.targets))].Swap(nil); target != nil {
			target.cancel()
		}
	}
}

// request makes ctx the context of a request of a server, while its call waits. The client of some
// has gone, which only a look at the connection tells.
func (c *contest) request(one *call) (ctx context.Context, endWait func()) {
	request, cancel := context.WithCancel(context.WithValue(context.Background(), http.ServerContextKey, new(http.Server)))
	hasGone, after := rand.N(2) == 0, rand.N(4*time.Millisecond)
	if hasGone {
		request = serverconn.NewContext(request, c.gone)
	}
	conn := serverconn.Of(httptest.NewRecorder(), httptest.NewRequestWithContext(context.WithValue(request, callKey{}, one), "GET", "/", nil))
	one.Context, one.cancel = conn.PeerContext(true, c.watcher), cancel
	var returned atomic.Bool
	c.meddlers.Go(func() {
		time.Sleep(after)
		if !hasGone {
			cancel()
			return
		}
		for began := time.Now(); one.Context.Err() == nil && !returned.Load(); time.Sleep(10 * time.Microsecond) {
			if time.Since(began) > enough {
				c.fault("neither returned nor was cancelled in time")
				cancel()
				return
			}
		}
	})
	return one.Context, func() {
		returned.Store(true)
		conn.EndWait()
	}
}

// call makes one call. It lets others leave if it was refused, rather than be
// refused again.
func (c *contest) call(e ending, cost int) {
	one := &call{ending: e, cost: cost}
	ctx, endWait := context.Context(one), func() {}
	switch e {
	case endsInTime:
		predicted, _ := c.s.Forecast(cost)
		one.Context, one.cancel = context.WithTimeout(context.Background(), predicted/2+rand.N(predicted+time.Millisecond))
	case endsWithItsRequest:
		ctx, endWait = c.request(one)
	default:
		one.Context, one.cancel = context.WithCancel(context.Background())
	}
	var err error
	if c.most == 0 {
		err = c.s.WaitN(ctx, cost)
	} else {
		err = c.visit(c.s, ctx, one)
	}
	endWait()
	switch {
	case err != nil:
		runtime.Gosched()
	case one.told[wasEnqueued] == 0:
		c.passes.Add(1)
	}
	c.note(one, err)
}

// Contexts end around the instant at which their calls would leave, in every way in
// which a context can end. Each call has one outcome, on which caller, hooks and
// Stats agree, and what really left keeps the pace, so no slot was used twice. No later wait
// gets the news of an earlier one, whose channel it may have.
func TestCancelAgainstDeparture(t *testing.T) {
	tests := []struct {
		name   string
		limits shaper.Limits
		costs  int // up to this; 0: those of requests of a server, which are of 1
	}{
		{"default slack", shaper.Limits{Rate: 100_000, Depth: 30}, 1},
		{"no slack to speak of", shaper.Limits{Rate: 100_000, Depth: 30, Slack: 1}, 1},
		{"burst", shaper.Limits{Rate: 100_000, Burst: 8, Depth: 30, Slack: time.Millisecond}, 1},
		{"costs within the burst", shaper.Limits{Rate: 200_000, Burst: 5, Depth: 30, Slack: time.Millisecond}, 3},
		{"costs above the burst", shaper.Limits{Rate: 500_000, Burst: 2, Depth: 30, Slack: time.Millisecond}, 8},
		{"nearly idle", shaper.Limits{Rate: 250_000, Depth: 30, Slack: time.Microsecond}, 2},
		{"longest wait", shaper.Limits{Rate: 100_000, Depth: 40, MaxWait: 200 * time.Microsecond, Slack: time.Millisecond}, 1},
		{"a cap of one", shaper.Limits{Rate: 100_000, Depth: 30, InFlight: 1, Slack: 1}, 1},
		{"a cap and a burst", shaper.Limits{Rate: 200_000, Burst: 5, Depth: 30, InFlight: 3, Slack: time.Millisecond}, 3},
		{"requests of a server", shaper.Limits{Rate: 20_000, Depth: 100}, 0},
		{"a cap that is rarely reached", shaper.Limits{Rate: 100_000, Depth: 30, InFlight: 12}, 1},
	}
	perContest := int64(rounds(300, 1000, 1000))
	passesPerContest := 4 * perContest
	races := rounds(8_000, 300_000, 1_000_000)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// Several contests, so that the bucket starts and rests often.
			limits, abandoned, callers := tt.limits, uint64(0), 32
			if tt.costs == 0 {
				callers = 100 // A request has to wait for a millisecond before its client's end counts.
			}
			for done := 0; done < races/len(tests); {
				c := newContest(t, limits)
				c.calls(callers, func() (over bool) {
					e := rand.N(endings)
					if tt.costs == 0 && rand.N(4) > 0 {
						e = endsWithItsRequest
					}
					c.call(e, 1+rand.N(max(tt.costs, 1)))
					return c.races.Load() >= perContest || c.passes.Load() >= passesPerContest
				})
				c.blowOver(t)
				c.requireAgreement(t, c.s.Stats())
				abandoned += c.s.Stats().Abandoned
				if len(c.departures) > 0 {
					pace := model.SharedPace{Interval: intervalOf(limits.Rate), Burst: max(1, int64(limits.Burst)), Lateness: cmp.Or(limits.Slack, shaper.DefaultSlack)}
					worst := pace.Worst(c.departures)
					require.LessOrEqual(t, worst.Excess(), int64(0), "%v", worst)
				}
				require.NoError(t, c.s.Close())
				done += int(c.races.Load())
				if c.races.Load() < perContest {
					// The callers are so slow, on a busy machine or with the race detector, that
					// the bucket is mostly empty and hardly anybody waits.
					require.Greater(t, float64(limits.Rate), 1.0, "hardly anybody waits, however low the rate")
					limits.Rate /= 2
					limits.MaxWait *= 2
				}
			}
			require.NotZero(t, abandoned, "no context has ended while its call waited")
		})
	}
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
