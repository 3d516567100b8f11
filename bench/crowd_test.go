package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Half of the crowd comes back at once: those are not waited for.
func TestCrowdIsThereWhenGathered(t *testing.T) {
	const n = 1000
	never := make(chan struct{})
	c, err := gather(n, func(i int) {
		if i%2 == 0 {
			<-never
		}
	})
	require.NoError(t, err)
	require.EqualValues(t, n, c.came.Load())
	require.GreaterOrEqual(t, goroutines("waiting"), uint64(n/2))
	close(never)
	c.members.Wait()
}
