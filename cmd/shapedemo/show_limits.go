package main

import (
	"math"
	"strconv"
	"strings"
	"time"

	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

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
	info.mayWait = limitwords.BurstOf(l).Waiting
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
