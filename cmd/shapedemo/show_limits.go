package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"example.com/leakybucket/shaper"
)

// limitsInWords returns what l, which must be valid, means for requests of cost
// 1: one statement per line of text, without indentation or a full stop.
func limitsInWords(l shaper.Limits) (lines []string) {
	info := newLimitsInfo(l)
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if l.InFlight > 0 {
		say("at most %d are in flight at the same time", l.InFlight)
	}
	switch {
	case info.unlimited && l.InFlight == 0:
		say("every request leaves at once; none waits and none is refused")
		return lines
	case info.unlimited:
		say("up to %d may wait for one of these to end", l.Depth)
		return lines
	case info.atOnce == 1:
		say("one request leaves every %s", formatSeconds(info.interval))
	default:
		say("%d requests leave at once, then one every %s", info.atOnce, formatSeconds(info.interval))
	}
	atLeast := ""
	if l.InFlight > 0 {
		atLeast = "at least " // The shaper does not know when requests will end.
	}
	switch {
	case l.Depth == 0:
		say("none may wait")
	case l.MaxWait > 0 && info.mayWait < l.Depth:
		say("up to %d may wait, none longer than %s: %d of a simultaneous burst", l.Depth, formatSeconds(l.MaxWait.Seconds()), info.mayWait)
	case l.Depth == 1:
		say("one may wait, for %s%s", atLeast, formatSeconds(info.interval))
	default:
		say("up to %d may wait, the last one for %s%s", l.Depth, atLeast, formatSeconds(float64(l.Depth)/info.rate))
	}
	if info.fits() < math.MaxInt {
		say("request %d of a simultaneous burst is refused", info.fits()+1)
	}
	return lines
}

// limitsInfo is what limits come to for requests of cost 1.
type limitsInfo struct {
	limits    shaper.Limits
	unlimited bool    // rate.Inf: only InFlight can make a request wait
	rate      float64 // departures per second
	interval  float64 // seconds between departures
	atOnce    int     // how many may leave at once while the bucket is empty
	mayWait   int     // how many more of a simultaneous burst may wait
}

// newLimitsInfo computes the info of limits, which must be valid.
func newLimitsInfo(l shaper.Limits) limitsInfo {
	// In Limits, rate.Inf is the largest float64.
	info := limitsInfo{limits: l, unlimited: float64(l.Rate) == math.MaxFloat64, atOnce: max(l.Burst, 1)}
	if l.InFlight > 0 {
		info.atOnce = min(info.atOnce, l.InFlight)
	}
	if info.unlimited {
		return info
	}
	info.rate = float64(l.Rate)
	info.interval = 1 / info.rate
	info.mayWait = l.Depth
	if l.MaxWait > 0 {
		// The k-th waiting request waits k intervals, and a wait equal to MaxWait
		// is admitted. The factor keeps a rounding error from turning 50 into 49.
		info.mayWait = int(min(float64(l.Depth), math.Floor(l.MaxWait.Seconds()*info.rate*(1+1e-9))))
	}
	return info
}

// fits returns how many requests of a simultaneous burst are admitted.
func (i limitsInfo) fits() int {
	if i.atOnce > math.MaxInt-i.mayWait {
		return math.MaxInt
	}
	return i.atOnce + i.mayWait
}

// slack returns the lateness that the shaper makes up for.
func (i limitsInfo) slack() time.Duration {
	if i.limits.Slack == 0 {
		return shaper.DefaultSlack
	}
	return i.limits.Slack
}

// A unit is a unit of time in which a duration is printed.
type unit struct {
	from   float64 // seconds from which on it is used: "90 s" is more exact than "1.5 min"
	length float64 // seconds
	name   string
}

var units = []unit{
	{2 * 86400, 86400, "days"},
	{2 * 3600, 3600, "h"},
	{120, 60, "min"},
	{1, 1, "s"},
	{1e-3, 1e-3, "ms"},
	{1e-6, 1e-6, "µs"},
	{0, 1e-9, "ns"},
}

// unitFor returns the unit in which that many seconds are printed.
func unitFor(seconds float64) unit {
	for _, u := range units {
		// A duration that would be rounded up to a whole unit is printed in it.
		if seconds*(1+1e-6) >= u.from {
			return u
		}
	}
	return units[len(units)-1]
}

// formatSeconds formats a duration with three digits, or with as many as stand
// before the decimal point: "20 ms", "2 s", "1.25 h".
func formatSeconds(seconds float64) string {
	if !(seconds > 0) {
		return "0 s"
	}
	u := unitFor(seconds)
	n := seconds / u.length
	decimals := 2
	switch {
	case n >= 100:
		decimals = 0
	case n >= 10:
		decimals = 1
	}
	return trimZeros(strconv.FormatFloat(n, 'f', decimals, 64)) + " " + u.name
}

// formatDecimal formats a number with two decimals, or fewer if they are zero.
func formatDecimal(n float64) string { return trimZeros(strconv.FormatFloat(n, 'f', 2, 64)) }

// trimZeros removes the zeros at the end of a decimal fraction.
func trimZeros(text string) string {
	if !strings.Contains(text, ".") {
		return text
	}
	return strings.TrimRight(strings.TrimRight(text, "0"), ".")
}

// countOf returns a number with its noun, in the plural unless the number is 1.
func countOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
