package shaper

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/exact"
)

// lineOf100000 returns a Shaper with a line of 100,000 that nobody waits in, and an instant after which one of them leaves
// each millisecond.
func lineOf100000(b *testing.B, opts ...Option) (s *Shaper, from int64) {
	s, err := New(Limits{Rate: 1000, Depth: 100_000}, opts...)
	require.NoError(b, err)
	r := &request{ctx: context.Background(), cost: 1, deadline: exact.Forever}
	s.mu.Lock()
	defer s.mu.Unlock()
	for range 100_001 {
		require.NoError(b, s.decideLocked(&s.flow, 0, r).err)
	}
	s.updateDepartureLocked(&s.flow)
	s.dirty = nil
	return s, 0
}

// BenchmarkLongLine measures what one departure takes out of a line of 100,000, and one bound of 100,000 that come at one
// instant; without the wake-up of a goroutine.
func BenchmarkLongLine(b *testing.B) {
	for _, c := range []struct {
		name string
		opts []Option
	}{{"unbounded", nil}, {"bounded", []Option{WithLineTimeout(time.Hour)}}} {
		b.Run(fmt.Sprint("departs/", c.name), func(b *testing.B) {
			var s *Shaper
			var now int64
			left := 0
			for b.Loop() {
				if left == 0 {
					b.StopTimer()
					s, now = lineOf100000(b, c.opts...)
					left = 100_000
					b.StartTimer()
				}
				left--
				now += int64(time.Millisecond)
				s.mu.Lock()
				s.clock = now
				s.advanceLocked(now, headFirst)
				s.mu.Unlock()
			}
		})
	}
	b.Run("bounds", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			s, _ := lineOf100000(b, WithLineTimeout(time.Hour))
			s.mu.Lock()
			s.flow.bucket.coldOrNew().hold = exact.At(int64(2 * time.Hour))
			s.updateDepartureLocked(&s.flow)
			b.StartTimer()
			s.clock = int64(time.Hour)
			s.advanceLocked(s.clock, headFirst)
			b.StopTimer()
			require.Zero(b, s.waiting)
			s.mu.Unlock()
			b.StartTimer()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/bound")
	})
}
