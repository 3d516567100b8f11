package main

import (
	"context"
	"errors"
	"slices"
	"time"
)

// A spacingGroup is measured in interleaved rounds: what disturbs the machine
// for a while disturbs all contestants alike.
type spacingGroup struct {
	rate       float64
	waiters    int
	load       string
	rounds     int
	compared   []string // contestants that are in every round
	once       []string // contestants that are in the first only
	warm       time.Duration
	window     time.Duration
	histograms bool // are wanted, for a picture
}

// startAndEnd is what a cell takes beside its warm-up and its window.
const startAndEnd = 30 * time.Millisecond

func (g spacingGroup) cells() int { return g.rounds*len(g.compared) + len(g.once) }

// eachTakes is about how long one cell takes.
func (g spacingGroup) eachTakes() time.Duration { return g.warm + g.window + startAndEnd }

// round is who is measured in a round, in turn: another begins in each.
func (g spacingGroup) round(n int) []string {
	order := slices.Clone(g.compared)
	if n == 0 {
		order = append(order, g.once...)
	}
	first := n % len(order)
	return append(order[first:], order[:first]...)
}

// spacingGroupsTake is about how long groups take, and how many cells they are.
func spacingGroupsTake(groups []spacingGroup) (takes time.Duration, cells int) {
	for _, g := range groups {
		takes += time.Duration(g.cells()) * g.eachTakes()
		cells += g.cells()
	}
	return takes, cells
}

// measureSpacingGroups measures all of groups. A result is the median of its
// rounds, in the order of groups and of their contestants. A cell that fails
// costs its contestant this group only: the others' minutes are not lost.
func measureSpacingGroups(ctx context.Context, o options, groups []spacingGroup) ([]spacingResult, error) {
	takes, cells := spacingGroupsTake(groups)
	p := newProgress(o, cells, takes)
	var results []spacingResult
	var failed []error
	for _, g := range groups {
		found, spoilt := make(map[string][]spacingResult), make(map[string]bool)
		for n := range g.rounds {
			for _, name := range g.round(n) {
				p.next(g.eachTakes(), "%s at %s, %s, %s", name, perSecond(g.rate), counted(g.waiters, "waiter"), g.load)
				in := spacingInput{Contestant: name, Rate: g.rate, Waiters: g.waiters, Load: g.load, Warm: g.warm, Window: g.window}
				var out spacingResult
				err := measureCell(ctx, "spacing", in, &out)
				switch {
				case ctx.Err() != nil:
					return nil, err
				case err != nil:
					failed = append(failed, err)
					spoilt[name] = true
					continue
				}
				found[name] = append(found[name], out)
			}
		}
		for _, name := range slices.Concat(g.compared, g.once) {
			if spoilt[name] {
				continue
			}
			r := medianOfRounds(found[name])
			if !g.histograms {
				r.Histogram = nil
			}
			results = append(results, r)
		}
	}
	return results, errors.Join(failed...)
}

// medianOfRounds takes the median of each figure by itself, the sum of what is
// counted, and the largest of what must never be above a bound.
func medianOfRounds(rounds []spacingResult) spacingResult {
	r := rounds[0]
	r.Rounds = len(rounds)
	of := func(figure func(spacingResult) float64) float64 {
		var all []float64
		for _, one := range rounds {
			all = append(all, figure(one))
		}
		return median(all...)
	}
	r.RateReached = of(func(one spacingResult) float64 { return one.RateReached })
	r.ErrorP50 = of(func(one spacingResult) float64 { return one.ErrorP50 })
	r.ErrorP99 = of(func(one spacingResult) float64 { return one.ErrorP99 })
	r.Bunched = of(func(one spacingResult) float64 { return one.Bunched })
	r.Overtaken = of(func(one spacingResult) float64 { return one.Overtaken })
	r.BurstMS = of(func(one spacingResult) float64 { return one.BurstMS })
	r.CPUPer100k = of(func(one spacingResult) float64 { return one.CPUPer100k })
	r.AllocsPerWait = of(func(one spacingResult) float64 { return one.AllocsPerWait })
	r.Histogram = slices.Clone(r.Histogram)
	for _, one := range rounds[1:] {
		r.SlotBurstMS = max(r.SlotBurstMS, one.SlotBurstMS)
		r.Departures += one.Departures
		for i, n := range one.Histogram {
			r.Histogram[i] += n
		}
	}
	return r
}

// spacingOf finds a result.
func spacingOf(results []spacingResult, contestant string, rate float64, waiters int, load string) (spacingResult, bool) {
	at := slices.IndexFunc(results, func(r spacingResult) bool {
		return r.Contestant == contestant && r.Rate == rate && r.Waiters == waiters && r.Load == load
	})
	if at < 0 {
		return spacingResult{}, false
	}
	return results[at], true
}
