package shaper_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
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
			for i := range rounds {
				st := newStorm(t, tt.end == nil, i%2 == 0)
				st.blow(tt.end)
				st.requireAccounts(t)
			}
		})
	}
}

// A storm is what goes on at one shaper at once.
type storm struct {
	s      *shaper.Shaper
	limits []shaper.Limits // what SetLimits changes between
	// upstream counts those who have left and not ended. With a cap they are never
	// more than the largest that SetLimits sets.
	upstream atomic.Int64
	// closesSoon counts down the events until a hook closes the shaper; hooks
	// of several calls may do so at once. It starts below 0 if none is to.
	closesSoon atomic.Int64

	// What callers and hooks have seen.
	departed, refused, gone                                atomic.Uint64
	toldEnqueued, toldDeparted, toldRefused, toldAbandoned atomic.Uint64
	wrong                                                  atomic.Uint64
}

func newStorm(t *testing.T, hooksClose, capped bool) *storm {
	st := &storm{limits: stormLimits}
	if capped {
		st.limits = slices.Clone(stormLimits)
		for i := range st.limits {
			st.limits[i].InFlight = 1 + i%stormCap
		}
	}
	st.closesSoon.Store(-1)
	if hooksClose {
		st.closesSoon.Store(1 + rand.N[int64](300))
	}
	hook := func(told *atomic.Uint64, fails bool) func(context.Context, shaper.Event) {
		return func(ctx context.Context, e shaper.Event) {
			told.Add(1)
			if (e.Err != nil) != fails || e.Waited < 0 || e.Waiting < 0 {
				st.wrong.Add(1)
			}
			if capped && ctx == context.Background() {
				// With a cap AllowN is counted only if the shaper is closed, which
				// its caller can't tell from false.
				st.refused.Add(1)
				if !errors.Is(e.Err, shaper.ErrClosed) {
					st.wrong.Add(1)
				}
			}
			if n := st.closesSoon.Add(-1); n >= 0 && n < 4 {
				_ = st.s.Close()
			}
		}
	}
	s, err := shaper.New(st.limits[0], shaper.WithTrace(&shaper.Trace{
		Enqueued:  hook(&st.toldEnqueued, false),
		Departed:  hook(&st.toldDeparted, false),
		Refused:   hook(&st.toldRefused, true),
		Abandoned: hook(&st.toldAbandoned, true),
	}))
	require.NoError(t, err)
	st.s = s
	return st
}

// stormCap is the largest cap, where there is one.
const stormCap = 4

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
				switch left := s.AllowN(n); {
				case st.capped() && left:
					st.wrong.Add(1)
				case st.capped(): // The hook counts it, if it is counted.
				case left:
					st.departed.Add(1)
				default:
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
		if err := s.SetLimits(st.limits[rand.N(len(st.limits))]); err != nil {
			panic(err)
		}
		_ = s.Limits()
		other := shaper.Limits{Rate: 1, Depth: 9}
		if !st.capped() {
			other.InFlight = 1
		}
		if s.SetLimits(other) == nil {
			st.wrong.Add(1)
		}
	})
	meddle(func() {
		s.Hold(rand.N(50 * time.Microsecond))
		if rand.N(4) == 0 {
			s.Hold(0)
		}
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
			now.Waiting < 0 || now.Level < 0 || now.OldestWait < 0 || now.InFlight < 0 || now.InFlight > stormCap {
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

func (st *storm) requireAccounts(t *testing.T) {
	t.Helper()
	stats := st.s.Stats()
	require.Zero(t, st.wrong.Load())
	require.Zero(t, stats.Waiting)
	require.Zero(t, stats.InFlight, "all places have come back")
	require.Equal(t, st.departed.Load(), stats.Departed)
	require.Equal(t, st.departed.Load(), st.toldDeparted.Load())
	require.Equal(t, st.refused.Load(), stats.Refused)
	require.Equal(t, st.refused.Load(), st.toldRefused.Load())
	require.Equal(t, st.toldAbandoned.Load(), stats.Abandoned)
	require.LessOrEqual(t, stats.Abandoned, st.gone.Load())
	require.LessOrEqual(t, stats.Abandoned, st.toldEnqueued.Load(), "only who was in line can leave it")
	require.ErrorIs(t, st.pass(t.Context(), 1), shaper.ErrClosed)
	require.NoError(t, st.s.SetLimits(st.limits[0]))
}
