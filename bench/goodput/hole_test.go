package goodput

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
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

func TestTheHoleIsComparedWithXTime(t *testing.T) {
	at := func(limiter string, ms float64) holeResult {
		r := holeFound{ms * 1e6}
		return holeResult{Case: run.Case[string]{Name: "Hole/limiter=" + limiter, Input: limiter}, Found: []holeFound{r}, Median: r}
	}
	r := holeReport([]holeResult{at("shaper", 100), at("x-time", 800)})
	require.Equal(t, [][]string{{"shaper", "100"}, {"x-time", "800"}}, r.Tables[0].Rows)
	require.Equal(t, "8.00× (100 against 800 ms)", r.Goals[0].Got)
	require.True(t, r.Goals[0].Reached)
	require.False(t, holeReport([]holeResult{at("shaper", 100), at("x-time", 799)}).Goals[0].Reached)
	require.False(t, holeReport([]holeResult{at("shaper", 100)}).Goals[0].Reached)
}
