package shaper_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// Four processes share a bucket: together they reach its rate, in equal shares.
func TestProcessesShareARate(t *testing.T) {
	t.Parallel()
	for _, perSecond := range []float64{3, 100, 1000, 10000} {
		synctest.Test(t, func(t *testing.T) {
			m := buckettest.NewMemory()
			m.SetDelay(100*time.Microsecond, 100*time.Microsecond)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			var all []*shaper.Shaper
			for range 4 {
				s, err := shaper.New(shaper.Limits{Rate: rate.Limit(perSecond), Depth: 1000}, shaper.WithBucket(m, "k"))
				require.NoError(t, err)
				all = append(all, s)
				for range 100 {
					wg.Go(func() {
						for s.Wait(ctx) == nil {
						}
					})
				}
			}
			span := 30 * time.Second
			time.Sleep(span)
			total := uint64(0)
			for _, s := range all {
				st := s.Stats()
				t.Logf("%v/s: departed %d, level %.1f, %+v", perSecond, st.Departed, st.Level, st.Bucket)
				total += st.Departed
			}
			t.Logf("rate %.4f", float64(total)/(perSecond*span.Seconds()))
			cancel()
			wg.Wait()
			for _, s := range all {
				require.NoError(t, s.Close())
			}
		})
	}
}
