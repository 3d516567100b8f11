package measure

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Half of the goroutines return at once; Gather does not wait for those.
func TestWaitersStandStillWhenGathered(t *testing.T) {
	const n = 1000
	never := make(chan struct{})
	w, err := Gather(n, func(i int) {
		if i%2 == 0 {
			<-never
		}
	})
	require.NoError(t, err)
	require.EqualValues(t, n, w.came.Load())
	require.GreaterOrEqual(t, Goroutines("waiting"), uint64(n/2))
	close(never)
	w.All.Wait()
}
