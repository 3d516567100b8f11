package model_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
)

// A slot as far ahead as slots may be is still to come when the rate is raised. The first
// slot of the new rate must be one interval after it, not at its instant.
func TestRaisedRateKeepsItsDistanceFromTheFarthestSlot(t *testing.T) {
	const now = int64(1_000_000_000)
	slow := shaper.BucketRate{Version: 1, Micros: 3_000_000, Parts: 1, Burst: 1}
	fast := shaper.BucketRate{Version: 2, Micros: 10_000, Parts: 1, Burst: 1}
	take := shaper.Take{Key: "k", Cost: 1, First: 1, Ahead: shaper.MaxAhead, Rate: slow}

	state, first := take.Apply(shaper.BucketLevel{}, now)
	require.True(t, first.OK)
	state, second := take.Apply(state, now+1_000_000)
	require.True(t, second.OK)
	take.Rate = fast
	state, third := take.Apply(state, now+1_000_000)
	if !third.OK {
		state, third = take.Apply(state, now+1_010_000)
	}
	require.True(t, third.OK)

	var log []model.Departure
	for i, taken := range []shaper.Taken{first, second, third} {
		require.Zero(t, taken.Empty.Part)
		log = append(log, model.Departure{At: time.Duration(taken.Empty.Micros) * time.Microsecond, Process: i, Cost: 1})
	}
	require.NoError(t, model.SharedPace{Interval: big.NewRat(int64(10*ms), 1), Burst: 1}.Check(log))
	require.Equal(t, second.Empty.Micros+10_000, third.Empty.Micros)
}
