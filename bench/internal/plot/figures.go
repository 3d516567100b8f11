package plot

import (
	"fmt"
	"math"
	"strconv"

	"example.com/leakybucket/bench/internal/report"
)

// none stands where a figure is missing.
const none = "–"

// Time writes a time given in nanoseconds, with three digits.
func Time(ns float64) string {
	if !isFinite(ns) {
		return none
	}
	switch v := math.Abs(ns); {
	case v < 999.5:
		return report.Figure(ns) + " ns"
	case v < 999_500:
		return report.Figure(ns/1e3) + " µs"
	case v < 999_500_000:
		return report.Figure(ns/1e6) + " ms"
	}
	return report.Figure(ns/1e9) + " s"
}

// number writes a percentage without its sign: one decimal below 10, and
// none above. A half is rounded up, as it is in the documents.
func number(v float64) string {
	if !isFinite(v) {
		return none
	}
	if math.Abs(v) < 9.95 && v != 0 {
		return strconv.FormatFloat(math.Round(v*10)/10, 'f', 1, 64)
	}
	return strconv.FormatFloat(math.Round(v), 'f', 0, 64)
}

// Percent writes a percentage.
func Percent(v float64) string {
	if !isFinite(v) {
		return none
	}
	return number(v) + " %"
}

// ShortRate writes a rate for a narrow column: 10k/s.
func ShortRate(v float64) string {
	if v >= 1000 && math.Mod(v, 1000) == 0 {
		return fmt.Sprintf("%.0fk/s", v/1000)
	}
	return strconv.FormatFloat(v, 'f', -1, 64) + "/s"
}
