// Package limitwords puts the meaning of limits into words, for programs that show limits to
// people.
package limitwords

import (
	"fmt"
	"math"
	"strconv"
	"strings"

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

// A Unit is a unit of time in which a duration is printed.
type Unit struct {
	from   float64 // seconds from which on it is used: "90 s" is more exact than "1.5 min"
	Length float64 // seconds
	Name   string
}

var units = []Unit{
	{2 * 86400, 86400, "days"},
	{2 * 3600, 3600, "h"},
	{120, 60, "min"},
	{1, 1, "s"},
	{1e-3, 1e-3, "ms"},
	{1e-6, 1e-6, "µs"},
	{0, 1e-9, "ns"},
}

// UnitFor returns the unit in which that many seconds are printed.
func UnitFor(seconds float64) Unit {
	for _, u := range units {
		// A duration that would be rounded up to a whole unit is printed in it.
		if seconds*(1+1e-6) >= u.from {
			return u
		}
	}
	return units[len(units)-1]
}

// Seconds formats a duration with three digits, or with as many as stand before the
// decimal point: "20 ms", "2 s", "1.25 h".
func Seconds(seconds float64) string {
	if !(seconds > 0) {
		return "0 s"
	}
	u := UnitFor(seconds)
	n := seconds / u.Length
	if u.Length < 1 && math.Round(n) == 1000 {
		return "1 " + UnitFor(1000*u.Length).Name // 999.9 ms
	}
	decimals := 2
	switch {
	case n >= 100:
		decimals = 0
	case n >= 10:
		decimals = 1
	}
	return trimZeros(strconv.FormatFloat(n, 'f', decimals, 64)) + " " + u.Name
}

// trimZeros removes the zeros at the end of a decimal fraction.
func trimZeros(text string) string {
	if !strings.Contains(text, ".") {
		return text
	}
	return strings.TrimRight(strings.TrimRight(text, "0"), ".")
}
