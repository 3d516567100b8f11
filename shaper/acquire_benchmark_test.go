package shaper_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A call of Acquire that may leave at once makes its release, and nothing else, and not even that
// if its caller keeps release to itself; without a cap, where release does nothing, it never
// does. Do makes none.
func TestAcquireAllocatesItsReleaseAtMost(t *testing.T) {
	kept := func(ctx context.Context, s *shaper.Shaper) error {
		release, err := s.Acquire(ctx, 1)
		keptRelease = release
		release()
		return err
	}
	acquire := func(ctx context.Context, s *shaper.Shaper) error {
		release, err := s.Acquire(ctx, 1)
		release()
		return err
	}
	do := func(ctx context.Context, s *shaper.Shaper) error {
		return s.Do(ctx, 1, func(context.Context) error { return nil })
	}
	for _, c := range []struct {
		name   string
		limits shaper.Limits
		call   func(context.Context, *shaper.Shaper) error
		want   float64
	}{
		{"Acquire", shaper.Limits{Rate: rate.Inf, Depth: 1}, acquire, 0},
		{"Acquire with a cap", shaper.Limits{Rate: rate.Inf, Depth: 1, InFlight: 1}, acquire, 0},
		{"Acquire, release is kept", shaper.Limits{Rate: rate.Inf, Depth: 1}, kept, 0},
		{"Acquire with a cap, release is kept", shaper.Limits{Rate: rate.Inf, Depth: 1, InFlight: 1}, kept, 1},
		{"Acquire that waits", shaper.Limits{Rate: 1000, Depth: 1}, acquire, 0},
		{"Acquire with a cap that waits", shaper.Limits{Rate: 1000, Depth: 1, InFlight: 1}, acquire, 0},
		{"Do", shaper.Limits{Rate: rate.Inf, Depth: 1}, do, 0},
		{"Do with a cap", shaper.Limits{Rate: rate.Inf, Depth: 1, InFlight: 1}, do, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := mustMake(t, c.limits)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				failed := 0
				got := testing.AllocsPerRun(1000, func() {
					if c.call(ctx, s) != nil {
						failed++
					}
				})
				if testing.CoverMode() == "" {
					require.Equal(t, c.want, got)
				} else { // With the counters of that, Acquire is too large for the compiler to inline.
					require.LessOrEqual(t, got, 1.)
				}
				require.Zero(t, failed)
			})
		})
	}
}

// keptRelease keeps the compiler from leaving the release on the stack.
var keptRelease func()
