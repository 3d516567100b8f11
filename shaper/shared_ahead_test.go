package shaper_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What a process tells of the units that it leases ahead is what a cold guard is computed from, so it
// must never hold more, whatever requests cost and however long round trips get.
func TestNoProcessHoldsMoreThanItSaysItMay(t *testing.T) {
	for _, cost := range []int{1, 7, 400} {
		share(t, 3, "100/s burst 3 depth 9999", 2*ms, func(p *processes) {
			for range 600 / cost * 5 {
				for i := range p.all {
					go func() { _ = p.wait(context.Background(), i, cost) }()
				}
			}
			held := int64(0)
			for at := time.Duration(0); at < 4*time.Second; at += 3 * ms {
				if at == 2001*ms {
					p.SetDelay(60*ms, 60*ms)
				}
				p.at(at)
				for _, s := range p.all {
					st := s.Stats().Bucket
					require.LessOrEqual(t, st.Held, st.Ahead)
					held = max(held, st.Held)
				}
			}
			require.Positive(t, held)
		})
	}
}
