package report

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
)

// A Goal is a bound that the project sets for our figures, each as such or against rivals' figures.
type Goal struct {
	What   string   // may have groups of Ours in it, such as $1
	Ours   string   // a regular expression for a whole name of a line and a unit, with a space between them
	Theirs []string // names with units, which may have groups of Ours in them: the best counts. None: ours is judged as such.
	Least  float64  // the bounds of our figure, or of its ratio to theirs
	Most   float64  // 0: none
}

// judge returns a row of a table for each figure of ours that was measured.
func (g Goal) judge(figures summed) (rows [][]string) {
	ours := regexp.MustCompile("^" + g.Ours + "$")
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		if groups := ours.FindStringSubmatchIndex(name); groups != nil {
			expand := func(text string) string { return string(ours.ExpandString(nil, text, name, groups)) }
			rows = append(rows, append([]string{expand(g.What)}, g.judgeOne(figures[name], figures, expand)...))
		}
	}
	return rows
}

// judgeOne returns the bound, the finding and whether the bound is kept.
func (g Goal) judgeOne(ours float64, figures summed, expand func(string) string) []string {
	best, want := slices.Min[[]float64], fmt.Sprintf("at most %.4g", g.Most)
	if g.Most == 0 {
		best, want = slices.Max, fmt.Sprintf("at least %.4g", g.Least)
	} else if g.Least != 0 {
		want = fmt.Sprintf("%.4g to %.4g", g.Least, g.Most)
	}
	got, judged := number(ours), ours
	if len(g.Theirs) > 0 {
		want += " times theirs"
		var theirs []float64
		for _, name := range g.Theirs {
			figure, measured := figures[expand(name)]
			if !measured {
				return []string{want, "a rival was not measured", "?"}
			}
			theirs = append(theirs, figure)
		}
		rival := best(theirs)
		got = fmt.Sprintf("%s against %s", number(ours), number(rival))
		if ours != 0 || rival != 0 {
			judged = ours / rival
			got = fmt.Sprintf("%.3g (%s)", judged, got)
		}
	}
	if judged < g.Least || g.Most != 0 && judged > g.Most*(1+1e-9) { // Some are sums of floats.
		return []string{want, got, "NO"}
	}
	return []string{want, got, "yes"}
}
