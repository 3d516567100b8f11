// Package limitwords puts the meaning of limits into words, for programs that show limits to
// people.
package limitwords

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"

	"example.com/leakybucket/internal/exact"
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

// horizon is the longest wait that a shaper admits, whatever the limits.
const horizon = 365 * 24 * time.Hour

// A Burst is the outcome for many requests of cost 1 that come at the same instant, if nothing has
// come before them and none of them ends while the others come.
type Burst struct {
	AtOnce  int // leave at once; math.MaxInt if there is no bound
	Waiting int // wait in line

	// LastWait is how long the last one in line waits, to the nanosecond, or with an
	// in-flight cap how long it waits at least: the shaper does not know when requests
	// will end.
	LastWait time.Duration
}

// BurstOf returns the outcome of a burst at limits l, which must be valid.
func BurstOf(l shaper.Limits) Burst {
	capacity := math.MaxInt
	if l.InFlight > 0 {
		capacity = l.InFlight
	}
	if isUnlimited(l) {
		b := Burst{AtOnce: capacity}
		if l.InFlight > 0 {
			b.Waiting = l.Depth
		}
		return b
	}
	level := max(l.Burst, 1) // up to which requests leave at once
	b := Burst{AtOnce: min(level, capacity)}
	// The rate has no need to hold those that only an in-flight cap keeps from
	// leaving at once. The k-th after them waits k intervals.
	held := level - b.AtOnce
	interval := exact.IntervalOf(l.Rate)
	b.Waiting = l.Depth
	if bound := sum(held, intervalsIn(longestWait(l), interval)); bound < b.Waiting {
		b.Waiting = bound
	}
	if k := b.Waiting - held; k > 0 {
		b.LastWait = time.Duration(interval.Times(int64(k)).Ceil())
	}
	return b
}

// Admitted returns how many of the burst are not refused, math.MaxInt if there is no
// bound.
func (b Burst) Admitted() int { return sum(b.AtOnce, b.Waiting) }

// sum returns a + b, or math.MaxInt if that does not fit. Neither may be negative.
func sum(a, b int) int {
	if a > math.MaxInt-b {
		return math.MaxInt
	}
	return a + b
}

// isUnlimited reports whether the rate is rate.Inf, which is the largest float64.
func isUnlimited(l shaper.Limits) bool { return float64(l.Rate) == math.MaxFloat64 }

// longestWait returns the longest predicted wait with which a request is admitted.
func longestWait(l shaper.Limits) time.Duration {
	if l.MaxWait == 0 {
		return horizon
	}
	return min(l.MaxWait, horizon)
}

// intervalsIn returns how many whole intervals fit into a wait, at most math.MaxInt.
func intervalsIn(wait time.Duration, interval exact.Interval) int {
	n := new(big.Rat).Quo(new(big.Rat).SetInt64(int64(wait)), interval.Rat())
	whole := new(big.Int).Quo(n.Num(), n.Denom())
	if !whole.IsInt64() || whole.Int64() > math.MaxInt {
		return math.MaxInt
	}
	return int(whole.Int64())
}
