package keys

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/plot"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
)

const aboutRivals = "x-time: a map of its limiters behind a mutex, from which nothing is deleted. " +
	"throttled: its memstore with a bound on keys, as its README has it, which forgets the key that came longest ago; unbounded: without. " +
	"httprate keeps a hash of each key, and not the key. map: a look-up without a lock."

// memoryTable has one row for each limiter. Buckets that are drained are not
// there to be measured.
func memoryTable(results []callsResult) report.Table {
	t := report.Table{
		Title: "Memory: bytes per key",
		Note: fmt.Sprintf("Of the live heap after a collection, with the key, a string of 16 bytes; medians of %d. "+
			"Each key has come once, its bucket is not drained, and nobody waits. "+
			"What there is once, however many keys come, stands by itself, with the first key. ", len(results[0].Found)) + aboutRivals,
		Columns: []string{"limiter", "once, KiB"},
	}
	counts := countsOf(results)
	if len(counts) == 0 {
		return t
	}
	for _, keys := range counts {
		t.Columns = append(t.Columns, report.Counted(keys, "key"))
	}
	for _, c := range rivals.AllKeyed {
		if c.Name == rivals.OursDrained {
			continue
		}
		row := []string{c.Name, report.Fixed(callsOf(results, c.Name, counts[0]).FirstKiB, 1)}
		for _, keys := range counts {
			row = append(row, report.Fixed(callsOf(results, c.Name, keys).Bytes, 0))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// costTable has one row for each call, by the number of keys.
func costTable(results []callsResult) report.Table {
	t := report.Table{
		Title: "A call with a key that may leave at once",
		Note: fmt.Sprintf("Nanoseconds of one goroutine, medians of %d interleaved rounds, each in a process of its own; allocations are the most of any. "+
			"All keys have come before, and come again in an order that has nothing to do with the first. Buckets are not drained, "+
			"but those of shaper-drained always are: the Limits of the key are asked for anew once such a bucket has been deleted. "+
			"Without a key: one Shaper, one of x/time's limiters. httprate writes its header fields.", len(results[0].Found)),
		Columns: []string{"limiter", "call", "without a key"},
	}
	counts := countsOf(results)
	for _, keys := range counts {
		t.Columns = append(t.Columns, report.Counted(keys, "key"))
	}
	t.Columns = append(t.Columns, "allocations")
	for _, c := range rivals.AllKeyed {
		for _, call := range c.Calls {
			row, allocs := []string{c.Name, call}, 0.0
			for _, keys := range append([]int{0}, counts...) {
				timing := timingOf(results, c.Name, call, keys, 1)
				row = append(row, report.Fixed(timing.Ns, 0))
				if measure.Known(timing.Allocs) {
					allocs = max(allocs, timing.Allocs)
				}
			}
			t.Rows = append(t.Rows, append(row, report.Fixed(allocs, 2)))
		}
	}
	return t
}

// contentionTable has one row for each call: its time by the number of goroutines, and
// how often the most of them make it by GOMAXPROCS.
func contentionTable(results []callsResult) report.Table {
	most := goroutines[len(goroutines)-1]
	t := report.Table{
		Title: "Contention: " + report.Counted(manyKeys, "key"),
		Note: fmt.Sprintf("Wall time over all goroutines, in nanoseconds per call that may leave at once; medians of %d. "+
			"Each goroutine goes through the keys from another one on. Millions of calls per second are those of %d goroutines, by GOMAXPROCS.", len(results[0].Found), most),
		Columns: []string{"limiter", "call"},
	}
	for _, n := range goroutines {
		t.Columns = append(t.Columns, fmt.Sprintf("ns, %d at once", n))
	}
	procs := append(fewerProcs(), runtime.GOMAXPROCS(0))
	for _, p := range procs {
		t.Columns = append(t.Columns, fmt.Sprintf("millions/s, GOMAXPROCS %d", p))
	}
	for _, c := range rivals.AllKeyed {
		for _, call := range c.Calls {
			row := []string{c.Name, call}
			for _, n := range goroutines {
				row = append(row, report.Fixed(timingOf(results, c.Name, call, manyKeys, n).Ns, 0))
			}
			for _, p := range procs {
				row = append(row, report.Figure(1e3/timingWith(results, p, c.Name, call, manyKeys, most).Ns))
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// memoryGoal looks at every number of keys.
func memoryGoal(results []callsResult) report.Goal {
	var bytes []float64
	for _, keys := range countsOf(results) {
		bytes = append(bytes, callsOf(results, rivals.Ours, keys).Bytes)
	}
	return report.Bounded("memory of a bucket without waiters, with a key of 16 bytes", 185, measure.Quantile(bytes, 1), "B")
}

// costGoals hold calls with one of the fewest keys against those without.
func costGoals(results []callsResult) (goals []report.Goal) {
	keys := -1 // None was measured.
	if counts := countsOf(results); len(counts) > 0 {
		keys = counts[0]
	}
	for _, call := range []string{"Wait", "Allow"} {
		with, without := timingOf(results, rivals.Ours, call, keys, 1), timingOf(results, rivals.Ours, call, 0, 1)
		goals = append(goals, report.AtMost("conforming "+call+" with a key, against one without", 2, with.Ns, without.Ns, "ns"))
	}
	return goals
}

// manyGoals hold calls with many keys against those of rivals: of one goroutine, where
// locks cost little, and of the most.
func manyGoals(results []callsResult) (goals []report.Goal) {
	most := goroutines[len(goroutines)-1]
	on := " on " + report.Counted(manyKeys, "key") + ", goroutines: "
	for _, call := range []string{"Wait", "Allow"} {
		of := func(limiter, call string, n int) float64 { return timingOf(results, limiter, call, manyKeys, n).Ns }
		goals = append(goals,
			report.AtMost(call+on+"1, against a map of x-time's", 1, of(rivals.Ours, call, 1), of("x-time", call, 1), "ns"),
			report.AtMost(call+on+strconv.Itoa(most)+", against sethvargo", 1.2, of(rivals.Ours, call, most), of("sethvargo", "Take", most), "ns"))
	}
	return goals
}

// picture draws what a key costs: the first call of each limiter without a key,
// with few keys and with the most, and the memory of a key.
func picture(results []callsResult, machine string) report.Picture {
	p := plot.Bars{
		Name:  "keys",
		Title: "What does a key cost?",
		What: "A call that may leave at once, on one goroutine, and the memory of a key whose bucket is not drained. " +
			"Shorter is better.",
		Caption: "All keys have come before, and come again in an order that has nothing to do with the first, so that with many of them most calls miss the caches. " +
			"x-time: a map of its limiters behind a mutex. map: a look-up without a lock, and no limiter. " + machine + ".",
	}
	counts := countsOf(results)
	if len(counts) > 0 {
		counts = slices.Compact([]int{counts[0], counts[len(counts)-1]})
	}
	columns := append([]int{0}, counts...)
	for _, keys := range columns {
		title := "call without a key"
		if keys > 0 {
			title = "call, " + report.Counted(keys, "key")
		}
		p.Panels = append(p.Panels, plot.BarPanel{Title: title, Unit: "ns", Label: plot.Time})
	}
	p.Panels = append(p.Panels, plot.BarPanel{Title: "memory of a key", Unit: "B", Label: func(bytes float64) string { return report.Fixed(bytes, 0) + " B" }})
	for _, c := range rivals.AllKeyed {
		switch c.Name {
		case rivals.OursDrained, "throttled-unbounded":
			continue // They tell nothing that the others do not, at one look.
		case "httprate":
			continue // It writes header fields as well: all other bars would be stubs.
		}
		row := plot.BarRow{Name: c.Name, Note: c.Calls[0]}
		for _, keys := range columns {
			row.Values = append(row.Values, timingOf(results, c.Name, c.Calls[0], keys, 1).Ns)
		}
		memory := measure.Unknown
		if len(counts) > 0 {
			memory = callsOf(results, c.Name, counts[len(counts)-1]).Bytes
		}
		row.Values = append(row.Values, memory)
		p.Rows = append(p.Rows, row)
	}
	return p.Draw(rivals.Ours)
}
