package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// table sets the two trials side by side.
func table(t *terminal, m meaning, straight, shaped trial) string {
	var b strings.Builder
	row := func(name, one, other string) {
		fmt.Fprintf(&b, "  %-30s %10s %10s\n", name, one, other)
	}
	numbers := func(name string, one, other int) {
		row(name, strconv.Itoa(one), strconv.Itoa(other))
	}
	row("", "straight", "shaped")
	numbers("sent", straight.sent, shaped.sent)
	if shaped.impatient > 0 {
		row("of these impatient", "-", strconv.Itoa(shaped.impatient))
	}
	numbers("served", straight.served, shaped.served)
	numbers("refused with 429", straight.refused, shaped.refused)
	if shaped.impatient > 0 {
		row("left while waiting", "-", strconv.Itoa(shaped.vanished))
		row("slots spent on them", "-", strconv.Itoa(spent(m, shaped)))
	}
	numbers("failed (5xx)", straight.failed, shaped.failed)
	if straight.other+shaped.other > 0 {
		numbers("no answer, or another", straight.other, shaped.other)
	}
	smallest, median := gapTexts(straight.reached)
	shapedSmallest, shapedMedian := gapTexts(shaped.reached)
	row("smallest gap at the upstream", smallest, shapedSmallest)
	row("median gap at the upstream", median, shapedMedian)
	row("longest wait", "-", humane(shaped.longest.Seconds()))

	heading, rest, _ := strings.Cut(b.String(), "\n")
	return t.in(bold, heading) + "\n" + rest
}

// gapTexts are the smallest and the median gap, for people.
func gapTexts(at []time.Time) (smallest, median string) {
	s, m, ok := gaps(at)
	if !ok {
		return "-", "-"
	}
	return humane(s.Seconds()), humane(m.Seconds())
}

// counted is a number with its noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
