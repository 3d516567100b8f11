package main

import (
	"fmt"
	"strings"
)

// parts are all that is measured, in the order in which it is.
var parts = []part{
	spacingPart,
	busyPart,
	{
		name: "admission", what: "what a call costs that may leave at once, and one that is refused",
		takes: admissionTakes, measure: measureAdmission,
	},
	{
		name: "goodput", what: "the share of the limit that goes to callers who are still there",
		takes: goodputTakes, measure: measureGoodput,
	},
	{
		name: "hole", what: "how soon the rest leaves when 900 of 1,000 waiters give up",
		takes: holeTakes, measure: measureHole,
	},
	{
		name: "scale", what: "memory per waiter, cancel and Close in a long line, departures per second at most",
		takes: scaleTakes, needs: memoryNeeded, measure: measureScale,
	},
	{
		name: "keys", what: "a bucket for each key: memory, the cost of a call, a million keys, lines of many at once",
		takes: keysTakes, measure: measureKeys,
	},
}

// listed is what -list prints.
func listed(all []part) string {
	var b strings.Builder
	for _, p := range all {
		fmt.Fprintf(&b, "%-10s %s\n", p.name, p.what)
	}
	return b.String()
}

// names of parts, for people.
func names(all []part) string {
	var names []string
	for _, p := range all {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}
