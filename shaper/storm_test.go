package shaper_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// Everything at once from many goroutines, until somebody ends it in one of the
// ways there are. Every call returns, with one outcome each, and the totals
// agree with what the callers saw. That no goroutine is left is goleak's to say.
func TestStormLeavesNobodyBehind(t *testing.T) {
	ends := []struct {
		name string
		end  func(s *shaper.Shaper)
	}{
		{"Close", func(s *shaper.Shaper) { _ = s.Close() }},
		{"Close from all sides", func(s *shaper.Shaper) {
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() { _ = s.Close() })
			}
			wg.Wait()
		}},
		{"Shutdown", func(s *shaper.Shaper) {
			if err := s.Shutdown(context.Background()); err != nil {
				panic(err)
			}
		}},
		{"Shutdown out of patience, then Close", func(s *shaper.Shaper) {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Microsecond)
			defer cancel()
			if err := s.Shutdown(ctx); err != nil && err != context.DeadlineExceeded {
				panic(err)
			}
			_ = s.Close()
		}},
		{"Shutdown overtaken by Close", func(s *shaper.Shaper) {
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					if err := s.Shutdown(context.Background()); err != nil {
						panic(err)
					}
				})
			}
			wg.Go(func() { _ = s.Close() })
			wg.Wait()
		}},
		// The hooks close it: see closesSoon.
		{"Close from inside hooks", nil},
	}
	rounds := 20
	if long {
		rounds = 1000
	}
	for _, tt := range ends {
		t.Run(tt.name, func(t *testing.T) {
			for range rounds {
				st := newStorm(t, tt.end == nil)
				st.blow(tt.end)
				st.requireAccounts(t)
			}
		})
	}
}

// A storm is what goes on at one shaper at once.
type storm struct {
	s *shaper.Shaper
	// closesSoon counts down the events until a hook closes the shaper; hooks
	// of several calls may do so at once. It starts below 0 if none is to.
	closesSoon atomic.Int64

	// What callers and hooks have seen.
	departed, refused, gone                                atomic.Uint64
	toldEnqueued, toldDeparted, toldRefused, toldAbandoned atomic.Uint64
	wrong                                                  atomic.Uint64
}

func newStorm(t *testing.T, hooksClose bool) *storm {
	st := new(storm)
	st.closesSoon.Store(-1)
	if hooksClose {
		st.closesSoon.Store(1 + rand.N[int64](300))
	}
	hook := func(told *atomic.Uint64, fails bool) func(context.Context, shaper.Event) {
		return func(_ context.Context, e shaper.Event) {
			told.Add(1)
			if (e.Err != nil) != fails || e.Waited < 0 || e.Waiting < 0 {
				st.wrong.Add(1)
			}
			if n := st.closesSoon.Add(-1); n >= 0 && n < 4 {
				_ = st.s.Close()
			}
		}
	}
	s, err := shaper.New(stormLimits[0], shaper.WithTrace(&shaper.Trace{
		Enqueued:  hook(&st.toldEnqueued, false),
		Departed:  hook(&st.toldDeparted, false),
		Refused:   hook(&st.toldRefused, true),
		Abandoned: hook(&st.toldAbandoned, true),
	}))
	require.NoError(t, err)
	st.s = s
	return st
}

// stormLimits are what SetLimits changes between: rates four decades apart and
// none at all, lines from none to long.
var stormLimits = []shaper.Limits{
	{Rate: 100_000, Depth: 16},
	{Rate: rate.Inf, Depth: 4},
	{Rate: 1_000_000, Burst: 4, Depth: 64, Slack: time.Microsecond},
	{Rate: 100, Burst: 2, Depth: 8},
	{Rate: 7_777.7, Depth: 8, MaxWait: time.Millisecond},
	{Rate: 50_000, Burst: 3},
}

// blow returns when all calls have returned.
func (st *storm) blow(end func(*shaper.Shaper)) {
	s := st.s
	var ended atomic.Bool
	var callers, meddlers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for closed := false; !closed; {
				closed = st.wait(1 + rand.N(3))
			}
		})
	}
	for range 2 {
		callers.Go(func() {
			for !ended.Load() {
				n := 1 + rand.N(3)
				if s.AllowN(n) {
					st.departed.Add(1)
				} else {
					st.refused.Add(1)
				}
				runtime.Gosched()
			}
		})
	}
	meddle := func(f func()) {
		meddlers.Go(func() {
			for !ended.Load() {
				f()
				runtime.Gosched()
			}
		})
	}
	meddle(func() {
		if err := s.SetLimits(stormLimits[rand.N(len(stormLimits))]); err != nil {
			panic(err)
		}
		_ = s.Limits()
	})
	meddle(func() {
		var reject *shaper.RejectError
		if wait, err := s.Forecast(1 + rand.N(3)); wait < 0 || err != nil && !errors.As(err, &reject) {
			st.wrong.Add(1)
		}
	})
	var before shaper.Stats
	meddle(func() {
		now := s.Stats()
		if now.Departed < before.Departed || now.Refused < before.Refused ||
			now.Abandoned < before.Abandoned || now.Missed < before.Missed ||
			now.Refused != now.QueueFull+now.TooLate+now.TooCostly+now.Closed ||
			now.Waiting < 0 || now.Level < 0 || now.OldestWait < 0 {
			st.wrong.Add(1)
		}
		before = now
	})

	if end != nil {
		time.Sleep(rand.N(2 * time.Millisecond))
		end(s)
	}
	// The callers of Wait come to their end by ErrClosed alone.
	for !errors.Is(forecastError(s), shaper.ErrClosed) {
		runtime.Gosched()
	}
	ended.Store(true)
	callers.Wait()
	meddlers.Wait()
}

func forecastError(s *shaper.Shaper) error {
	_, err := s.Forecast(1)
	return err
}

// wait makes one call with one of several kinds of contexts, and says whether
// the shaper is closed.
func (st *storm) wait(n int) (closed bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	switch rand.N(4) {
	case 0:
		ctx, cancel = context.WithTimeout(ctx, rand.N(time.Millisecond))
		defer cancel()
	case 1:
		timer := time.AfterFunc(rand.N(200*time.Microsecond), cancel)
		defer timer.Stop()
	}
	var reject *shaper.RejectError
	switch err := st.s.WaitN(ctx, n); {
	case err == nil:
		st.departed.Add(1)
	case errors.As(err, &reject):
		st.refused.Add(1)
		runtime.Gosched()
		return reject.Reason == shaper.ErrClosed
	case err == ctx.Err():
		// Abandoned in the line, or done before the call, which is not counted.
		st.gone.Add(1)
	default:
		st.wrong.Add(1)
	}
	return false
}

func (st *storm) requireAccounts(t *testing.T) {
	t.Helper()
	stats := st.s.Stats()
	require.Zero(t, st.wrong.Load())
	require.Zero(t, stats.Waiting)
	require.Equal(t, st.departed.Load(), stats.Departed)
	require.Equal(t, st.departed.Load(), st.toldDeparted.Load())
	require.Equal(t, st.refused.Load(), stats.Refused)
	require.Equal(t, st.refused.Load(), st.toldRefused.Load())
	require.Equal(t, st.toldAbandoned.Load(), stats.Abandoned)
	require.LessOrEqual(t, stats.Abandoned, st.gone.Load())
	require.LessOrEqual(t, stats.Abandoned, st.toldEnqueued.Load(), "only who was in line can leave it")
	require.ErrorIs(t, st.s.Wait(t.Context()), shaper.ErrClosed)
	require.NoError(t, st.s.SetLimits(stormLimits[0]))
}

// Close wakes a great line and returns when the ticker has gone; each of the
// line is refused. That no goroutine is left is goleak's to say.
func TestCloseRefusesAGreatLine(t *testing.T) {
	waiters := 20_000
	if long {
		waiters = 100_000
	}
	s, err := shaper.New(shaper.Limits{Rate: 1. / 60, Depth: waiters})
	require.NoError(t, err)
	require.NoError(t, s.Wait(t.Context()))
	var wg sync.WaitGroup
	var refused atomic.Int64
	for range waiters {
		wg.Go(func() {
			if errors.Is(s.Wait(t.Context()), shaper.ErrClosed) {
				refused.Add(1)
			}
		})
	}
	for s.Stats().Waiting < waiters {
		runtime.Gosched()
	}
	require.NoError(t, s.Close())
	require.Zero(t, s.Stats().Waiting)
	wg.Wait()
	require.EqualValues(t, waiters, refused.Load())
	require.EqualValues(t, waiters, s.Stats().Closed)
}

// Waiters are kept per shaper. A pool of the process would hand a channel of
// one bubble to another, or to plain code, which is a fatal error.
func TestBubblesAndPlainCodeShareAProcess(t *testing.T) {
	waitThrice := func(t *testing.T) {
		s, err := shaper.New(shaper.Limits{Rate: 10_000, Depth: 3})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { _ = s.Wait(context.Background()) })
		}
		wg.Wait()
		require.EqualValues(t, 4, s.Stats().Departed)
		require.NoError(t, s.Close())
	}
	inABubble := func(t *testing.T) { synctest.Test(t, waitThrice) }
	t.Run("a bubble", inABubble)
	t.Run("plain code", waitThrice)
	t.Run("another bubble", inABubble)
	t.Run("plain code again", waitThrice)
}

// While somebody waits, what departed and what was missed add up to rate ×
// time, on a machine as late as it likes to be. The naive queue makes nothing
// up and keeps no account (TestNaiveLosesTheTicksOfLateWakeUps).
func TestLatenessIsMadeUpOrCounted(t *testing.T) {
	const perSecond, waiters = 10_000, 500
	const interval = time.Second / perSecond
	for _, slack := range []time.Duration{time.Microsecond, 2 * time.Millisecond, shaper.DefaultSlack} {
		t.Run(slack.String(), func(t *testing.T) {
			var mu sync.Mutex
			var last time.Time
			limits := shaper.Limits{Rate: 1. / 3600, Depth: waiters, Slack: slack}
			s, err := shaper.New(limits, shaper.WithTrace(&shaper.Trace{
				Departed: func(_ context.Context, e shaper.Event) {
					mu.Lock()
					defer mu.Unlock()
					if e.At.After(last) {
						last = e.At
					}
				},
			}))
			require.NoError(t, err)
			require.NoError(t, s.Wait(t.Context()))
			var wg sync.WaitGroup
			for range waiters {
				wg.Go(func() { _ = s.Wait(t.Context()) })
			}
			for s.Stats().Waiting < waiters {
				runtime.Gosched()
			}

			// The level is still 1, to within a ten-thousandth, so that the first
			// is due an interval after the change and the last waiters intervals.
			limits.Rate = perSecond
			earliest := time.Now()
			level := s.Stats().Level
			require.NoError(t, s.SetLimits(limits))
			latest := time.Now()
			wg.Wait()

			missed := s.Stats().Missed
			t.Logf("missed %.1f of %d", missed, waiters)
			span := time.Duration((waiters - 1 + level + missed) * float64(interval))
			require.GreaterOrEqual(t, last.Sub(earliest)+interval/1000, span, "left too early")
			require.LessOrEqual(t, last.Sub(latest)-interval/1000, span+slack, "left late, and not counted")
			require.NoError(t, s.Close())
		})
	}
}
