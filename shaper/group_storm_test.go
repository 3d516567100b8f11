package shaper_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// Calls of all kinds on few keys of a Group that has room for fewer, changes of
// their limits and an end, all at once: every call returns with one outcome, on
// which caller, hooks and Stats agree.
func TestAStormOfKeysLeavesNobodyBehind(t *testing.T) {
	t.Parallel()
	least := rounds(20, 100, 100)
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			var overflowed, broken uint64
			for round, began := 0, time.Now(); round < least || time.Since(began) < enough && (overflowed == 0 || broken == 0); round++ {
				st := newKeyStorm(t)
				st.blow()
				time.Sleep(rand.N(2 * time.Millisecond))
				require.NoError(t, end(st.g))
				st.blowOver(t)
				stats := st.g.Stats()
				st.requireAgreement(t, totalsOf(stats))
				require.Zero(t, stats.Keys)
				require.ErrorIs(t, st.g.Wait(t.Context(), 9), shaper.ErrClosed)
				overflowed += stats.Overflowed
				broken += stats.LimitErrors
			}
			require.Positive(t, overflowed, "no key has ever shared a bucket")
			require.Positive(t, broken, "the limits of a key were never an error")
		})
	}
}

type keyStorm struct {
	storm
	g     *shaper.Group[float64]
	turns atomic.Int64 // of limits
}

// stormKeys are more than there is room for. The limits of all change; those of
// capKey have a cap now and then, and those of badKey are an error now and then.
var stormKeys = []float64{0, 1, 2, capKey, badKey, math.NaN()}

const (
	capKey = 3
	badKey = 4
)

func newKeyStorm(t *testing.T) *keyStorm {
	st := new(keyStorm)
	st.asks = true
	st.also = func(_ *call, _ hookKind, e shaper.Event) {
		if _, keyed := e.Key.(float64); !keyed {
			st.fault("a hook was told the key %v", e.Key)
		}
	}
	var err error
	st.g, err = shaper.NewGroup(st.limits, shaper.WithMaxKeys(3), st.trace())
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
	case key == capKey && turn/len(stormLimits)%2 == 0:
		l.InFlight = 1 + turn%stormCap
	case key == badKey && turn%3 == 0:
		return shaper.Limits{}, errNoUser
	}
	return l, nil
}

// pass is one call in one of the ways there are.
func (st *keyStorm) pass(key float64, c *call) error {
	switch way := rand.N(3); {
	case way == 0 && key != capKey:
		return st.g.WaitN(c, key, c.cost)
	case way == 1:
		return st.g.Do(c, key, c.cost, func(context.Context) error {
			st.stay()
			return nil
		})
	}
	return st.visit(st.g.Limiter(key), c)
}

// blow begins all that goes on at once.
func (st *keyStorm) blow() {
	for _, key := range stormKeys {
		st.calls(3, func() (closed bool) {
			c := someCall()
			err := st.pass(key, c)
			if key == badKey && errors.Is(err, errNoUser) { // Which is counted nowhere.
				c.cancel()
				return false
			}
			return st.note(c, err)
		})
	}
	for key := range 2 {
		st.meddle(func() { st.noteAllow(st.g.AllowN(float64(key), 1+rand.N(3))) })
	}
	st.meddle(func() { st.g.Reload() })
	st.meddleWith(func() meddled { return st.g.Limiter(stormKeys[rand.N(len(stormKeys))]) })
	st.meddle(st.looks(func() shaper.Stats { return totalsOf(st.g.Stats()) }))
	w := watch{fault: st.fault}
	st.meddle(func() {
		key := stormKeys[rand.N(len(stormKeys))]
		w.look(st.g, func(most int) []shaper.Waiter { return st.g.Line(key, most) }, func(most int) *shaper.Recording { return st.g.Record(key, most) })
		_ = st.g.SetLimits(key, stormLimits[rand.N(len(stormLimits))])
		_ = st.g.ResetLimits(stormKeys[rand.N(len(stormKeys))])
	})
	overflowed := uint64(0)
	st.meddle(func() {
		now := st.g.Stats()
		if now.Keys > 3 || now.Overflowed < overflowed {
			st.fault("Stats are %+v, after %d overflowed", now, overflowed)
		}
		overflowed = now.Overflowed
		for key, one := range st.g.All() {
			if key != key || one.Waiting < 0 || one.InFlight < 0 || one.InFlight > stormCap {
				st.fault("of key %v Stats are %+v", key, one)
			}
		}
	})
}
