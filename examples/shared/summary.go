package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// A result is what the processes did together.
type result struct {
	config
	log        []departure
	killed     time.Duration // when one was killed
	roundTrips int64
	lateness   time.Duration // for how long after its instant a slot may have been used
}

// summary returns in a few lines what the departures were.
func (r result) summary() string {
	slices.SortFunc(r.log, func(a, b departure) int { return cmp.Compare(a.at, b.at) })
	interval := float64(time.Second) / r.rate
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("departures", "%d in %v: %.1f per second, of %v", len(r.log), r.length, float64(len(r.log))/r.length.Seconds(), r.rate)
	line("shares", "before the kill %s", r.shares(0, r.killed))
	line("", "after the kill  %s", r.shares(r.killed, r.length))
	line("longest gap", "before the kill %v; from then on %v; slots are %v apart",
		rounded(r.longestGap(0, r.killed)), rounded(r.longestGap(r.killed, r.length)), rounded(time.Duration(interval)))
	line("excess", "at most %.2f above 1 + rate × time, in any window; the guarantee is %.2f", r.excess(), float64(r.lateness)/interval)
	line("round trips", "%.2f per departure", float64(r.roundTrips)/float64(max(1, len(r.log))))
	return b.String()
}

func rounded(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// shares returns the text of the part that each process had of the departures from one
// instant to another.
func (r result) shares(from, to time.Duration) string {
	counts, total := make([]int, r.processes), 0
	for _, d := range r.log {
		if from <= d.at && d.at < to {
			counts[d.process]++
			total++
		}
	}
	texts := make([]string, r.processes)
	for i, n := range counts {
		texts[i] = fmt.Sprintf("%c %.0f %%", letters[i], 100*float64(n)/float64(max(1, total)))
	}
	return strings.Join(texts, ", ")
}

// longestGap returns the longest time without a departure that ends from one instant to
// another.
func (r result) longestGap(from, to time.Duration) (longest time.Duration) {
	last := time.Duration(0)
	for _, d := range r.log {
		if d.at >= to {
			break
		}
		if d.at >= from {
			longest = max(longest, d.at-last)
		}
		last = d.at
	}
	return max(longest, to-last)
}

// excess returns by how many departures a window, from one to another, exceeds at most the
// rate times its length, and one. With i as the number of departures before the one at t(i),
// that is the greatest j − i − (t(j) − t(i)) · rate of all i up to j.
func (r result) excess() float64 {
	least, most := math.Inf(1), 0.0
	for i, d := range r.log {
		above := float64(i) - d.at.Seconds()*r.rate
		least = min(least, above)
		most = max(most, above-least)
	}
	return most
}
