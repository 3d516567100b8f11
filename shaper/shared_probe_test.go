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

// While its bucket is down, a Shaper sleeps for up to 2 s between two probes. A program that
// ends, or closes one Shaper for each of its clients, must not wait for that.
func TestCloseDoesNotWaitForTheNextProbe(t *testing.T) {
	for name, goes := range map[string]bool{"with a request in line": false, "with an empty line": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := buckettest.NewMemory()
				m.Fail(func(int, string) buckettest.Fault { return buckettest.FailBefore })
				s, err := shaper.New(shaper.Limits{Rate: 100, Depth: 10}, shaper.WithBucket(m, "key"))
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go s.Wait(ctx)
				time.Sleep(10 * time.Second)
				require.Equal(t, shaper.BucketDown, s.Stats().Bucket.State)
				if goes {
					cancel()
					synctest.Wait()
					require.Zero(t, s.Stats().Waiting)
				}
				start := time.Now()
				require.NoError(t, s.Close())
				require.Zero(t, time.Since(start))
			})
		})
	}
}
