package report

import (
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
)

// A Goal is a bound that the project sets for one of our figures, as such or against a rival's. Of
// several figures of ours the worst counts, and of several of rivals the best.
type Goal struct {
	What   string
	Ours   string   // a pattern for [path.Match] of a line's name and a unit, with a space between them
	Theirs []string // likewise, and each must have been measured; none: our figure is judged as such
	Least  float64  // the bounds of our figure, or of its ratio to theirs
	Most   float64  // 0: none
}

// judge returns the row of a table. It has none if nothing of ours was measured.
func (g Goal) judge(figures summed) (row []string, measured bool) {
	worst := slices.Max[[]float64]
	theirBest := slices.Min[[]float64]
	want := fmt.Sprintf("at most %.4g", g.Most)
	if g.Most == 0 {
		worst, theirBest = slices.Min, slices.Max
		want = fmt.Sprintf("at least %.4g", g.Least)
	} else if g.Least != 0 {
		want = fmt.Sprintf("%.4g to %.4g", g.Least, g.Most)
	}
	ours := figures.matching(g.Ours)
	if len(ours) == 0 {
		return nil, false
	}
	judged := worst(ours)
	if g.Least != 0 && g.Most != 0 { // The one that is farthest off is worst.
		middle := (g.Least + g.Most) / 2
		judged = slices.MaxFunc(ours, func(a, b float64) int {
			return int(math.Copysign(1, math.Abs(a-middle)-math.Abs(b-middle)))
		})
	}
	got := number(judged)
	if len(g.Theirs) > 0 {
		want += " times theirs"
		var theirs []float64
		for _, pattern := range g.Theirs {
			found := figures.matching(pattern)
			if len(found) == 0 {
				return []string{g.What, want, "a rival was not measured", "?"}, true
			}
			theirs = append(theirs, found...)
		}
		best := theirBest(theirs)
		got = fmt.Sprintf("%s against %s", number(judged), number(best))
		if judged != 0 || best != 0 {
			judged /= best
			got = fmt.Sprintf("%.3g (%s)", judged, got)
		}
	}
	reached := "yes"
	if judged < g.Least || g.Most != 0 && judged > g.Most*(1+1e-9) { // Some are sums of floats.
		reached = "NO"
	}
	return []string{g.What, want, got, reached}, true
}

// matching returns the figures whose names match a pattern.
func (s summed) matching(pattern string) (found []float64) {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if match, err := path.Match(pattern, name); err != nil {
			panic(err) // All patterns are the experiments' own.
		} else if match {
			found = append(found, s[name])
		}
	}
	return found
}
