package measure

import (
	"fmt"
	"math"
	"reflect"
	"slices"
)

// Unknown stands for a figure that could not be measured on this system. Tables
// show it as a dash, and results leave it out.
var Unknown = math.NaN()

// Known reports whether a figure was measured.
func Known(x float64) bool { return !math.IsNaN(x) }

// Quantile returns the value below which the share q of the values lies, in
// proportion between the two nearest. Of no values, or with an [Unknown] one
// among them, it is Unknown. The values stay as they are.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return Unknown
	}
	sorted := slices.Sorted(slices.Values(values))
	if !Known(sorted[0]) { // Sorting puts NaN first.
		return Unknown
	}
	at := q * float64(len(sorted)-1)
	below := math.Floor(at)
	lower, upper := sorted[int(below)], sorted[int(math.Ceil(at))]
	return lower + (upper-lower)*(at-below)
}

// Median returns the middle of the values.
func Median(values ...float64) float64 { return Quantile(values, 0.5) }

// Medians sums up the rounds in which the same thing was measured. T is a
// struct, or a slice of structs that has the same length in each round. Of each
// float64 the result has the median, or the largest if the field's tag is
// `rounds:"max"`, as a bound must hold in every round. Integers are counts, of
// which it has the sum. Anything else is that of the first round. Of no rounds, each float64 is
// [Unknown].
func Medians[T any](rounds []T) T {
	values := make([]reflect.Value, len(rounds))
	for i := range rounds {
		values[i] = reflect.ValueOf(rounds[i])
	}
	var median T
	sumUp(reflect.ValueOf(&median).Elem(), values, "")
	return median
}

func sumUp(into reflect.Value, rounds []reflect.Value, how string) {
	switch into.Kind() {
	case reflect.Struct:
		for i := range into.NumField() {
			fields := make([]reflect.Value, len(rounds))
			for j, round := range rounds {
				fields[j] = round.Field(i)
			}
			sumUp(into.Field(i), fields, into.Type().Field(i).Tag.Get("rounds"))
		}
	case reflect.Slice:
		n := 0
		if len(rounds) > 0 {
			n = rounds[0].Len()
		}
		into.Set(reflect.MakeSlice(into.Type(), n, n))
		for i := range n {
			elements := make([]reflect.Value, len(rounds))
			for j, round := range rounds {
				elements[j] = round.Index(i)
			}
			sumUp(into.Index(i), elements, how)
		}
	case reflect.Float64:
		values := make([]float64, len(rounds))
		for i, round := range rounds {
			values[i] = round.Float()
		}
		switch how {
		case "":
			into.SetFloat(Median(values...))
		case "max":
			into.SetFloat(Quantile(values, 1))
		default:
			panic(fmt.Sprintf("measure: no tag is rounds:%q", how))
		}
	case reflect.Int:
		for _, round := range rounds {
			into.SetInt(into.Int() + round.Int())
		}
	default:
		if len(rounds) > 0 {
			into.Set(rounds[0])
		}
	}
}
