package clients

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Calls begin at the rate, or, if that takes longer, when the call before has ended.
func TestDoAll(t *testing.T) {
	for _, tt := range []struct {
		took time.Duration
		want []string
	}{
		{100 * time.Millisecond, []string{"0s", "1s", "2s", "3s", "4s"}},
		{1500 * time.Millisecond, []string{"0s", "1.5s", "3s", "4.5s", "6s"}},
	} {
		t.Run(tt.took.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, start := newShaper(t, 2), time.Now()
				var begins []string // One call at a time: it needs no lock.
				outputs, err := DoAll(background, s, []int{1, 2, 3, 4, 5}, func(_ context.Context, n int) (int, error) {
					begins = append(begins, fmt.Sprint(time.Since(start)))
					time.Sleep(tt.took)
					return n * n, nil
				})
				require.NoError(t, err)
				require.Equal(t, []int{1, 4, 9, 16, 25}, outputs)
				require.Equal(t, tt.want, begins)
				require.Zero(t, s.Stats().Refused)
			})
		})
	}
}

// The first error ends the other calls, and a panic is passed on. Neither keeps a seat.
func TestDoAllEndsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, broken := newShaper(t, 2), errors.New("broken")
		calls := 0
		_, err := DoAll(background, s, slices.Repeat([]int{0}, 5), func(context.Context, int) (int, error) {
			calls++
			return 0, broken
		})
		require.Equal(t, broken, err)
		require.Equal(t, 1, calls)
		require.Zero(t, s.Stats().InFlight)

		time.Sleep(time.Second)
		require.Panics(t, func() {
			_, _ = DoAll(background, s, []int{0}, func(context.Context, int) (int, error) { panic("a bug") })
		})
		require.Zero(t, s.Stats().InFlight)
		require.Zero(t, s.Stats().Waiting)
	})
}
