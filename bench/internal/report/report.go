// Package report shows measurements to people, as tables and pictures, and to programs, as
// benchmark lines that benchstat reads.
package report

import (
	"reflect"
	"strconv"
	"strings"

	"golang.org/x/perf/benchmath"

	"example.com/leakybucket/bench/internal/measure"
)

// A Report has the results of an experiment.
type Report struct {
	Name, What string // of the experiment
	Note       string // how it was measured, and its pitfalls
	Lines      []Line // which the tables show, and the goals look at
	Goals      []Goal
	Pictures   []Picture
}

// A Picture is written as SVG under its name.
type Picture struct {
	Name string // of the file, without .svg
	SVG  []byte
}

// A Line is one measurement in one round. All rounds of a measurement have the same name,
// such as "Spacing/limiter=shaper/rate=1000", so that benchstat takes them for samples of
// one benchmark.
type Line struct {
	Name    string
	Figures []Figure
}

// A Figure is a value with its unit.
type Figure struct {
	Value float64
	Unit  string
}

// Lines returns a line for each round. A round is a struct: of its fields, and the fields of
// structs in it, each float64 or int with a tag such as `unit:"err-p50-ns"` is a figure of
// the line, unless it is not known.
func Lines[T any](name string, rounds []T) []Line {
	var lines []Line
	for _, round := range rounds {
		if figures := figuresOf(reflect.ValueOf(round)); len(figures) > 0 {
			lines = append(lines, Line{name, figures})
		}
	}
	return lines
}

func figuresOf(round reflect.Value) []Figure {
	var all []Figure
	for i := range round.NumField() {
		field, value := round.Type().Field(i), 0.0
		switch field.Type.Kind() {
		case reflect.Struct:
			all = append(all, figuresOf(round.Field(i))...)
			continue
		case reflect.Float64:
			value = round.Field(i).Float()
		case reflect.Int:
			value = float64(round.Field(i).Int())
		}
		if unit := field.Tag.Get("unit"); unit != "" && measure.Known(value) {
			all = append(all, Figure{value, unit})
		}
	}
	return all
}

// summed are figures of lines by name and unit, with a space between them.
type summed map[string]float64

// sumUp returns the median of the rounds of each figure, or the largest if it is a bound that
// must hold in every round: a burst, or the allocations of a call.
func sumUp(lines []Line) summed {
	samples := map[string][]float64{}
	for _, l := range lines {
		for _, f := range l.Figures {
			samples[l.Name+" "+f.Unit] = append(samples[l.Name+" "+f.Unit], f.Value)
		}
	}
	figures := summed{}
	for name, values := range samples {
		s := benchmath.NewSample(values, &benchmath.DefaultThresholds)
		figures[name] = benchmath.AssumeNothing.Summary(s, 0.95).Center
		if strings.HasSuffix(name, " slot-burst-ns") || strings.HasSuffix(name, " allocs/call") {
			figures[name] = s.Values[len(s.Values)-1] // They are sorted.
		}
	}
	return figures
}

// Median returns the median of a figure over the rounds of a measurement. It is [measure.Unknown] if
// no line has it.
func Median(lines []Line, name, unit string) float64 {
	if figure, ok := sumUp(lines)[name+" "+unit]; ok {
		return figure
	}
	return measure.Unknown
}

// Grouped writes a whole number with commas between its thousands.
func Grouped(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// PerSecond writes a rate.
func PerSecond(rate float64) string { return Grouped(int(rate)) + "/s" }
