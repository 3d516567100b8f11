package shaper_test

import (
	"context"
	"fmt"
	"testing"

	"example.com/leakybucket/shaper"
)

// BenchmarkReserve is a call that may leave at once and ends at once, beside Acquire. Whoever knows the costs
// needs no Reserve.
func BenchmarkReserve(b *testing.B) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, inFlight := range []int{0, 100} {
		limits := shaper.Limits{Rate: 1000, Burst: 1e9, Depth: 1, InFlight: inFlight} // so that next to nothing drains
		for call, once := range map[string]func(*shaper.Shaper){
			"Acquire": func(s *shaper.Shaper) {
				release, _ := s.Acquire(ctx, 2)
				release()
			},
			"Reserve-as-estimated": func(s *shaper.Shaper) {
				settle, _ := s.Reserve(ctx, 2)
				settle(2)
			},
			"Reserve-less": func(s *shaper.Shaper) {
				settle, _ := s.Reserve(ctx, 2)
				settle(1)
			},
		} {
			b.Run(fmt.Sprintf("call=%s/inflight=%d", call, inFlight), func(b *testing.B) {
				s := mustMake(b, limits)
				b.ReportAllocs()
				for b.Loop() {
					once(s)
				}
			})
		}
	}
}

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
