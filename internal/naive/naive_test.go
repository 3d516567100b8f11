package naive_test

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/naive"
)

func TestAFullQueueRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := naive.New(1, 1)
		q.Start()
		defer q.Stop()
		var waiting sync.WaitGroup
		for range 2 { // One holds the place, and one is waited for at the head.
			waiting.Go(func() {
				if err := q.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		require.ErrorIs(t, q.Wait(t.Context()), naive.ErrFull)
		waiting.Wait()
	})
}
