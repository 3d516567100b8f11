package main

import (
	"math"
	"slices"
)

// quantile is the value below which the share q of the values lies, between
// two of them in proportion. It sorts the values in place; of none it is 0.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	place := q * float64(len(values)-1)
	below := math.Floor(place)
	lower, upper := values[int(below)], values[int(math.Ceil(place))]
	return lower + (upper-lower)*(place-below)
}

// median is the middle of the values, which stay as they are.
func median(values ...float64) float64 {
	return quantile(slices.Clone(values), 0.5)
}
