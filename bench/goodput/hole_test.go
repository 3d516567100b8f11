package goodput

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/internal/naive"
)

// A waiter that stays and is refused has not left, however soon it returns.
func TestAHoleWithARefusalIsAnError(t *testing.T) {
	refusing := rivals.Rival{Open: func(float64, int, func(time.Time)) rivals.Line {
		return rivals.Line{Wait: func(context.Context) error { return naive.ErrFull }, Stop: func() {}}
	}}
	_, err := hole(refusing)
	require.ErrorIs(t, err, naive.ErrFull)
}

// In virtual time all come at the same instant, one leaves at once, and the 900
// give up before the next: the shaper's last of 100 leaves after 99 intervals,
// x/time's last of 1,000 after 999.
func TestHoleInVirtualTime(t *testing.T) {
	for name, want := range map[string]time.Duration{
		"shaper": 99 * time.Millisecond,
		"x-time": 999 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				took, err := hole(rivals.Named(name))
				require.NoError(t, err)
				require.Equal(t, want, took.Round(time.Millisecond))
			})
		})
	}
}
