package model

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
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

// A first answer that took 30 ms leaves the engine's clock uncertain by as much, so that a
// step back by 5 ms fits what is known. Slots that were leased before must not be used 5 ms
// later for that.
func TestUnnoticedStepBackMakesNoSlotLater(t *testing.T) {
	const ms = time.Millisecond
	rate := shaper.BucketRate{Version: 1, Micros: 1000, Parts: 1, Burst: 1}
	for late, leaves := range map[time.Duration]bool{10*ms - 2*time.Microsecond: false, 9 * ms: true, 14 * ms: false} {
		r := NewSharedRun(SharedPlan{Processes: 1, Rate: rate, Batch: 1, MaxCost: 1, Lateness: 10 * ms, Trip: ms, Timeout: time.Second}, 1, NoSharedMistake)
		p := r.processes[0]
		p.clock = localClock{}
		p.enter(1)

		require.True(t, p.theta.learn(engineBegan.Microseconds(), 0, 30*ms))
		slot := tick(engineBegan+35*ms) * perNano
		p.leases = []stretch{{pos: slot, end: slot + unit(rate), rate: rate, theta: p.theta}}
		require.True(t, p.theta.learn((engineBegan+32*ms-5*ms).Microseconds(), 32*ms, 32*ms), "the step is not noticed")

		r.now = 35*ms + late
		_, left := p.serve(p.now())
		require.Equal(t, leaves, left, late)
	}
}
