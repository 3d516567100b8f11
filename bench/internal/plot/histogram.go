package plot

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
)

// The measures of the histograms, in pixels.
const (
	histogramRow     = 58.0 // from one limiter's ground line to the next one's
	histogramHeight  = 46.0 // of a bin that holds all spacings
	histogramFigures = 96.0 // the width of a column of figures at the right
)

// reach is where the axis ends, in intervals.
const reach = float64(measure.HistogramReach)

// Spacings is a picture of how the spacings of each limiter's departures spread
// at one rate, one row a limiter over a common axis.
//
// A bar's height is the square root of its share: on a plain scale a needle of
// 90 % leaves nothing to be seen of a tail, on a logarithmic one a single
// spacing in ten thousand looks like a habit.
type Spacings struct {
	Name    string // of the file; "": made of the rate
	Title   string // "": made of the rate
	Rate    float64
	Rows    []SpacingsRow
	Caption string
}

// A SpacingsRow is one limiter. Those of its spacings that are in no bin of the
// histogram are longer.
type SpacingsRow struct {
	Name string
	measure.Spread
}

// Draw sets off the limiter named ours, and its variants.
func (p Spacings) Draw(ours string) report.Picture {
	rows := slices.Clone(p.Rows)
	var names []string
	for _, r := range rows {
		names = append(names, r.Name)
	}
	oursFirst(rows, ours, func(r SpacingsRow) string { return r.Name })
	var s svg
	y := s.heading(cmp.Or(p.Title, fmt.Sprintf("How even are the departures? Spacing at %s per second", report.Grouped(int(p.Rate)))),
		fmt.Sprintf("Each spacing between two departures, as a multiple of the interval of %s. A perfect shaper is a needle at 1; bars to the left of ½ are bunches.", Time(1e9/p.Rate)))
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
	x := func(intervals float64) float64 { return left + intervals/reach*(right-left) }
	drawAxis(&s, x, top, foot)
	described := make([]string, 0, len(rows))
	for i, r := range rows {
		ground := top + histogramRow*float64(i+1)
		set, colour := rowStyle(r.Name, ours)
		s.line(left, ground+0.5, right, ground+0.5, lineColour, "")
		bunch, even := bars(r.Histogram, r.Departures, reach, x, ground)
		s.fill(bunch, badColour)
		s.fill(even, colour)
		s.text(pictureMargin, ground-14, r.Name, set)
		miss, share := Time(r.ErrorP50), Percent(r.Bunched)
		set.anchor = "end"
		s.text(median, ground-14, miss, set)
		set.colour = badInk
		s.text(bunched, ground-14, share, set)
		described = append(described, fmt.Sprintf("%s: median error %s, %s closer than half an interval", r.Name, miss, share))
	}
	s.text((left+right)/2, foot+36, "spacing ÷ interval", textStyle{colour: softColour, anchor: "middle"})
	s.caption(foot+62, "Height: the square root of the share of spacings in a bar 1/20 of an interval wide (100 % of them stand 10 times as high as 1 %); the last bar holds all beyond. "+p.Caption)
	return s.picture(cmp.Or(p.Name, fmt.Sprintf("spacing-%.0f", p.Rate)),
		fmt.Sprintf("Spacing of departures at %s per second. %s.", report.Grouped(int(p.Rate)), strings.Join(described, "; ")))
}

// drawAxis draws the axis below the rows, and its lines behind them.
func drawAxis(s *svg, x func(float64) float64, top, foot float64) {
	for tick := 0.0; tick <= reach; tick += 0.5 {
		label, dash, colour := strconv.FormatFloat(tick, 'f', -1, 64), "2 3", lineColour
		switch tick {
		case 1:
			dash, colour = "", "#9fb6c6"
		case reach:
			label += " and more"
		}
		s.line(x(tick), top, x(tick), foot+5, colour, dash)
		s.text(x(tick), foot+19, label, textStyle{anchor: "middle", colour: softColour, bold: tick == 1})
	}
}

// bars returns a histogram on its ground as two paths: what lies below half an
// interval, and the rest. Of so many spacings, those in no bin are drawn with
// the last.
//
// A bar stands for two bins and has its centre at a multiple of their width, so
// that a needle at 1 is one bar, and not two at either side of 1; the first and
// the last bin stand alone.
func bars(histogram []int, spacings int, reach float64, x func(float64) float64, ground float64) (bunch, even string) {
	if len(histogram) == 0 {
		return "", ""
	}
	in := 0
	for _, n := range histogram {
		in += max(0, n)
	}
	all := max(in, spacings)
	last := len(histogram) - 1
	var paths [2]strings.Builder
	width := reach / float64(len(histogram))
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
		from, to := max(0, centre-width), min(reach, centre+width)
		height := histogramHeight * math.Sqrt(float64(n)/float64(all))
		path := &paths[1]
		if centre < 0.5-width/2 {
			path = &paths[0]
		}
		fmt.Fprintf(path, "M%s %sV%sH%sV%sZ", coordinate(x(from)), coordinate(ground), coordinate(ground-height), coordinate(x(to)), coordinate(ground))
	}
	return paths[0].String(), paths[1].String()
}
