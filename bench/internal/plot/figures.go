package plot

import (
	"fmt"
	"math"
	"strconv"
)

// none stands where a figure is missing.
const none = "–"

// Time writes a time given in nanoseconds, with three digits at most.
func Time(ns float64) string {
	if !isFinite(ns) {
		return none
	}
	us := ns / 1000
	switch v := math.Abs(us); {
	case v < 0.9995:
		return threeDigits(us*1000) + " ns"
	case v < 999.5:
		return threeDigits(us) + " µs"
	case v < 999_500:
		return threeDigits(us/1000) + " ms"
	}
	return threeDigits(us/1_000_000) + " s"
}

// threeDigits writes 0.123, 1.23, 12.3 and 1234 for 1234, without zeros at the
// end.
func threeDigits(v float64) string {
	decimals := 3 - int(math.Floor(math.Log10(math.Abs(v)+1e-12))) - 1
	scale := math.Pow(10, float64(min(max(decimals, 0), 3)))
	return strconv.FormatFloat(math.Round(v*scale)/scale+0, 'f', -1, 64)
}

// number writes a percentage without its sign: one decimal below 10, and
// none above.
func number(v float64) string {
	if !isFinite(v) {
		return none
	}
	decimals := 0
	if math.Abs(v) < 9.95 && v != 0 {
		decimals = 1
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// Percent writes a percentage.
func Percent(v float64) string {
	if !isFinite(v) {
		return none
	}
	return number(v) + " %"
}

// Rate writes a number with commas: 10,000.
func Rate(v float64) string {
	text := strconv.FormatFloat(v, 'f', -1, 64)
	if v < 1000 || v != math.Trunc(v) || v >= 1e15 {
		return text
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// ShortRate writes a rate for a narrow column: 10k/s.
func ShortRate(v float64) string {
	if v >= 1000 && math.Mod(v, 1000) == 0 {
		return fmt.Sprintf("%.0fk/s", v/1000)
	}
	return strconv.FormatFloat(v, 'f', -1, 64) + "/s"
}
