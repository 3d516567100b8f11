package shaper_test

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/internal/serverconn"
	"example.com/leakybucket/shaper/shared"
	"example.com/leakybucket/shaper/watch"
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

// stormCap is the largest cap, where there is one.
const stormCap = 4

// stormLimits are the limits between which a storm changes: rates four decades apart and none at
// all, lines from none to long.
var stormLimits = []shaper.Limits{
	{Rate: 100_000, Depth: 16},
	{Rate: rate.Inf, Depth: 4},
	{Rate: 1_000_000, Burst: 4, Depth: 64, Slack: time.Microsecond},
	{Rate: 100, Burst: 2, Depth: 8},
	{Rate: 7_777.7, Depth: 8, MaxWait: time.Millisecond},
	{Rate: 50_000, Burst: 3},
}

// Calls of all kinds, changes of the limits and an end, all at once: every call
// returns with one outcome, on which caller, hooks and Stats agree.
func TestStormLeavesNobodyBehind(t *testing.T) {
	t.Parallel()
	ends := maps.Clone(ends)
	ends["Close from inside hooks"] = nil
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			for i := range rounds(6, 200, 1000) {
				st := newShaperStorm(t, stormLimits, i%2*stormCap)
				if end == nil {
					st.closesSoon.Store(1 + rand.N[int64](300))
				}
				st.blow()
				if end != nil {
					time.Sleep(rand.N(2 * time.Millisecond))
					require.NoError(t, end(st.s))
				}
				st.requireEnded(t)
				require.ErrorIs(t, st.pass(&call{Context: t.Context(), cost: 1}), shaper.ErrClosed)
				require.NoError(t, st.s.SetLimits(st.limits[0]))
			}
		})
	}
}

// Keys share the rate in a storm, some of them with one request after the other, and with retries at the
// heads of their lines. All that is true of one line is true of theirs, and whoever is pushed out is told.
func TestStormOverAFairQueue(t *testing.T) {
	t.Parallel()
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			pushedOut := uint64(0)
			for i, began := 0, time.Now(); i < rounds(6, 200, 1000) || time.Since(began) < enough && pushedOut == 0; i++ {
				st := newShaperStorm(t, stormLimits, i%2*stormCap, shaper.WithFairQueue(func(key string) int { return len(key) }))
				st.keys = []string{"", "a", "bb", "cccccccc"}
				st.sendsAgain = i%3 == 0
				before := st.also
				var pushed atomic.Uint64
				st.also = func(c *call, told hookKind, e shaper.Event) {
					if told == wasRefused && errors.Is(e.Err, shaper.ErrQueueFull) && e.Waited > 0 {
						pushed.Add(1)
					}
					if _, ok := e.Key.(string); !ok {
						st.fault("an event has the key %v", e.Key)
					}
					before(c, told, e)
				}
				st.blow()
				st.meddle(func() {
					for _, k := range st.s.Keys(3, watch.ByTurn) {
						if k.Waiting < 1 || k.Cost < k.Waiting || k.OldestWait < 0 || k.Weight != max(1, len(k.Key)) {
							st.fault("a line of a key: %+v", k)
						}
					}
				})
				time.Sleep(rand.N(2 * time.Millisecond))
				require.NoError(t, end(st.s))
				st.requireEnded(t)
				require.True(t, shaper.LineIsEmpty(st.s))
				require.Zero(t, st.s.Stats().Keys)
				pushedOut += pushed.Load()
			}
			require.NotZero(t, pushedOut, "nobody was ever pushed out")
		})
	}
}

// A request that is sent again enters at the head of the line. In a storm of newcomers and such
// requests the line is empty at the end, too, and all seats are free.
func TestReentriesInAStorm(t *testing.T) {
	t.Parallel()
	limits := []shaper.Limits{
		{Rate: 200_000, Depth: 8},
		{Rate: 1_000_000, Burst: 4, Slack: time.Microsecond},
		{Rate: 50_000, Burst: 2, Depth: 3, MaxWait: 100 * time.Microsecond},
	}
	for name, most := range map[string]int{"no cap": 0, "a cap": 3} {
		for how, end := range ends {
			t.Run(name+", "+how, func(t *testing.T) {
				var leftAgain, abandoned uint64
				for round, began := 0, time.Now(); round < rounds(6, 20, 20) || time.Since(began) < enough && (leftAgain == 0 || abandoned == 0); round++ {
					st := newShaperStorm(t, limits, most)
					st.sendsAgain = true
					st.blow()
					time.Sleep(rand.N(2 * time.Millisecond))
					require.NoError(t, end(st.s))
					st.requireEnded(t)
					require.True(t, shaper.LineIsEmpty(st.s))
					leftAgain += st.leftAgain.Load()
					abandoned += st.s.Stats().Abandoned
				}
				t.Logf("%d left again; %d gave up", leftAgain, abandoned)
				require.NotZero(t, leftAgain, "no request that was sent again has ever left")
				require.NotZero(t, abandoned, "nobody has ever given up in line")
			})
		}
	}
}

// Three processes share a level, whose Bucket fails, is slow, forgets, and has a clock that steps.
func TestStormOverASharedBucketWithFaults(t *testing.T) {
	limits := []shaper.Limits{{Rate: 500, Burst: 5, Depth: 40}, {Rate: 300, Burst: 1, Depth: 10}, {Rate: 300, Burst: 9, Depth: 50}}
	for seed := range 6 {
		fallback := []shared.Fallback{shared.FallbackClosed, shared.FallbackLocal(3), shared.FallbackOpen}[seed%3]
		synctest.Test(t, func(t *testing.T) {
			m := buckettest.NewMemory()
			m.SetDelay(ms, ms)
			m.Fail(func(int, string) buckettest.Fault {
				if rand.N(4) > 0 {
					return buckettest.NoFault
				}
				return buckettest.Fault(rand.N(5))
			})
			var storms [3]*shaperStorm
			for i := range storms {
				storms[i] = newShaperStorm(t, limits, 0, shaper.WithBucket(m, "k", shared.Options{Fallback: fallback, Patience: time.Duration(seed) * 40 * ms}))
				storms[i].inBubble = true
				storms[i].blow()
			}
			storms[0].meddle(func() {
				time.Sleep(rand.N(time.Second))
				if rand.N(2) == 0 {
					m.Wipe()
				}
				m.Step(rand.N(2*time.Second) - time.Second)
			})
			time.Sleep(10 * time.Second)
			m.Fail(nil)
			for i, st := range storms {
				require.NoError(t, ends[slices.Sorted(maps.Keys(ends))[(seed+i)%len(ends)]](st.s))
				st.requireEnded(t)
				b := st.s.Stats().Bucket
				require.Positive(t, b.Failures)
				require.Zero(t, b.Held)
				require.GreaterOrEqual(t, b.Leased, b.Dropped+b.GivenBack)
			}
		})
	}
}

type shaperStorm struct {
	storm
	s      *shaper.Shaper
	limits []shaper.Limits // what SetLimits changes between
	// closesSoon counts down the events until a hook closes the shaper; hooks of
	// several calls may do so at once. Below 0 no hook will.
	closesSoon atomic.Int64
	keys       []string // of calls; nil: they have none
	sendsAgain bool     // some requests that have left
	leftAgain  atomic.Uint64
}

// newShaperStorm makes a Shaper for a storm. most is the largest cap; 0: there is none.
func newShaperStorm(t *testing.T, limits []shaper.Limits, most int, opts ...shaper.Option) *shaperStorm {
	st := &shaperStorm{limits: slices.Clone(limits)}
	if st.most = most; most > 0 {
		for i := range st.limits {
			st.limits[i].InFlight = 1 + i%most
		}
	}
	st.closesSoon.Store(-1)
	st.also = func(c *call, told hookKind, e shaper.Event) {
		if most > 0 && c == nil {
			// With a cap AllowN is counted only by a closed shaper, which its caller
			// can't tell from an open one.
			st.noteAllow(false)
			if told != wasRefused || !errors.Is(e.Err, shaper.ErrClosed) {
				st.fault("hook %d was told of AllowN, in spite of the cap: %+v", told, e)
			}
		}
		if n := st.closesSoon.Add(-1); n >= 0 && n < 4 {
			_ = st.s.Close()
		}
	}
	var err error
	st.s, err = shaper.New(st.limits[0], append(opts, st.trace())...)
	require.NoError(t, err)
	if opts == nil { // A shared level is not refused from without the lock.
		shaper.AuditRefusals(st.s)
	}
	return st
}

// requireEnded returns when all calls have, and compares the accounts.
func (st *shaperStorm) requireEnded(t *testing.T) {
	t.Helper()
	st.blowOver(t)
	st.requireAgreement(t, st.s.Stats())
}

// pass is one call in one of the ways there are, and with a cap a visit upstream.
func (st *shaperStorm) pass(c *call) error {
	var s interface {
		shaper.Limiter
		Acquire(ctx context.Context, n int) (release func(), err error)
		Do(ctx context.Context, n int, f func(context.Context) error) error
	} = st.s
	if st.keys != nil {
		s = st.s.For(st.keys[rand.N(len(st.keys))])
	}
	switch way := rand.N(3); {
	case way == 0 && st.most == 0:
		return s.WaitN(c, c.cost)
	case way == 1:
		return s.Do(c, c.cost, func(context.Context) error {
			st.stay()
			return nil
		})
	}
	return st.visit(s, c, c)
}

// Acquire lets a request enter that was let go before.
func (st *shaperStorm) Acquire(ctx context.Context, n int) (release func(), err error) {
	release, err = shaper.EnterAsReentry(st.s, ctx, n)
	if (release != nil) != (err == nil && st.most > 0) {
		st.fault("a request must have a seat if it has left and there is a cap, and only then")
	}
	if err == nil {
		st.leftAgain.Add(1)
	}
	if release == nil {
		release = func() {}
	}
	return release, err
}

// one is one call, and the calls of its request when it is sent again, each time that it has left.
func (st *shaperStorm) one() (closed bool) {
	c := st.someCall()
	err := st.pass(c)
	closed = st.note(c, err)
	for st.sendsAgain && err == nil && rand.N(2) == 0 {
		c = st.someCall()
		err = st.visit(st, c, c)
		closed = st.note(c, err)
	}
	return closed
}

// blow begins all that goes on at once.
func (st *shaperStorm) blow() {
	st.calls(8, st.one)
	for range 2 {
		st.meddle(func() {
			switch left := st.s.AllowN(1 + rand.N(3)); {
			case st.most == 0:
				st.noteAllow(left)
			case left: // With a cap it never does.
				st.fault("AllowN let a request leave in spite of the cap")
			}
		})
	}
	st.meddle(func() {
		if err := st.s.SetLimits(st.limits[rand.N(len(st.limits))]); err != nil {
			st.fault("SetLimits: %v", err)
		}
		_ = st.s.Limits()
		other := shaper.Limits{Rate: 1, Depth: 9}
		if st.most == 0 {
			other.InFlight = 1
		}
		if st.s.SetLimits(other) == nil {
			st.fault("SetLimits has set or removed a cap")
		}
	})
	st.meddleWith(func() meddled { return st.s })
	st.meddle(st.looks(st.s.Stats))
	w := looker{fault: st.fault}
	st.meddle(func() { w.look(st.s, st.s.Line) })
	since := uint64(0)
	st.meddle(func() {
		left, all := st.s.Departures(since)
		if uint64(len(left)) > all-since {
			st.fault("%d departures since %d are %d", all, since, len(left))
		}
		since = all
	})
}

// A storm over a great line: Close wakes all of it and returns when the ticker has
// gone, and each waiter is refused.
func TestCloseRefusesAGreatLine(t *testing.T) {
	t.Parallel()
	waiters := rounds(10_000, 100_000, 100_000)
	s := mustMake(t, shaper.Limits{Rate: 1. / 60, Depth: waiters})
	require.NoError(t, s.Wait(t.Context()))
	var refused atomic.Int64
	var st storm
	for range waiters {
		st.callers.Go(func() {
			if errors.Is(s.Wait(t.Context()), shaper.ErrClosed) {
				refused.Add(1)
			}
		})
	}
	realtime.Until(t, inLine(s, waiters), "all are in line")
	require.NoError(t, s.Close())
	require.Zero(t, s.Stats().Waiting)
	st.blowOver(t)
	require.EqualValues(t, waiters, refused.Load())
	require.EqualValues(t, waiters, s.Stats().Closed)
}
