// Package report puts what was measured before people, as tables and pictures,
// and before programs, as benchmark lines that benchstat reads.
package report

import (
	"math"
	"reflect"

	"example.com/leakybucket/bench/internal/measure"
)

// A Report is what an experiment has found.
type Report struct {
	Name, What string // of the experiment
	Tables     []Table
	Goals      []Goal
	Lines      []Line
	Pictures   []Picture
}

// A Picture is written as SVG under its name.
type Picture struct {
	Name string // of the file, without .svg
	SVG  []byte
}

// A Line is one measurement in one round. All rounds of a measurement have the
// same name, such as "Spacing/limiter=shaper/rate=1000", so that benchstat takes
// them for samples of one benchmark.
type Line struct {
	Name    string
	Figures []Figured
}

// Figured is a figure with its unit.
type Figured struct {
	Value float64
	Unit  string
}

// Lines returns a line for each round. A round is a struct: of its fields, and
// those of structs in it, each float64 or int with a tag such as
// `unit:"err-p50-ns"` is a figure of the line, unless it is not known.
func Lines[T any](name string, rounds []T) []Line {
	var lines []Line
	for _, round := range rounds {
		if figures := figuresOf(reflect.ValueOf(round)); len(figures) > 0 {
			lines = append(lines, Line{name, figures})
		}
	}
	return lines
}

func figuresOf(round reflect.Value) []Figured {
	var all []Figured
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
		unit := field.Tag.Get("unit")
		if unit != "" && measure.Known(value) && !math.IsInf(value, 0) {
			all = append(all, Figured{value, unit})
		}
	}
	return all
}
