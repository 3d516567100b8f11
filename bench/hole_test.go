package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// One who stays and is refused has not left, however soon he is back.
func TestAHoleWithARefusalIsAnError(t *testing.T) {
	refusing := contestant{open: func(float64, int) (func(context.Context) error, func()) {
		return func(context.Context) error { return errNaiveFull }, func() {}
	}}
	_, err := hole(refusing)
	require.ErrorIs(t, err, errNaiveFull)
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
				c, err := contestantNamed(name)
				require.NoError(t, err)
				took, err := hole(c)
				require.NoError(t, err)
				require.Equal(t, want, took.Round(time.Millisecond))
			})
		})
	}
}
