package shaper_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// Everything at once from many goroutines on few keys of a Group that has room for
// fewer, until somebody ends it. Every call returns, with one outcome each, and the
// totals agree with what the callers and the hooks saw. That no goroutine is left is
// goleak's to say.
func TestAStormOfKeysLeavesNobodyBehind(t *testing.T) {
	rounds := 20
	if long {
		rounds = 100
	}
	for name, end := range map[string]func(g *shaper.Group[float64]){
		"Close": func(g *shaper.Group[float64]) { _ = g.Close() },
		"Close from all sides": func(g *shaper.Group[float64]) {
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() { _ = g.Close() })
			}
			wg.Wait()
		},
		"Shutdown": func(g *shaper.Group[float64]) {
			if err := g.Shutdown(context.Background()); err != nil {
				panic(err)
			}
		},
		"Shutdown overtaken by Close": func(g *shaper.Group[float64]) {
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					if err := g.Shutdown(context.Background()); err != nil {
						panic(err)
					}
				})
			}
			wg.Go(func() { _ = g.Close() })
			wg.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			var overflowed, broken uint64
			for range rounds {
				st := newKeyStorm(t)
				st.blow(end)
				st.requireAccounts(t)
				overflowed += st.g.Stats().Overflowed
				broken += st.g.Stats().LimitErrors
			}
			require.Positive(t, overflowed)
			require.Positive(t, broken)
		})
	}
}

// A keyStorm is what goes on at one Group at once.
type keyStorm struct {
	g     *shaper.Group[float64]
	turns atomic.Int64 // of limits

	departed, refused, gone, broken                        atomic.Uint64
	toldEnqueued, toldDeparted, toldRefused, toldAbandoned atomic.Uint64
	wrong                                                  atomic.Uint64
}

// stormKeys are more than there is room for. Of the first few the limits change; that
// of placeKey has a cap now and then, and that of badKey has none that are valid,
// now and then.
var stormKeys = []float64{0, 1, 2, placeKey, badKey, math.NaN()}

const (
	placeKey = 3
	badKey   = 4
)

func newKeyStorm(t *testing.T) *keyStorm {
	st := new(keyStorm)
	hook := func(told *atomic.Uint64, fails bool) func(context.Context, shaper.Event) {
		return func(_ context.Context, e shaper.Event) {
			told.Add(1)
			_, keyed := e.Key.(float64)
			if (e.Err != nil) != fails || e.Waited < 0 || e.Waiting < 0 || !keyed {
				st.wrong.Add(1)
			}
		}
	}
	var err error
	st.g, err = shaper.NewGroup(st.limits, shaper.WithMaxKeys(3), shaper.WithTrace(&shaper.Trace{
		Enqueued:  hook(&st.toldEnqueued, false),
		Departed:  hook(&st.toldDeparted, false),
		Refused:   hook(&st.toldRefused, true),
		Abandoned: hook(&st.toldAbandoned, true),
	}))
	require.NoError(t, err)
	return st
}

func (st *keyStorm) limits(key float64) (shaper.Limits, error) {
	for range rand.N(3) {
		runtime.Gosched()
	}
	turn := int(st.turns.Add(1))
	l := stormLimits[turn%len(stormLimits)]
	switch {
	case key == placeKey && turn/len(stormLimits)%2 == 0:
		l.InFlight = 1 + turn%stormCap
	case key == badKey && turn%3 == 0:
		return shaper.Limits{}, errNoUser
	}
	return l, nil
}

// call makes one call with one of several kinds of contexts, and says whether the
// Group is closed.
func (st *keyStorm) call(key float64) (closed bool) {
	ctx, cancel := someContext()
	defer cancel()
	var refusal *shaper.RejectError
	switch err := st.pass(ctx, key, 1+rand.N(3)); {
	case err == nil:
		st.departed.Add(1)
	case errors.As(err, &refusal):
		st.refused.Add(1)
		runtime.Gosched()
		return refusal.Reason == shaper.ErrClosed
	case errors.Is(err, errNoUser) && key == badKey:
		st.broken.Add(1)
	case err == ctx.Err():
		// Abandoned, or done before the call, which is not counted.
		st.gone.Add(1)
	default:
		st.wrong.Add(1)
	}
	return false
}

// pass is one call, in the one or the other way.
func (st *keyStorm) pass(ctx context.Context, key float64, n int) error {
	switch way := rand.N(3); {
	case way == 0 && key != placeKey:
		return st.g.WaitN(ctx, key, n)
	case way == 1:
		return st.g.Do(ctx, key, n, func(context.Context) error {
			runtime.Gosched()
			return nil
		})
	}
	release, err := st.g.Acquire(ctx, key, n)
	var both sync.WaitGroup
	for range rand.N(3) {
		both.Go(release)
	}
	release()
	both.Wait()
	return err
}

// blow returns when all calls have returned.
func (st *keyStorm) blow(end func(*shaper.Group[float64])) {
	g := st.g
	var ended atomic.Bool
	var callers, meddlers sync.WaitGroup
	for i := range 3 * len(stormKeys) {
		callers.Go(func() {
			for closed := false; !closed; {
				closed = st.call(stormKeys[i%len(stormKeys)])
			}
		})
	}
	for key := range 2 {
		callers.Go(func() {
			for !ended.Load() {
				if g.AllowN(float64(key), 1+rand.N(3)) {
					st.departed.Add(1)
				} else {
					st.refused.Add(1)
				}
				runtime.Gosched()
			}
		})
	}
	meddle := func(f func(key float64)) {
		meddlers.Go(func() {
			for !ended.Load() {
				f(stormKeys[rand.N(len(stormKeys))])
				runtime.Gosched()
			}
		})
	}
	meddle(func(float64) { g.Reload() })
	meddle(func(key float64) {
		g.Hold(key, rand.N(50*time.Microsecond))
		if rand.N(2) == 0 {
			g.Hold(key, 0)
		}
	})
	meddle(func(key float64) {
		if wait, _ := g.Forecast(key, 1+rand.N(3)); wait < 0 {
			st.wrong.Add(1)
		}
		_ = g.Limiter(key).(interface{ Stats() shaper.Stats }).Stats()
	})
	var before shaper.GroupStats
	meddle(func(float64) {
		now := g.Stats()
		if now.Departed < before.Departed || now.Refused < before.Refused || now.Abandoned < before.Abandoned ||
			now.Overflowed < before.Overflowed || now.Missed < before.Missed || now.Keys > 3 || now.Waiting < 0 ||
			now.Refused != now.QueueFull+now.TooLate+now.TooCostly+now.Closed {
			st.wrong.Add(1)
		}
		before = now
		for key, one := range g.All() {
			if key != key || one.Waiting < 0 || one.InFlight < 0 || one.InFlight > stormCap {
				st.wrong.Add(1)
			}
		}
	})

	time.Sleep(rand.N(2 * time.Millisecond))
	end(g)
	ended.Store(true)
	callers.Wait()
	meddlers.Wait()
}

func (st *keyStorm) requireAccounts(t *testing.T) {
	t.Helper()
	stats := st.g.Stats()
	require.Zero(t, st.wrong.Load())
	require.Zero(t, stats.Waiting)
	require.Zero(t, stats.Keys)
	require.Equal(t, st.departed.Load(), stats.Departed)
	require.Equal(t, st.departed.Load(), st.toldDeparted.Load())
	require.Equal(t, st.refused.Load(), stats.Refused)
	require.Equal(t, st.refused.Load(), st.toldRefused.Load())
	require.Equal(t, st.toldAbandoned.Load(), stats.Abandoned)
	require.LessOrEqual(t, stats.Abandoned, st.gone.Load())
	require.ErrorIs(t, st.g.Wait(t.Context(), 9), shaper.ErrClosed)
}
