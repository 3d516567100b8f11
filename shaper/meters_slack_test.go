package shaper

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/exact"
)

// A ticker that is late by more than the slack lets no level leak meanwhile, and no level makes that up.
func TestLatenessIsLostAtEveryLevel(t *testing.T) {
	s, err := New(Limits{Rate: 10, Depth: 9}, WithMeters(Meter{Name: "input", Rate: 20, Burst: 4}, Meter{Name: "output", Rate: 1000, Burst: 1}))
	require.NoError(t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	for range 4 {
		r := &request{ctx: context.Background(), cost: 1, deadline: exact.Forever}
		r.outlay().costs = moreCosts{2, 1}
		require.NoError(t, s.decideLocked(&s.flow, 0, r).err)
	}
	s.updateDepartureLocked(&s.flow)
	s.dirty = nil
	second := int64(time.Second)
	s.clock = second
	s.advanceLocked(second, headFirst) // The head had its slot after 100 ms. It leaves as if at 980 ms.
	require.Equal(t, int32(2), s.waiting)
	require.Equal(t, second+80*int64(time.Millisecond), s.flow.line.slot)
	m := s.meters()
	require.InDelta(t, 8.8, s.flow.bucket.coldOrNone().missed, 1e-9)
	require.InDelta(t, 17.6, m.further[0].coldOrNone().missed, 1e-9)
	require.InDelta(t, 880, m.further[1].coldOrNone().missed, 1e-9)
	require.InDelta(t, 0.8, s.flow.bucket.level(second), 1e-9)
	// At the first level's 980 ms it was at 2, but nothing of that had leaked since 100 ms.
	require.InDelta(t, 1.6, m.further[0].level(second), 1e-9)
	s.refuseLinesLocked(second)
	require.Empty(t, m.outlays)
	require.Equal(t, moreCosts{}, m.sums)
}
