package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"example.com/leakybucket/shaper"
)

// A meaning is what limits come to for requests of cost 1.
type meaning struct {
	limits  shaper.Limits
	endless bool    // rate.Inf: everything leaves at once
	rate    float64 // departures per second
	every   float64 // seconds between departures
	atOnce  int     // how many a bucket at rest lets leave at once
	waiting int     // how many of a simultaneous burst may wait after them
}

// meaningOf reads limits, which must be valid.
func meaningOf(l shaper.Limits) meaning {
	// The largest float is how rate.Inf is written down.
	m := meaning{limits: l, endless: float64(l.Rate) == math.MaxFloat64, atOnce: max(l.Burst, 1)}
	if l.InFlight > 0 {
		m.atOnce = min(m.atOnce, l.InFlight)
	}
	if m.endless {
		return m
	}
	m.rate = float64(l.Rate)
	m.every = 1 / m.rate
	m.waiting = l.Depth
	if l.MaxWait > 0 {
		// The k-th in line waits k intervals, and a wait equal to MaxWait is
		// admitted: a rounding error must not turn 50 into 49.
		m.waiting = int(min(float64(l.Depth), math.Floor(l.MaxWait.Seconds()*m.rate*(1+1e-9))))
	}
	return m
}

// fits is how many of a simultaneous burst are admitted.
func (m meaning) fits() int {
	if m.atOnce > math.MaxInt-m.waiting {
		return math.MaxInt
	}
	return m.atOnce + m.waiting
}

// slack is the lateness that the shaper makes up.
func (m meaning) slack() time.Duration {
	if m.limits.Slack == 0 {
		return shaper.DefaultSlack
	}
	return m.limits.Slack
}

// String says what the limits mean, in words, for a burst of HTTP requests.
func (m meaning) String() string {
	text := m.pace()
	if !m.endless && m.fits() < math.MaxInt {
		text += fmt.Sprintf("; request %d of a simultaneous burst is refused with 429", m.fits()+1)
	}
	return text
}

// pace says what the limits mean for those who are not refused.
func (m meaning) pace() string {
	var b strings.Builder
	switch n := m.limits.InFlight; {
	case m.endless && n == 0:
		return "everything leaves at once; nobody waits and nobody is refused"
	case m.endless:
		return fmt.Sprintf("%d at most are upstream at once; %d may wait", n, m.limits.Depth)
	case n > 0:
		fmt.Fprintf(&b, "%d at most are upstream at once; ", n)
	}
	if m.atOnce == 1 {
		fmt.Fprintf(&b, "one leaves every %s, ", humane(m.every))
	} else {
		fmt.Fprintf(&b, "%d leave at once, then one every %s; ", m.atOnce, humane(m.every))
	}
	switch depth, longest := m.limits.Depth, m.limits.MaxWait; {
	case depth == 0:
		b.WriteString("none may wait")
	case longest > 0 && m.waiting < depth:
		fmt.Fprintf(&b, "%d may wait, but none longer than %s, so %d of a simultaneous burst", depth, humane(longest.Seconds()), m.waiting)
	case depth == 1:
		fmt.Fprintf(&b, "1 may wait, for %s", humane(m.every))
	default:
		fmt.Fprintf(&b, "%d may wait, the last for %s", depth, humane(float64(depth)/m.rate))
	}
	return b.String()
}

// A unit is one in which people tell spans of time.
type unit struct {
	from   float64 // seconds from which on it is used: "90 s" says more than "1.5 min"
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

// unitFor is the unit in which a span of that many seconds is told.
func unitFor(seconds float64) unit {
	for _, u := range units {
		// What would be rounded up to a full unit is told in that unit.
		if seconds*(1+1e-6) >= u.from {
			return u
		}
	}
	return units[len(units)-1]
}

// humane writes a span of time with three digits, or as many as stand before
// the decimal point: "20 ms", "2 s", "1.25 h".
func humane(seconds float64) string {
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
	return shorten(strconv.FormatFloat(n, 'f', decimals, 64)) + " " + u.name
}

// decimal writes a number with two decimals, or fewer if they are zero.
func decimal(n float64) string { return shorten(strconv.FormatFloat(n, 'f', 2, 64)) }

// shorten takes the zeros off the end of a decimal fraction.
func shorten(text string) string {
	if !strings.Contains(text, ".") {
		return text
	}
	return strings.TrimRight(strings.TrimRight(text, "0"), ".")
}
