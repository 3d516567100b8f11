package main

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPlansKeepToTheirTime(t *testing.T) {
	for _, p := range parts {
		require.NotNil(t, p.takes, p.name)
	}
	require.LessOrEqual(t, takes(parts, options{}), 15*time.Minute)
	require.LessOrEqual(t, takes(parts, options{quick: true}), time.Minute)
}

func TestPlansHoldWhatIsComparedAndTheRounds(t *testing.T) {
	count := func(groups []spacingGroup) (cells int) {
		_, cells = spacingGroupsTake(groups)
		return cells
	}
	// With 100 waiters one round at 10/s and five at four rates, with 1 and
	// 10,000 one at each of five.
	require.Equal(t, 7*(1+4*5+2*5), count(spacingGroups(options{})))
	require.Equal(t, 7*(5*2+2*5), count(spacingGroups(options{rounds: 2})))
	require.Equal(t, 7*4, count(spacingGroups(options{quick: true})))
	require.Equal(t, 9*(5*3+5), count(busyGroups(options{})))
	require.Equal(t, 9*(2*3+5), count(busyGroups(options{rounds: 2})))
	require.Equal(t, 3*3, count(busyGroups(options{quick: true})))
	for _, g := range append(spacingGroups(options{}), busyGroups(options{})...) {
		for _, name := range append(g.round(0), g.round(1)...) {
			_, err := contestantNamed(name)
			require.NoError(t, err)
		}
		_, err := loadNamed(g.load)
		require.NoError(t, err)
	}
}

func TestAnotherBeginsEachRound(t *testing.T) {
	g := spacingGroup{rounds: 4, compared: []string{"a", "b", "c"}, once: []string{"d"}}
	require.Equal(t, []string{"a", "b", "c", "d"}, g.round(0))
	require.Equal(t, []string{"b", "c", "a"}, g.round(1))
	require.Equal(t, []string{"c", "a", "b"}, g.round(2))
	require.Equal(t, []string{"a", "b", "c"}, g.round(3))
	require.Equal(t, []string{"a", "b", "c"}, g.compared, "the plan itself stays")
}

func TestRoundsBecomeMediansAndSums(t *testing.T) {
	one := spacingResult{Contestant: "a", Rate: 10, RateReached: 1, ErrorP50: 10, ErrorP99: 100, Bunched: 1, Overtaken: 2,
		BurstMS: 3, SlotBurstMS: 7, CPUPer100k: 4, AllocsPerWait: 5, Departures: 10, Histogram: []int{1, 0}}
	two := spacingResult{Contestant: "a", Rate: 10, RateReached: 0.5, ErrorP50: 30, ErrorP99: 50, Bunched: 3, Overtaken: 1,
		BurstMS: 1, SlotBurstMS: 9, CPUPer100k: 8, AllocsPerWait: 6, Departures: 20, Histogram: []int{2, 2}}
	three := spacingResult{Contestant: "a", Rate: 10, RateReached: 0.9, ErrorP50: 20, ErrorP99: 70, Bunched: 2, Overtaken: 0,
		BurstMS: 2, SlotBurstMS: 8, CPUPer100k: 6, AllocsPerWait: 7, Departures: 30, Histogram: []int{3, 3}}
	require.Equal(t, spacingResult{Contestant: "a", Rate: 10, RateReached: 0.9, ErrorP50: 20, ErrorP99: 70, Bunched: 2, Overtaken: 1,
		BurstMS: 2, SlotBurstMS: 9, CPUPer100k: 6, AllocsPerWait: 6, Rounds: 3, Departures: 60, Histogram: []int{6, 5}},
		medianOfRounds([]spacingResult{one, two, three}))
	require.Equal(t, []int{1, 0}, one.Histogram, "the rounds stay as they are")
}

// A cell runs in a child, and what it finds is of the contestant and the load
// that it was asked for.
func TestACellMeasuresInAChild(t *testing.T) {
	in := spacingInput{Contestant: "shaper", Rate: 2000, Waiters: 20, Load: "pieces", Warm: 20 * time.Millisecond, Window: 400 * time.Millisecond}
	var out spacingResult
	require.NoError(t, measureCell(t.Context(), "spacing", in, &out))
	require.Equal(t, "shaper", out.Contestant)
	require.Equal(t, "pieces", out.Load)
	require.Equal(t, 20, out.Waiters)
	require.Len(t, out.Histogram, 120)
	require.Positive(t, out.Departures)
}

func TestACellThatCannotBeMeasuredSaysWhy(t *testing.T) {
	complaint := func(kind string, in spacingInput) string {
		var out spacingResult
		err := measureCell(t.Context(), kind, in, &out)
		require.Error(t, err)
		return err.Error()
	}
	require.Contains(t, complaint("spacings", spacingInput{}), `no cell is of the kind "spacings"`)
	require.Contains(t, complaint("spacing", spacingInput{Contestant: "nobody", Load: idle}), `no contestant is named "nobody"`)
	require.Contains(t, complaint("spacing", spacingInput{Contestant: "naive", Load: "heavy"}), `no load is named "heavy"`)

	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	require.ErrorIs(t, measureCell(ctx, "spacing", spacingInput{}, new(spacingResult)), context.Canceled)
}

// The cell would take an hour.
func TestAnInterruptEndsTheChild(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, interrupt)
	in := spacingInput{Contestant: "naive", Rate: 10, Waiters: 1, Load: idle, Warm: time.Hour}
	require.ErrorIs(t, measureCell(ctx, "spacing", in, new(spacingResult)), context.Canceled)
}

func TestACellThatFailsCostsItsContestantOnly(t *testing.T) {
	group := spacingGroup{
		rate: 1000, waiters: 2, load: idle, rounds: 2, compared: []string{"nobody", "naive"},
		warm: time.Millisecond, window: 20 * time.Millisecond,
	}
	results, err := measureSpacingGroups(t.Context(), options{say: t.Logf}, []spacingGroup{group})
	require.ErrorContains(t, err, `no contestant is named "nobody"`)
	require.Len(t, results, 1)
	require.Equal(t, "naive", results[0].Contestant)
	require.Equal(t, 2, results[0].Rounds)
}

func TestALoopTellsOfRefusalsAndOfTooManyDepartures(t *testing.T) {
	in := spacingInput{Rate: 10, Window: time.Second}
	loop := newClosedLoop(in)
	loop.run(t.Context(), func(context.Context) error { return errNaiveFull })
	_, err := loop.departures()
	require.EqualError(t, err, "a caller was refused: the naive queue is full")

	loop = newClosedLoop(in)
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	loop.run(ctx, func(context.Context) error {
		if calls++; calls > 5000 {
			cancel()
		}
		return nil
	})
	_, err = loop.departures()
	require.EqualError(t, err, "5000 have left, of whom only 4496 have a record")
}

func TestLoadsWorkUntilTheyAreStopped(t *testing.T) {
	for _, l := range loads() {
		var active atomic.Int64
		piece := l.piece
		l.piece = func(random *rand.Rand) {
			active.Add(1)
			piece(random)
			active.Add(-1)
		}
		running := l.start()
		require.Eventually(t, func() bool { return running.pieces() >= int64(l.goroutines) }, 10*time.Second, time.Millisecond, l.name)
		running.stop()
		require.Zero(t, active.Load(), l.name)
	}
}
