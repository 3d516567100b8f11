package realtime

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAWatchKeepsTheLongestStallAndTheSumOfThoseThatAreLong(t *testing.T) {
	var w Watch
	for _, late := range []time.Duration{5 * time.Millisecond, 150 * time.Millisecond, -time.Second, slow, 120 * time.Millisecond} {
		w.note(late)
	}
	require.EqualValues(t, 150*time.Millisecond, w.longest.Load())
	require.Equal(t, 270*time.Millisecond, w.Total())
}
