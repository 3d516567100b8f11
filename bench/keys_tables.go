package main

import (
	"fmt"
	"strconv"
)

const keysRivals = "x-time: a map of its limiters behind a mutex, from which nothing is deleted. " +
	"throttled: its memstore with a bound on keys, as its README has it, which forgets the key that came longest ago; unbounded: without. " +
	"httprate keeps a hash of each key, and not the key. map: a look-up without a lock."

// keysMemoryTable has one line per contestant. Buckets that are drained are not
// there to be measured.
func keysMemoryTable(results []keysResult, times int) table {
	t := table{
		Title: "Memory: bytes per key",
		Note: fmt.Sprintf("Of the live heap after a collection, with the key, a string of 16 bytes; medians of %d. "+
			"Each key has come once, its bucket is not drained, and nobody waits. "+
			"What there is once, however many keys come, stands by itself, with the first key. ", times) + keysRivals,
		Columns: []string{"contestant", "once, KiB"},
	}
	counts := keysCountsOf(results)
	if len(counts) == 0 {
		return t
	}
	for _, keys := range counts {
		t.Columns = append(t.Columns, counted(keys, "key"))
	}
	for _, c := range keyedContestants {
		if c.name == oursDrained {
			continue
		}
		row := []string{c.name, keysFigure(results, c.name, c.calls[0], counts[0], func(r keysResult) string { return fmt.Sprintf("%.1f", r.FirstKiB) })}
		for _, keys := range counts {
			row = append(row, keysFigure(results, c.name, c.calls[0], keys, func(r keysResult) string { return fmt.Sprintf("%.0f", r.Bytes) }))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// keysCostTable has one line per call, by the number of keys.
func keysCostTable(results []keysResult, times int) table {
	t := table{
		Title: "A call with a key that may leave at once",
		Note: fmt.Sprintf("Nanoseconds of one goroutine, medians of %d interleaved rounds, each in a process of its own; allocations are the most of any. "+
			"All keys have come before, and come again in an order that has nothing to do with the first. Buckets are not drained, "+
			"but those of shaper-drained always: the Limits of the key are asked for anew once such a bucket has been deleted. "+
			"Without a key: one Shaper, one of x/time's limiters. httprate writes its header fields.", times),
		Columns: []string{"contestant", "call", "without a key"},
	}
	counts := keysCountsOf(results)
	for _, keys := range counts {
		t.Columns = append(t.Columns, counted(keys, "key"))
	}
	t.Columns = append(t.Columns, "allocations")
	for _, c := range keyedContestants {
		for _, call := range c.calls {
			row, allocs := []string{c.name, call}, 0.0
			for _, keys := range append([]int{0}, counts...) {
				row = append(row, keysFigure(results, c.name, call, keys, func(r keysResult) string {
					allocs = max(allocs, r.ByCallers[0].Allocs)
					return fmt.Sprintf("%.0f", r.ns())
				}))
			}
			t.Rows = append(t.Rows, append(row, fmt.Sprintf("%.2f", allocs)))
		}
	}
	return t
}

// keysContentionTable has one line per call, by the number of goroutines.
func keysContentionTable(results []keysResult, times int) table {
	t := table{
		Title: "Contention: one key, and many",
		Note: fmt.Sprintf("Wall time over all goroutines, in nanoseconds per call that may leave at once; medians of %d. "+
			"Many keys are %s, which each goroutine goes through from another one on.", times, grouped(manyKeys)),
		Columns: []string{"contestant", "call"},
	}
	for _, keys := range []string{"one key", "many keys"} {
		for _, g := range keysGoroutines {
			t.Columns = append(t.Columns, keys+", "+strconv.Itoa(g)+" at once")
		}
	}
	for _, c := range keyedContestants {
		for _, call := range c.calls {
			row := []string{c.name, call}
			for _, keys := range []int{1, manyKeys} {
				for g := range keysGoroutines {
					row = append(row, keysFigure(results, c.name, call, keys, func(r keysResult) string { return fmt.Sprintf("%.0f", r.ByCallers[g].NsPerCall) }))
				}
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// keysFigure is a figure of one result, "-" if there is none.
func keysFigure(results []keysResult, contestant, call string, keys int, figure func(keysResult) string) string {
	r, measured := keysOf(results, contestant, call, keys)
	if !measured {
		return "-"
	}
	return figure(r)
}

// keysMemoryGoal looks at every number of keys.
func keysMemoryGoal(results []keysResult) goal {
	g := goal{What: "bytes per bucket without waiters, with a key of 16 bytes", Want: "at most 200", Got: "not measured"}
	most := 0.0
	for _, keys := range keysCountsOf(results) {
		if r, measured := keysOf(results, oursKeyed, "Wait", keys); measured && r.Bytes > most {
			most = r.Bytes
			g.Got, g.Reached = fmt.Sprintf("%.0f, with %s", most, counted(keys, "key")), most <= 200
		}
	}
	return g
}

// keysCostGoals hold calls with one of the fewest keys against those without.
func keysCostGoals(results []keysResult) []goal {
	var goals []goal
	for _, call := range []string{"Wait", "Allow"} {
		g := goal{What: "conforming " + call + " with a key", Want: "at most 2 of one without", Got: "not measured"}
		without, measured := keysOf(results, oursKeyed, call, 0)
		counts := keysCountsOf(results)
		if measured && len(counts) > 0 {
			with, _ := keysOf(results, oursKeyed, call, counts[0])
			g.Got = fmt.Sprintf("%.2f (%.0f ns against %.0f, with %s)", with.ns()/without.ns(), with.ns(), without.ns(), counted(counts[0], "key"))
			g.Reached = with.ns() <= 2*without.ns()
		}
		goals = append(goals, g)
	}
	return goals
}
