package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"example.com/leakybucket/bench/internal/measure"
)

// Figure writes a number with three significant digits. One that is not known is
// a dash.
func Figure(x float64) string {
	switch size := math.Abs(x); {
	case !measure.Known(x):
		return "-"
	case size == 0:
		return "0"
	case size < 0.001:
		return "< 0.001"
	case size >= 999.5:
		return Grouped(int(math.Round(x)))
	default:
		before := int(math.Floor(math.Log10(size * 1.0005))) // the place of the first digit, once rounded
		return strconv.FormatFloat(x, 'f', max(0, min(3, 2-before)), 64)
	}
}

// Fixed writes a number with so many decimals. One that is not known is a dash.
func Fixed(x float64, decimals int) string {
	if !measure.Known(x) {
		return "-"
	}
	return strconv.FormatFloat(x, 'f', decimals, 64)
}

// Grouped writes a whole number with commas between its thousands.
func Grouped(n int) string {
	digits := strconv.Itoa(n)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	var groups []string
	for len(digits) > 3 {
		groups = append([]string{digits[len(digits)-3:]}, groups...)
		digits = digits[:len(digits)-3]
	}
	return sign + strings.Join(append([]string{digits}, groups...), ",")
}

// PerSecond writes a rate.
func PerSecond(rate float64) string { return Grouped(int(rate)) + "/s" }

// Counted writes a number with its noun.
func Counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Grouped(n) + " " + noun + "s"
}

// Roughly writes a duration that is not known to the second.
func Roughly(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return "some seconds"
	case d < 100*time.Second:
		return fmt.Sprintf("%d s", int(d.Round(10*time.Second).Seconds()))
	default:
		return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
	}
}
