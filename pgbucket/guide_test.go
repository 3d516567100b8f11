package pgbucket_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What docs/shared.md shows works on a database that has nothing of ours yet, for the first
// process and for the next.
func TestWhatTheGuideShowsWorks(t *testing.T) {
	startServer(t)
	pool := newPool(t, newDatabase(t))
	for range 2 {
		s, bucket, err := newPayments(t.Context(), pool)
		require.NoError(t, err)
		require.NoError(t, s.Wait(t.Context()))
		require.NoError(t, s.Close())
		deleted, err := sweepNow(t.Context(), bucket)
		require.NoError(t, err)
		require.Zero(t, deleted, "the level was above 0 a moment ago")
	}
}
