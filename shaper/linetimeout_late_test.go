package shaper

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/exact"
)

// A ticker that is late makes nobody late: whoever would have left between the bound of the one ahead and their own has a slot.
func TestALateTickerRefusesOnlyWhoWouldHaveBeenLate(t *testing.T) {
	s, err := New(Limits{Rate: 10, Burst: 5, Depth: 9}, WithLineTimeout(400*time.Millisecond))
	require.NoError(t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	enter := func(n int64, now time.Duration) *waiter {
		dec := s.decideLocked(&s.flow, int64(now), &request{ctx: context.Background(), cost: n, deadline: exact.Forever})
		require.NoError(t, dec.err)
		return dec.waiter
	}
	enter(2, 0)
	dear := enter(5, 0) // It needs an empty bucket.
	const changed = 100 * time.Millisecond
	cheap := enter(1, changed)
	s.changeLocked(&s.flow, s.planOf(Limits{Rate: 1, Burst: 5, Depth: 9}), int64(changed))
	now := int64(600 * time.Millisecond) // Dear's bound came at 400 ms, cheap's at 500 ms.
	s.clock = now
	s.markDirtyLocked(&s.flow)
	s.advanceLocked(now, headFirst)
	require.Equal(t, []state{overdue, departed}, []state{dear.state, cheap.state})
}
