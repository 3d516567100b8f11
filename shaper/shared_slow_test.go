package shaper_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// Three answers that were late, because a machine was busy for a moment, are no reason to
// refuse newcomers. A bucket that is always farther than slots may be late is one.
func TestAFewSlowAnswersDoNotCountAsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		s, err := shaper.New(shaper.Limits{Rate: 1000, Depth: 10, Slack: 25 * time.Millisecond}, shaper.WithBucket(m, "key"))
		require.NoError(t, err)
		defer s.Close()
		m.SetDelay(time.Millisecond, time.Millisecond)
		require.NoError(t, s.Wait(t.Context()))
		m.SetDelay(28*time.Millisecond, 2*time.Millisecond)
		for range 5 {
			require.NoError(t, s.Wait(t.Context()))
		}
		require.Zero(t, s.Stats().Bucket.Failures)
		require.Equal(t, shaper.BucketShared, s.Stats().Bucket.State)

		m.SetDelay(30*time.Millisecond, 30*time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		require.ErrorIs(t, s.Wait(ctx), context.DeadlineExceeded)
		err = s.Wait(t.Context())
		require.ErrorIs(t, err, shaper.ErrUnavailable)
		require.ErrorContains(t, err, "Limits.Slack is 25ms")
	})
}
