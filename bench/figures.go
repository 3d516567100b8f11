package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// figure is a number with three significant digits, for people.
func figure(x float64) string {
	switch size := math.Abs(x); {
	case size == 0:
		return "0"
	case size < 0.001:
		return "< 0.001"
	case size >= 999.5:
		return grouped(int(math.Round(x)))
	default:
		before := int(math.Floor(math.Log10(size))) // of the first digit
		return strconv.FormatFloat(x, 'f', max(0, min(3, 2-before)), 64)
	}
}

// figureOrDash is for figures of which 0 says that they are not known.
func figureOrDash(x float64) string {
	if x == 0 {
		return "-"
	}
	return figure(x)
}

// grouped is a whole number with commas between its thousands.
func grouped(n int) string {
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

func perSecond(rate float64) string { return grouped(int(rate)) + "/s" }

// counted is a number with its noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return grouped(n) + " " + noun + "s"
}

// roughly is a duration as one says it who does not know it to the second.
func roughly(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return "some seconds"
	case d < 100*time.Second:
		return fmt.Sprintf("%d s", int(d.Round(10*time.Second).Seconds()))
	default:
		return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
	}
}
