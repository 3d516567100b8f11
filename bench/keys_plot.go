package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// The measures of curves, in pixels.
const (
	curvesHeight = 340.0
	curvesAxis   = 52.0 // room for the figures at the left
	curvesLabel  = 15.0 // from one name at the right to the next, at least
	curvesEdge   = 18.0 // from the curves to the left and right ends of their field
)

// A keysCurve is the time of a call by the number of keys.
type keysCurve struct {
	name   string // of the contestant
	label  string
	points []keysPoint
	at     float64 // where its label stands
}

type keysPoint struct{ keys, ns float64 }

// keysPlot draws what a call costs against the number of keys, both on logarithmic
// scales. Ours is the name of the contestant to set off, caption says where it was
// measured.
func keysPlot(results []keysResult, ours, caption string) plot {
	curves := keysCurves(results)
	oursFirst(curves, ours, func(c keysCurve) string { return c.name })
	least, most, fewest, greatest := math.Inf(1), 0.0, math.Inf(1), 0.0
	var labels []string
	for _, c := range curves {
		labels = append(labels, c.label)
		for _, p := range c.points {
			least, most = min(least, p.ns), max(most, p.ns)
			fewest, greatest = min(fewest, p.keys), max(greatest, p.keys)
		}
	}
	var s svg
	y := s.heading("What does a call cost with many keys?",
		"Nanoseconds of a call that may leave at once, by the number of keys that have come, whose buckets are not drained (shaper-drained: always).")
	top := y + 14
	foot := top + curvesHeight
	left, right := pictureMargin+curvesAxis, pictureWidth-pictureMargin-nameColumnWidth(labels)
	ticks := keysTicks(least, most)
	x := func(keys float64) float64 {
		if fewest == greatest {
			return (left + right) / 2
		}
		return left + curvesEdge + math.Log(keys/fewest)/math.Log(greatest/fewest)*(right-left-2*curvesEdge)
	}
	height := func(ns float64) float64 {
		low, high := ticks[0], ticks[len(ticks)-1]
		return foot - math.Log(ns/low)/math.Log(high/low)*curvesHeight
	}
	for _, tick := range ticks {
		s.line(left, height(tick), right, height(tick), lineColour, "")
		s.text(left-8, height(tick)+4, plotTime(tick/1000), textStyle{colour: softColour, anchor: "end", size: 11.5})
	}
	for _, keys := range keysCountsOf(results) {
		s.line(x(float64(keys)), foot, x(float64(keys)), foot+5, lineColour, "")
		s.text(x(float64(keys)), foot+19, plotRate(float64(keys)), textStyle{colour: softColour, anchor: "middle"})
	}
	s.text((left+right)/2, foot+37, "keys", textStyle{colour: softColour, anchor: "middle"})

	// Rivals first, so that nothing lies over ours; labels from the lowest up.
	for _, c := range slices.Backward(curves) {
		set, colour := rowStyle(c.name, ours)
		points := make([][2]float64, len(c.points))
		for i, p := range c.points {
			points[i] = [2]float64{x(p.keys), height(p.ns)}
			s.rect(points[i][0]-2.5, points[i][1]-2.5, 5, 5, colour)
		}
		width, dash := 1.3, ""
		switch {
		case set.bold:
			width = 2.5
		case isOurs(c.name, ours):
			width, dash = 1.8, "5 3"
		case c.name == bareMap:
			dash = "2 3"
		}
		s.curve(points, colour, width, dash)
	}
	for i := range curves {
		last := curves[i].points[len(curves[i].points)-1]
		curves[i].at = height(last.ns)
	}
	described := make([]string, len(curves))
	for i, c := range curves {
		first, last := c.points[0], c.points[len(c.points)-1]
		described[i] = fmt.Sprintf("%s: %s with %s keys, %s with %s", c.label, plotTime(first.ns/1000), plotRate(first.keys), plotTime(last.ns/1000), plotRate(last.keys))
	}
	places := slices.Clone(curves)
	spreadLabels(places, top, foot)
	for _, c := range places {
		set, _ := rowStyle(c.name, ours)
		last := c.points[len(c.points)-1]
		s.line(x(last.keys)+4, height(last.ns), right+6, c.at, lineColour, "")
		set.size = 11.5
		s.text(right+9, c.at+4, c.label, set)
	}
	s.caption(foot+62, "Both scales are logarithmic. One goroutine calls; the keys come in an order that has nothing to do with the first, so that with many of them most calls miss the caches. map: a look-up in a map without a lock. "+caption)
	return s.plot("keys", "What a call costs by the number of keys. "+strings.Join(described, "; ")+".")
}

// keysCurves are the curves of all calls, with the points that can be drawn.
func keysCurves(results []keysResult) []keysCurve {
	var curves []keysCurve
	for _, r := range results {
		if r.Keys < 2 || len(r.ByCallers) == 0 || !isFinite(r.ns()) || r.ns() <= 0 {
			continue
		}
		label := r.Contestant + " " + r.Call
		i := slices.IndexFunc(curves, func(c keysCurve) bool { return c.label == label })
		if i < 0 {
			curves, i = append(curves, keysCurve{name: r.Contestant, label: label}), len(curves)
		}
		curves[i].points = append(curves[i].points, keysPoint{float64(r.Keys), r.ns()})
	}
	for _, c := range curves {
		slices.SortFunc(c.points, func(a, b keysPoint) int { return cmp.Compare(a.keys, b.keys) })
	}
	return curves
}

// keysTicks are round numbers, 1, 2 or 5 times a power of ten, from one that is not
// above the least to one that is not below the most; there are two at least.
func keysTicks(least, most float64) []float64 {
	if !isFinite(least) || least <= 0 || most < least {
		least, most = 10, 100
	}
	var ticks []float64
	for power := math.Floor(math.Log10(least)); ; power++ {
		for _, digit := range []float64{1, 2, 5} {
			tick := digit * math.Pow(10, power)
			if len(ticks) > 0 && ticks[len(ticks)-1] <= least && tick <= least {
				ticks = ticks[:0] // It begins later.
			}
			ticks = append(ticks, tick)
			if tick >= most && len(ticks) > 1 {
				return ticks
			}
		}
	}
}

// spreadLabels moves labels apart, and keeps them in the field if they fit. It sorts
// them by where they stand.
func spreadLabels(curves []keysCurve, top, foot float64) {
	slices.SortStableFunc(curves, func(a, b keysCurve) int { return cmp.Compare(a.at, b.at) })
	at := top
	for i := range curves {
		at = max(at, curves[i].at)
		curves[i].at = at
		at += curvesLabel
	}
	at = max(foot, top+curvesLabel*float64(len(curves)-1))
	for i := range slices.Backward(curves) {
		at = min(at, curves[i].at)
		curves[i].at = at
		at -= curvesLabel
	}
}

// curve draws a line through points. Its dash may be empty.
func (s *svg) curve(points [][2]float64, colour string, width float64, dash string) {
	if len(points) < 2 {
		return
	}
	var d strings.Builder
	for i, p := range points {
		letter := "L"
		if i == 0 {
			letter = "M"
		}
		d.WriteString(letter + coordinate(p[0]) + " " + coordinate(p[1]))
	}
	if dash != "" {
		dash = fmt.Sprintf(` stroke-dasharray="%s"`, dash)
	}
	fmt.Fprintf(&s.body, `<path d="%s" fill="none" stroke="%s" stroke-width="%s"%s/>`+"\n",
		d.String(), colour, strconv.FormatFloat(width, 'f', -1, 64), dash)
}
