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
		_, third = take.Apply(state, now+1_010_000)
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

// What a lost state costs: beside the slots that the other processes hold, all that has left
// within a burst may leave again. Here nobody holds any, as all have been used.
func TestLostStateCostsABurst(t *testing.T) {
	const now = int64(1_000_000_000)
	r := shaper.BucketRate{Version: 1, Micros: 10_000, Parts: 1, Burst: 5}
	take := shaper.Take{Key: "k", Cost: 5, First: 1, Rate: r}
	departures := func(process int, taken shaper.Taken) (log []model.Departure) {
		require.True(t, taken.OK)
		require.Equal(t, shaper.Instant{Micros: now}, taken.Empty)
		for i := range 5 {
			log = append(log, model.Departure{Process: process, Number: i, Cost: 1})
		}
		return log
	}
	_, one := take.Apply(shaper.BucketLevel{}, now)
	_, two := take.Apply(shaper.BucketLevel{}, now)
	log := append(departures(1, one), departures(2, two)...)
	require.Equal(t, r.Burst, pace(5, 0).Worst(log).Excess())

	// The process that used them says so.
	take.High, take.Seen = shaper.Instant{Micros: now + 50_000}, now
	_, again := take.Apply(shaper.BucketLevel{}, now)
	require.False(t, again.OK)
	require.Equal(t, take.High, again.Empty)
}
