package model

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process must find the first instant at which its clock reads something, or a run would
// use slots early.
func TestLocalClockInverse(t *testing.T) {
	chance := rand.New(rand.NewPCG(15, 1))
	for range 20_000 {
		c := localClock{offset: time.Duration(chance.Int64N(1 << 40)), ppm: chance.Int64N(181) - 90}
		reading := c.offset + time.Duration(chance.Int64N(1<<38))
		first := c.when(reading)
		require.GreaterOrEqual(t, c.at(first), reading)
		require.Less(t, c.at(first-1), reading)
	}
}
