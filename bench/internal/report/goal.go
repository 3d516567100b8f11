package report

import (
	"fmt"

	"example.com/leakybucket/bench/internal/measure"
)

// A Goal is a figure that the project has set itself.
type Goal struct {
	What, Want, Got string
	Reached         bool
}

// NotMeasured is what was found of a goal whose figures are missing.
const NotMeasured = "not measured"

// Bounded is the goal that our figure is at most a bound. Both are in the unit.
func Bounded(what string, most, ours float64, unit string) Goal {
	g := Goal{What: what, Want: fmt.Sprintf("at most %g %s", most, unit), Got: NotMeasured}
	if measure.Known(ours) {
		g.Got, g.Reached = Figure(ours)+" "+unit, ours <= most
	}
	return g
}

// Lower is the goal that our figure is lower than a rival's by a factor, at
// least. Both are in the unit.
func Lower(what string, factor, ours, theirs float64, unit string) Goal {
	g := Goal{What: what, Want: fmt.Sprintf("≥ %g× lower", factor)}
	switch {
	case !measure.Known(ours + theirs):
		g.Got = NotMeasured
	case ours == 0:
		g.Got, g.Reached = fmt.Sprintf("0, against %s %s", Figure(theirs), unit), true
	default:
		g.Got = fmt.Sprintf("%s× (%s against %s %s)", Figure(theirs/ours), Figure(ours), Figure(theirs), unit)
		g.Reached = theirs >= factor*ours
	}
	return g
}

// AtMost is the goal that our figure is at most a rival's times a factor. Both
// are in the unit.
func AtMost(what string, factor, ours, theirs float64, unit string) Goal {
	g := Goal{What: what, Want: fmt.Sprintf("≤ %g×", factor)}
	switch {
	case !measure.Known(ours + theirs):
		g.Got = NotMeasured
	case theirs == 0:
		g.Got, g.Reached = fmt.Sprintf("%s against 0 %s", Figure(ours), unit), ours == 0
	default:
		g.Got = fmt.Sprintf("%s× (%s against %s %s)", Figure(ours/theirs), Figure(ours), Figure(theirs), unit)
		g.Reached = ours <= factor*theirs
	}
	return g
}
