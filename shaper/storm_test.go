package shaper_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
	"example.com/leakybucket/shaper/watch"
)

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
