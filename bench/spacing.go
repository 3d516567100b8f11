package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"
)

var spacingPart = part{
	name: "spacing",
	what: "how evenly callers leave at 10 to 100,000/s, in which order, and what it costs",
	takes: func(o options) time.Duration {
		takes, _ := spacingGroupsTake(spacingGroups(o))
		return takes
	},
	measure: measureSpacings,
}

// waitingContestants are those that differ when the process is idle.
var waitingContestants = []string{"shaper", "shaper-coarse", "x-time", "uber", "uber-noslack", "failsafe", "naive"}

// goalWaiters is how many wait where the goals are judged.
const goalWaiters = 100

// spacingWindows are how long a cell lasts: there must be departures enough at
// a low rate, and at a high one they soon are.
var spacingWindows = []struct {
	rate   float64
	window time.Duration
	quick  time.Duration // 0: left out
}{
	{10, 2500 * time.Millisecond, 0},
	{100, 1500 * time.Millisecond, 1100 * time.Millisecond},
	{1_000, 500 * time.Millisecond, 400 * time.Millisecond},
	{10_000, 400 * time.Millisecond, 300 * time.Millisecond},
	{100_000, 300 * time.Millisecond, 200 * time.Millisecond},
}

const warmUp = 150 * time.Millisecond

// spacingGroups are what is measured: goalWaiters first, and most often.
func spacingGroups(o options) []spacingGroup {
	var groups []spacingGroup
	for _, waiters := range []int{goalWaiters, 1, 10_000} {
		for _, at := range spacingWindows {
			g := spacingGroup{
				rate: at.rate, waiters: waiters, load: idle, rounds: 1, compared: waitingContestants,
				warm: warmUp, window: at.window,
				histograms: waiters == goalWaiters && (at.rate == 1_000 || at.rate == 10_000),
			}
			switch {
			case o.quick && (at.quick == 0 || waiters != goalWaiters):
				continue
			case o.quick:
				g.window = at.quick
				g.rounds = o.times(1)
			case waiters == goalWaiters && at.rate > 10: // At 10/s a round takes long, and says much by itself.
				g.rounds = o.times(5)
			case waiters == goalWaiters:
				g.rounds = o.times(1)
			}
			groups = append(groups, g)
		}
	}
	return groups
}

func measureSpacings(ctx context.Context, o options) (report, error) {
	groups := spacingGroups(o)
	results, err := measureSpacingGroups(ctx, o, groups)
	if len(results) == 0 {
		return report{}, err
	}
	r := report{Data: results, Goals: spacingGoals(results)}
	for _, waiters := range []int{1, goalWaiters, 10_000} {
		of := slices.DeleteFunc(slices.Clone(results), func(r spacingResult) bool { return r.Waiters != waiters })
		if len(of) > 0 {
			r.Tables = append(r.Tables, spacingTable(waiters, of))
		}
	}
	r.Tables[0].Note = spacingNote
	return r, err
}

const spacingNote = "Closed loop: each caller waits again as soon as it has left. Instants are those at which callers ran again. " +
	"Error: |spacing - interval|. Bunched: spacings below half an interval. " +
	"Overtaken: departures before which somebody left who had begun to wait later; the order is taken just before the call, " +
	"so that two callers within some nanoseconds may be mistaken for each other. " +
	"CPU and allocations are those of the whole process. Medians of so many rounds."

func spacingTable(waiters int, results []spacingResult) table {
	t := table{
		Title: fmt.Sprintf("Spacing, %s, nothing else running", counted(waiters, "waiter")),
		Columns: []string{"rate", "contestant", "rate reached", "error p50 µs", "error p99 µs",
			"bunched %", "overtaken %", "CPU s per 100,000", "allocations per wait", "rounds"},
	}
	for _, r := range results {
		t.Rows = append(t.Rows, []string{
			perSecond(r.Rate), r.Contestant, fmt.Sprintf("%.4f", r.RateReached),
			figure(r.ErrorP50), figure(r.ErrorP99), fmt.Sprintf("%.1f", r.Bunched), fmt.Sprintf("%.1f", r.Overtaken),
			figureOrDash(r.CPUPer100k), fmt.Sprintf("%.2f", r.AllocsPerWait),
			strconv.Itoa(r.Rounds),
		})
	}
	return t
}
