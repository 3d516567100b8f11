package main

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The measures of the histograms, in pixels.
const (
	histogramRow     = 58.0 // from one contestant's ground line to the next one's
	histogramHeight  = 46.0 // of a bin that holds all spacings
	histogramFigures = 96.0 // the width of a column of figures at the right
)

// spacingPlot draws how the spacings of each contestant's departures spread, one
// row a contestant over a common axis, at one rate, with so many waiters, while
// the machine is idle. Ours is the name of the contestant to set off, caption
// says where it was measured.
//
// A bar's height is the square root of its share: on a plain scale a needle of
// 90 % leaves nothing to be seen of a tail, on a logarithmic one a single
// spacing in ten thousand looks like a habit.
func spacingPlot(results []spacingResult, rate float64, waiters int, ours, caption string) plot {
	var rows []spacingResult
	var names []string
	for _, r := range results {
		if r.Rate == rate && r.Waiters == waiters && r.Load == idle {
			rows, names = append(rows, r), append(names, r.Contestant)
		}
	}
	oursFirst(rows, ours, func(r spacingResult) string { return r.Contestant })
	var s svg
	y := s.heading(fmt.Sprintf("How even are the departures? Spacing at %s per second", plotRate(rate)),
		fmt.Sprintf("Each spacing between two departures, as a multiple of the interval of %s. A perfect shaper is a needle at 1; what stands left of ½ left in a bunch.", plotTime(1e6/rate)))
	left := pictureMargin + nameColumnWidth(names)
	right := pictureWidth - pictureMargin - 2*histogramFigures - 12
	median, bunched := right+12+histogramFigures, pictureWidth-pictureMargin
	for i, line := range [][2]string{{"median", "closer than"}, {"error", "½ interval"}} {
		at := y + 12 + 15*float64(i)
		s.text(median, at, line[0], textStyle{colour: softColour, anchor: "end"})
		s.text(bunched, at, line[1], textStyle{colour: badInk, anchor: "end"}) // As the bars that it counts.
	}
	top := y + 22
	foot := top + histogramRow*float64(len(rows))
	x := func(intervals float64) float64 { return left + intervals/histogramReach*(right-left) }
	drawIntervals(&s, x, top, foot)
	described := make([]string, 0, len(rows))
	for i, r := range rows {
		ground := top + histogramRow*float64(i+1)
		set, colour := rowStyle(r.Contestant, ours)
		s.line(left, ground+0.5, right, ground+0.5, lineColour, "")
		bunch, even := bars(r.Histogram, r.Departures, x, ground)
		s.fill(bunch, badColour)
		s.fill(even, colour)
		s.text(pictureMargin, ground-14, r.Contestant, set)
		miss, share := plotTime(r.ErrorP50), plotPercent(r.Bunched)
		set.anchor = "end"
		s.text(median, ground-14, miss, set)
		set.colour = badInk
		s.text(bunched, ground-14, share, set)
		described = append(described, fmt.Sprintf("%s: median error %s, %s closer than half an interval", r.Contestant, miss, share))
	}
	s.text((left+right)/2, foot+36, "spacing ÷ interval", textStyle{colour: softColour, anchor: "middle"})
	s.caption(foot+62, fmt.Sprintf("%d requests wait at any time. Height: the square root of the share of spacings in a bar 1/20 of an interval wide (100 %% of them stand 10 times as high as 1 %%); the last bar holds all beyond. %s", waiters, caption))
	return s.plot(fmt.Sprintf("spacing-%.0f", rate),
		fmt.Sprintf("Spacing of departures at %s per second. %s.", plotRate(rate), strings.Join(described, "; ")))
}

// drawIntervals draws the axis below the rows, and its lines behind them.
func drawIntervals(s *svg, x func(float64) float64, top, foot float64) {
	for tick := 0.0; tick <= histogramReach; tick += 0.5 {
		label, dash, colour := strconv.FormatFloat(tick, 'f', -1, 64), "2 3", lineColour
		switch tick {
		case 1:
			dash, colour = "", "#9fb6c6"
		case histogramReach:
			label += " and more"
		}
		s.line(x(tick), top, x(tick), foot+5, colour, dash)
		s.text(x(tick), foot+19, label, textStyle{anchor: "middle", colour: softColour, bold: tick == 1})
	}
}

// bars draws a histogram on its ground as two paths: what lies below half an
// interval, and the rest. Of so many spacings, those that are in no bin are
// longer than all bins, and are drawn with the last.
//
// A bar stands for two bins and has its centre at a multiple of their width, so
// that a needle at 1 is one bar, and not two at either side of 1; the first and
// the last bin stand alone.
func bars(histogram []int, spacings int, x func(float64) float64, ground float64) (bunch, even string) {
	if len(histogram) == 0 {
		return "", "" // Nobody has counted.
	}
	in := 0
	for _, n := range histogram {
		in += max(0, n)
	}
	all := max(in, spacings)
	last := len(histogram) - 1
	var paths [2]strings.Builder
	width := histogramReach / float64(len(histogram))
	for first := -1; first <= last; first += 2 {
		n := 0
		for _, i := range []int{first, first + 1} {
			if i >= 0 && i <= last {
				n += max(0, histogram[i])
			}
			if i == last {
				n += all - in
			}
		}
		if n == 0 {
			continue
		}
		centre := float64(first+1) * width
		from, to := max(0, centre-width), min(histogramReach, centre+width)
		height := histogramHeight * math.Sqrt(float64(n)/float64(all))
		path := &paths[1]
		if centre < 0.5-width/2 {
			path = &paths[0]
		}
		fmt.Fprintf(path, "M%s %sV%sH%sV%sZ", coordinate(x(from)), coordinate(ground), coordinate(ground-height), coordinate(x(to)), coordinate(ground))
	}
	return paths[0].String(), paths[1].String()
}

// ratePlot draws which share of the rate each contestant reaches, by load and
// rate: with so many waiters while the machine is idle, and with as many as were
// measured in a busy process.
func ratePlot(results []spacingResult, waiters int, ours, caption string) plot {
	c := columnPlot{
		name:    "rate",
		title:   "Is the rate reached?",
		what:    "Departures in percent of the rate that was set: on an idle machine, and while other goroutines of the process keep all cores busy. A column that fills its track is 100 %.",
		axis:    "set rate",
		caption: fmt.Sprintf("%d requests wait at any time, in a busy process 1,000 at 10,000/s. %s", waiters, caption),
	}
	for _, r := range results {
		panel := r.Load
		if panel != idle {
			panel = "busy: " + panel
		}
		if r.Load != idle || r.Waiters == waiters {
			c.figures = append(c.figures, columnFigure{
				row: r.Contestant, panel: panel, at: r.Rate, label: shortRate(r.Rate), percent: 100 * r.RateReached,
			})
		}
	}
	return c.plot(ours)
}

// goodputPlot draws how much of the capacity is served while callers lose
// patience, by how they do and by how much is offered.
func goodputPlot(results []goodputResult, ours, caption string) plot {
	says := map[string]string{
		"cancel":   "callers cancel, as closed connections do",
		"deadline": "callers bring a deadline",
	}
	c := columnPlot{
		name:    "goodput",
		title:   "What is served when callers give up?",
		what:    "Requests served in percent of the capacity, while more are offered than it can serve and callers give up waiting. A column that fills its track is 100 %.",
		axis:    "offered",
		caption: caption,
	}
	for _, r := range results {
		c.figures = append(c.figures, columnFigure{
			row: r.Contestant, panel: cmp.Or(says[r.By], r.By), at: r.Offered, label: plotPercent(100 * r.Offered / goodputLimit), percent: r.Served,
		})
	}
	return c.plot(ours)
}
