package shaper

import (
	"bytes"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/internal/realtime"
)

// However many calls are refused at the same moment, each has a stripe to itself, and no stripe is
// left out of a reading.
func TestNoStripeOfRefusalsIsForgotten(t *testing.T) {
	s, err := New(Limits{Rate: 1})
	require.NoError(t, err)
	s.stripes = newRefusalStripes()
	p := &publication{stripes: s.stripes, first: s.stripes.stripe(0)}
	held := make(map[*refusalStripe]bool)
	for i := range s.stripes.all {
		stripe := p.lockStripe()
		require.False(t, held[stripe])
		held[stripe] = true
		stripe.noteLocked(p, int64(i), int64(i), rejection{reason: refusedFull})
	}
	for stripe := range held {
		stripe.mu.Unlock()
	}
	require.Equal(t, uint64(len(held)), s.Stats().QueueFull)
	require.Equal(t, s.timeOf(int64(len(held)-1)), s.Stats().LastCall)
	costs := make([]int, 0, len(held))
	for _, one := range s.Refusals() {
		costs = append(costs, one.Cost)
	}
	require.Len(t, costs, len(held))
	require.IsIncreasing(t, costs)
}

// A call that has read the clock long ago is refused as at the instant of the publication that
// refuses it, as it would be with the lock. A call that another one has overtaken does not put
// LastCall back.
func TestARefusalThatComesLateSaysNothingOfThePast(t *testing.T) {
	s, err := New(Limits{Rate: 1. / 3600})
	require.NoError(t, err)
	require.True(t, s.Allow())
	for range publishAfter {
		require.False(t, s.Allow())
	}
	p := s.published.Load()
	refusedAt := func(at int64) *RejectError {
		r := &request{ctx: t.Context(), cost: 1, deadline: exact.Forever}
		return p.refuse(s, at, r).err.(*RejectError)
	}
	late := refusedAt(p.at + 3000)
	require.Equal(t, late.RetryAfter+2000, refusedAt(p.at+1000).RetryAfter)
	require.Equal(t, late.RetryAfter+3000, refusedAt(0).RetryAfter)
	require.Equal(t, s.timeOf(p.at+3000), s.Stats().LastCall)
	require.Equal(t, s.timeOf(p.at), s.Refusals()[publishAfter].At)
}

// Where all stripes are locked, a refusal sleeps until one is free: it uses no processor.
func TestARefusalWaitsForAStripe(t *testing.T) {
	stripes := newRefusalStripes()
	held := make([]*refusalStripe, 0, len(stripes.all))
	for range stripes.all {
		held = append(held, stripes.lock())
	}
	locked := make(chan *refusalStripe)
	go func() { locked <- stripes.lock() }()
	stacks := make([]byte, 16<<20)
	realtime.Until(t, func() bool {
		all := stacks[:runtime.Stack(stacks, true)]
		return slices.ContainsFunc(bytes.Split(all, []byte("\n\n")), func(one []byte) bool {
			state, calls, _ := bytes.Cut(one, []byte("\n"))
			return bytes.Contains(state, []byte("[sync.Mutex.Lock")) && bytes.Contains(calls, []byte("(*refusalStripes).lock("))
		})
	}, "it does not sleep")
	for _, stripe := range held {
		stripe.mu.Unlock()
	}
	(<-locked).mu.Unlock()
}
