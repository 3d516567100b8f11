package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

var busyPart = part{
	name: "busy",
	what: "the same while other goroutines of the process keep all its Ps busy: is the rate held?",
	takes: func(o options) time.Duration {
		takes, _ := spacingGroupsTake(busyGroups(o))
		return takes
	},
	measure: measureBusy,
}

// busyCompared are those that the goals are about, busyOnce the others.
var (
	busyCompared = []string{"shaper", "shaper-slack100", "x-time"}
	busyOnce     = []string{"shaper-coarse", "uber", "uber-noslack", "failsafe", "naive"}
)

// busyRates are where the goals are judged. At 10,000/s there must be callers
// enough for all that are late to leave at once.
var busyRates = []struct {
	rate    float64
	waiters int
	window  time.Duration
}{
	{100, 100, 900 * time.Millisecond},
	{1_000, 100, 600 * time.Millisecond},
	{10_000, 1_000, 500 * time.Millisecond},
}

// busyWarmUp is longer than warmUp: the load has to get going, and those who
// adapt to it have to notice.
const busyWarmUp = 200 * time.Millisecond

func busyGroups(o options) []spacingGroup {
	var groups []spacingGroup
	for _, l := range loads() {
		for _, at := range busyRates {
			g := spacingGroup{
				rate: at.rate, waiters: at.waiters, load: l.name, rounds: o.times(5),
				compared: busyCompared, once: busyOnce,
				warm: busyWarmUp, window: at.window,
			}
			if o.quick {
				if at.rate != 1_000 {
					continue
				}
				g.rounds, g.once = o.times(1), nil
			}
			groups = append(groups, g)
		}
	}
	return groups
}

func measureBusy(ctx context.Context, o options) (report, error) {
	results, err := measureSpacingGroups(ctx, o, busyGroups(o))
	if len(results) == 0 {
		return report{}, err
	}
	return report{Tables: []table{busyTable(results)}, Data: results, Goals: busyGoals(results)}, err
}

func busyTable(results []spacingResult) table {
	var what []string
	for _, l := range loads() {
		what = append(what, l.name+": "+l.what)
	}
	t := table{
		Title: "Spacing in a busy process",
		Note: strings.Join(what, "; ") + ". All as for spacing. " +
			"Burst: the largest excess over the rate within any window, in ms of the rate, as the receivers saw it and as the slots were handed out. " +
			"The first is larger, as a goroutine that has been let go still has to wait for a P, whoever let it go. Of slots it is the largest of the rounds, not their median.",
		Columns: []string{"load", "rate", "waiters", "contestant", "rate reached", "error p50 µs", "error p99 µs",
			"bunched %", "overtaken %", "burst ms", "of slots", "rounds"},
	}
	for _, r := range results {
		t.Rows = append(t.Rows, []string{
			r.Load, perSecond(r.Rate), grouped(r.Waiters), r.Contestant, fmt.Sprintf("%.3f", r.RateReached),
			figure(r.ErrorP50), figure(r.ErrorP99), fmt.Sprintf("%.1f", r.Bunched), fmt.Sprintf("%.1f", r.Overtaken),
			figure(r.BurstMS), figureOrDash(r.SlotBurstMS), strconv.Itoa(r.Rounds),
		})
	}
	return t
}
