// Package fair measures what fair queueing is for: how long a key that calls now and then waits beside the burst
// of another, who gets which share, and what a key in line costs.
package fair

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// Experiment is "fair".
var Experiment = run.Experiment{
	Name: "fair",
	What: "how long others wait beside a burst of one key, shares, and the cost of a key in line",
	Note: "Fair: in virtual time at 50/s, a burst of 1,000 beside ten keys, of which one calls every 0.4 s on average, until the burst is through; twenty times. " +
		"unused is the part of the rate that nobody got meanwhile. one-line, fair: a Shaper. group, x-time: a bucket for each of the eleven keys at 50/11 per second; " +
		"there a light key leaves at once, and the burst takes eleven times as long. round-robin: a line for each key, of which each gives one request in turn. " +
		"FairShares: two keys that always have requests in line, one of weight 3 with requests of cost 1, one of weight 1 with requests of cost 8; " +
		"share-err is by how many percentage points the share of the first is off 75. " +
		"FairCost: 100,000 requests in line, of so many keys, beside a plain Shaper (keys=0); admission and departure include the goroutine that waits, " +
		"and its wake-up. All depart at once. Refused is a newcomer that would leave last, as the line is full. Memory is what the live heap has more than beside a plain Shaper, for each key.",
	Needs: "go",
	GetIt: "https://go.dev/dl",
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		lines, err1 := inVirtualTime(ctx)
		costs, err2 := run.InTurns(ctx, o, costChild.Take, costCases(o))
		run.Beyond(costs, func(bare, of costInput) bool { return bare.Keys == 0 && of.Keys > 0 }, func(bare costFound, from *costFound) {
			from.Memory = (from.Heap - bare.Heap) / from.keys()
		})
		return report.Report{Lines: slices.Concat(lines, run.Lines(costs))}, errors.Join(err1, err2)
	},
}

// resultsIn is the name of the variable that names the file for results.
const resultsIn = "BENCH_FAIR_RESULTS"

// inVirtualTime runs a test that measures, because package synctest works in tests alone.
func inVirtualTime(ctx context.Context) (lines []report.Line, err error) {
	dir, err := os.MkdirTemp("", "bench-fair-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "results.json")
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-run", "^TestABurstBesideLightKeys$", "example.com/leakybucket/bench/fair")
	cmd.Env = append(os.Environ(), resultsIn+"="+file)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return lines, json.Unmarshal(text, &lines)
}

// linesOf is what is reported of one way.
func linesOf(by way, w Waits, shareErr float64) []report.Line {
	return []report.Line{
		{Name: "Fair/limiter=" + by.name, Figures: []report.Figure{
			{Value: float64(w.Median.Nanoseconds()), Unit: "wait-p50-ns"}, {Value: float64(w.P99.Nanoseconds()), Unit: "wait-p99-ns"},
			{Value: float64(w.Longest.Nanoseconds()), Unit: "wait-longest-ns"}, {Value: float64(w.Burst.Nanoseconds()), Unit: "burst-ns"},
			{Value: w.Unused, Unit: "unused-%"},
		}},
		{Name: "FairShares/limiter=" + by.name, Figures: []report.Figure{{Value: shareErr, Unit: "share-err-%"}}},
	}
}
