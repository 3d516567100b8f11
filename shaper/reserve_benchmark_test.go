package shaper_test

import (
	"context"
	"fmt"
	"testing"

	"example.com/leakybucket/shaper"
)

// BenchmarkSettle reserves, and settles the oldest of so many that are open, which is the one that has most to
// walk.
func BenchmarkSettle(b *testing.B) {
	for _, open := range []int{1, 100, 4096} {
		b.Run(fmt.Sprintf("open=%d", open), func(b *testing.B) {
			s := mustMake(b, shaper.Limits{Rate: 1000, Burst: 1e9})
			settles := make([]func(int), open)
			for i := range settles {
				settles[i], _ = s.Reserve(context.Background(), 100)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i = (i + 1) % open {
				settles[i](99)
				settles[i], _ = s.Reserve(context.Background(), 100)
			}
			if forfeited := s.Stats().Forfeited; forfeited > 0 {
				b.Fatal(forfeited, " units were forfeited, so less was walked than was meant")
			}
		})
	}
}
