package shaper_test

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

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
