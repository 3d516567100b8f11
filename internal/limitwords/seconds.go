package limitwords

import (
	"math"
	"strconv"
	"strings"
)

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
