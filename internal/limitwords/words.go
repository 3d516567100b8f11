// Package limitwords puts the meaning of limits into words, for programs that show limits to
// people.
package limitwords

import (
	"fmt"
	"math"
	"strconv"

	"example.com/leakybucket/shaper"
)

// Of returns the meaning of l, which must be valid, for requests of cost 1: one statement per
// element, without a full stop. A duration is rounded to three digits.
func Of(l shaper.Limits) []string {
	b := BurstOf(l)
	var said []string
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	switch {
	case l.InFlight == 1:
		say("only one is in flight at a time")
	case l.InFlight > 1:
		say("at most %d are in flight at the same time", l.InFlight)
	}
	if pace := pace(l, b); pace != "" {
		say("%s", pace)
	}
	if line := line(l, b); line != "" {
		say("%s", line)
	}
	if b.Admitted() < math.MaxInt {
		say("request %d of a simultaneous burst is refused", b.Admitted()+1)
	}
	return said
}

// pace says when requests leave, or "" if only a cap on requests in flight holds them.
func pace(l shaper.Limits, b Burst) string {
	if isUnlimited(l) {
		if l.InFlight > 0 {
			return ""
		}
		return "every request leaves at once; none waits and none is refused"
	}
	every := Seconds(1 / float64(l.Rate))
	level := max(l.Burst, 1)
	switch {
	case level == 1:
		return "one request leaves every " + every
	case b.AtOnce == level:
		return fmt.Sprintf("%d requests leave at once, then one every %s", level, every)
	}
	first, others := "one request leaves", "it ends"
	if b.AtOnce > 1 {
		first, others = fmt.Sprintf("%d requests leave", b.AtOnce), "these end"
	}
	return fmt.Sprintf("%s at once, %d more as %s, then one every %s", first, level-b.AtOnce, others, every)
}

// line says how many requests wait, and for how long, or "" if none ever has to.
func line(l shaper.Limits, b Burst) string {
	if isUnlimited(l) && l.InFlight == 0 {
		return ""
	}
	if l.Depth == 0 {
		return "none may wait"
	}
	places, none, last, others, them := fmt.Sprintf("%d may wait", l.Depth), "none", ", the last", "others", "them"
	if l.Depth == 1 {
		places, none, last, others, them = "one may wait", "not", ",", "another", "it"
	}
	switch {
	case b.Waiting < l.Depth:
		bound := none + " longer than"
		if l.InFlight > 0 {
			// For others to end a request may wait longer.
			bound = "if the rate lets " + them + " leave within"
		}
		return fmt.Sprintf("%s, %s %s: %s of a simultaneous burst", places, bound, Seconds(longestWait(l).Seconds()), number(b.Waiting))
	case b.LastWait == 0:
		return places + " for " + others + " to end"
	case l.InFlight > 0:
		// The shaper does not know when requests will end.
		return places + last + " for at least " + Seconds(b.LastWait.Seconds())
	default:
		return places + last + " for " + Seconds(b.LastWait.Seconds())
	}
}

// number returns a number, and "none" for 0.
func number(n int) string {
	if n == 0 {
		return "none"
	}
	return strconv.Itoa(n)
}
