package shaper_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An upstream that serves four at once, in 200 ms each, bears 20 a second. When
// it becomes slow, as they do under load, it still gets 20 a second from a rate
// alone, and turns away what it can't take; with a cap it gets what it bears.
func TestACapHoldsWhatARateAloneDoesNot(t *testing.T) {
	for _, row := range []struct {
		limits  string
		service time.Duration
		refused int64
		took    time.Duration // until the last of 20 calls has ended
	}{
		{"20/s depth 100", 190 * ms, 0, 1140 * ms},
		{"20/s depth 100 inflight 4", 190 * ms, 0, 1140 * ms},
		{"20/s depth 100", 390 * ms, 8, 1340 * ms},
		{"20/s depth 100 inflight 4", 390 * ms, 0, 2100 * ms},
	} {
		t.Run(row.limits+" "+row.service.String(), func(t *testing.T) {
			play(t, row.limits, func(g *stage) {
				var busy, refused atomic.Int64
				call := func(context.Context) error {
					defer busy.Add(-1)
					if busy.Add(1) > 4 {
						refused.Add(1)
						return nil
					}
					time.Sleep(row.service)
					return nil
				}
				var all sync.WaitGroup
				for range 20 {
					all.Go(func() {
						if err := g.Do(context.Background(), 1, call); err != nil {
							g.note(err.Error())
						}
					})
				}
				all.Wait()
				g.saw() // No errors.
				require.Equal(t, row.refused, refused.Load())
				require.Equal(t, row.took, time.Since(g.start))
			})
		})
	}
}
