package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMemoryGoalLooksAtLinesWithoutContexts(t *testing.T) {
	g := memoryGoal(nil)
	require.Equal(t, notMeasured, g.Got)
	require.False(t, g.Reached)

	results := []memoryResult{
		{"shaper", 100_000, false, 2900, 170},
		{"shaper", 100_000, true, 3300, 570},
		{"x-time", 100_000, false, 3200, 470},
	}
	g = memoryGoal(results)
	require.Equal(t, "170", g.Got)
	require.True(t, g.Reached)

	results = append(results, memoryResult{"shaper", 1_000_000, false, 2950, 201})
	require.False(t, memoryGoal(results).Reached)
}

func TestMemoryTableWhereMemoryIsNotTold(t *testing.T) {
	table := memoryTable(nil, nil, 3)
	require.Equal(t, []string{"contestant", "bytes"}, table.Columns)
	require.Contains(t, table.Rows, []string{"shaper", notMeasured})
}

func TestMemoryTable(t *testing.T) {
	crowds := []memoryInput{{Waiting: 100_000}, {Waiting: 100_000, OwnContext: true}}
	table := memoryTable([]memoryResult{
		{"shaper", 100_000, false, 2900, 170},
		{"shaper", 100_000, true, 3300, 570},
	}, crowds, 3)
	require.Equal(t, []string{"contestant", "100000", "beyond", "100000, own context", "beyond"}, table.Columns)
	require.Contains(t, table.Rows, []string{"shaper", "2900", "170", "3300", "570"})
}

func TestOnlyFullTakesMuchMemory(t *testing.T) {
	if !memoryIsTold() {
		t.Skip(notMeasured)
	}
	for _, quick := range []bool{true, false} {
		require.NoError(t, memoryNeeded(options{quick: quick, say: t.Logf}))
		crowds := memoryCrowds(options{quick: quick, say: t.Logf})
		require.NotEmpty(t, crowds)
		for _, in := range crowds {
			require.Equal(t, scaleWaiting, in.Waiting)
		}
	}
}

func TestCeilingCountsOnlyWhereThereIsALine(t *testing.T) {
	results := []ceilingResult{
		{"shaper", 100, 3e6, 2_400_000, 90, 0}, // at the lock
		{"shaper", 10_000, 2e6, 1_000_000, 2600, 2500},
		{"failsafe", 100, 2e6, 1_900_000, 100, notTold},
	}
	g := ceilingGoal(results)
	require.Equal(t, "1000000, of 2000000 asked for, with 2500 of 10000 callers in line", g.Got)
	require.True(t, g.Reached)
	results[1].PerSecond = 999_999
	require.False(t, ceilingGoal(results).Reached)
	results[1].InLine = 2499
	require.Equal(t, "there was no line", ceilingGoal(results).Got)
}

// At this rate the line is never empty, and only who tells it is asked.
func TestCeilingKnowsTheLineOfThoseWhoTell(t *testing.T) {
	for name, want := range map[string]func(inLine float64) bool{
		"shaper": func(inLine float64) bool { return inLine > 5 && inLine <= 10 },
		"x-time": func(inLine float64) bool { return inLine == notTold },
	} {
		c, err := contestantNamed(name)
		require.NoError(t, err)
		r, err := ceiling(c, 10, 100, 50*time.Millisecond)
		require.NoError(t, err)
		require.Truef(t, want(r.InLine), "%s: %v", name, r.InLine)
	}
}

func TestCeilingTable(t *testing.T) {
	table := ceilingTable([]ceilingResult{
		{"shaper", 100, 1e6, 990_000, 90, 70}, {"shaper", 10_000, 1e6, 980_000, 9000, 8000},
		{"x-time", 100, 1e6, 700_000, 80, notTold}, {"x-time", 10_000, 1e6, 600_000, 8000, notTold},
	}, 3)
	require.Equal(t, [][]string{
		{"shaper", "1000000", "990000", "90", "70", "980000", "9000", "8000"},
		{"x-time", "1000000", "700000", "80", "-", "600000", "8000", "-"},
	}, table.Rows)
}

func TestWhoDoesNotWaitIsNotMeasured(t *testing.T) {
	refusing := contestant{open: func(float64, int) (func(context.Context) error, func()) {
		return func(context.Context) error { return errNaiveFull }, func() {}
	}}
	_, err := cancelLatencies(refusing, 100, 20)
	require.EqualError(t, err, "100 of 100 did not wait")
	_, err = ceiling(refusing, 2, 1000, 10*time.Millisecond)
	require.ErrorIs(t, err, errNaiveFull)
}

func TestCancelLatencies(t *testing.T) {
	c, err := contestantNamed("shaper")
	require.NoError(t, err)
	latencies, err := cancelLatencies(c, 100, 20)
	require.NoError(t, err)
	require.Len(t, latencies, 20)
	for _, us := range latencies {
		require.Positive(t, us)
	}
}
