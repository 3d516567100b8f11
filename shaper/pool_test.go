package shaper_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

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
