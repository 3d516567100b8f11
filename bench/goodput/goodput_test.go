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

// In virtual time nothing is late, and the share served is exact.
func TestGoodputInVirtualTime(t *testing.T) {
	for _, c := range []struct {
		limiter string
		by      string
		served  float64
	}{
		{"shaper", byCancel, 100},
		{"shaper", byDeadline, 100},
		{"x-time", byCancel, 0}, // those in line have given up before their slot comes
		{"x-time", byDeadline, 100},
		{"failsafe", byCancel, 0},
		{"failsafe", byDeadline, 100},
	} {
		t.Run(c.limiter+" by "+c.by, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				served, callers := goodput(rivals.Openers[c.limiter], stream{c.by, 125}, 2*time.Second, 10*time.Second)
				callers.Wait()
				require.InDelta(t, c.served, served, 0.2, "one departure at either end of the window")
			})
		})
	}
}

// A waiter that stays and is refused has not left, however soon it returns.
func TestAHoleWithARefusalIsAnError(t *testing.T) {
	refusing := func(float64, int) rivals.Line {
		return rivals.Line{Wait: func(context.Context) error { return naive.ErrFull }, Stop: func() {}}
	}
	_, err := hole(t, refusing)
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
				took, err := hole(t, rivals.Openers[name])
				require.NoError(t, err)
				require.Equal(t, want, took.Round(time.Millisecond))
			})
		})
	}
}
