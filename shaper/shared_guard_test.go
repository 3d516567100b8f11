package shaper_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// A Take that finds no state and has to wait for the guard must leave a state behind. If it
// left none, the next Take would wait for a guard of its own, and nobody would ever leave.
func TestColdGuardEnds(t *testing.T) {
	take := shaper.Take{Key: "k", Cost: 1, First: 1, Guard: 100 * time.Millisecond, Rate: shaper.BucketRate{Version: 1, Micros: 1000, Parts: 1, Burst: 1}}
	state, taken := take.Apply(shaper.BucketLevel{}, 1_000_000)
	require.Equal(t, shaper.Taken{Now: 1_000_000, Empty: shaper.Instant{Micros: 1_100_000}, Cold: true}, taken)
	_, taken = take.Apply(state, 1_100_000)
	require.Equal(t, shaper.Taken{OK: true, Now: 1_100_000, Empty: shaper.Instant{Micros: 1_100_000}}, taken)
}
