package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

const (
	pictureColumns = 36 // aimed at; each is two characters wide
	pictureRows    = 5  // of the highest bar

	margin = "       " // left of the bars, for their numbers
)

// A grid says how the time of a run is cut into the columns of a picture.
type grid struct {
	every   float64 // seconds to a column
	lead    float64 // seconds from the left edge to the first arrival
	columns int
}

// gridOf cuts a run into about pictureColumns columns. A column holds a whole
// number of the shaper's intervals, or an interval a whole number of columns:
// else an even flow would look uneven.
func gridOf(m meaning, shaped trial) grid {
	begin, end := shaped.span()
	seconds := max(end.Sub(begin).Seconds(), 1e-6)
	g := grid{every: seconds / pictureColumns}
	if !m.endless {
		if m.every <= g.every {
			g.every = m.every * math.Ceil(g.every/m.every)
		} else {
			g.every = m.every / math.Floor(m.every/g.every)
		}
		if len(shaped.reached) > 0 {
			// Departures are put into the middle of the stretch that should
			// hold one, so that none is counted with its neighbour for being
			// a little early or late.
			stretch := min(m.every, g.every)
			g.lead = stretch/2 - math.Mod(shaped.reached[0].Sub(begin).Seconds(), stretch)
			if g.lead < 0 {
				g.lead += stretch
			}
		}
	}
	g.columns = int((seconds+g.lead)/g.every) + 1
	return g
}

// count says how many of at fall into each column, if the run began then.
func (g grid) count(begin time.Time, at []time.Time) []int {
	counts := make([]int, g.columns)
	for _, a := range at {
		column := int(math.Floor((a.Sub(begin).Seconds() + g.lead) / g.every))
		counts[min(max(column, 0), g.columns-1)]++
	}
	return counts
}

// picture draws both trials as bars over time, all in one scale.
func picture(t *terminal, m meaning, straight, shaped trial) string {
	if len(straight.reached) == 0 || len(shaped.arrived) == 0 {
		return "Nothing arrived: there is nothing to draw.\n"
	}
	begin, _ := shaped.span()
	g := gridOf(m, shaped)
	type lane struct {
		title  string
		tint   tint
		counts []int
	}
	lanes := []lane{
		{"straight: " + crowd("reach the upstream", straight.reached), red, g.count(straight.reached[0], straight.reached)},
		{"shaped: " + crowd("arrive at the proxy", shaped.arrived), yellow, g.count(begin, shaped.arrived)},
	}
	if len(shaped.gone) > 0 {
		lanes = append(lanes, lane{"shaped: " + crowd("vanish from the line", shaped.gone), blue, g.count(begin, shaped.gone)})
	}
	lanes = append(lanes, lane{"shaped: " + crowd("reach the upstream", shaped.reached), green, g.count(begin, shaped.reached)})
	peak := 1
	for _, l := range lanes {
		for _, n := range l.counts {
			peak = max(peak, n)
		}
	}
	var b strings.Builder
	for _, l := range lanes {
		fmt.Fprintf(&b, "  %s\n", t.in(bold, l.title))
		rows := bars(l.counts, peak)
		for i, row := range rows {
			label := ""
			if i == 0 {
				label = fmt.Sprint(highest(l.counts))
			}
			fmt.Fprintf(&b, "%6s %s\n", label, t.in(l.tint, row))
		}
	}
	b.WriteString(axis(g))
	fmt.Fprintf(&b, "  %s\n", t.in(faint, fmt.Sprintf("one column is %s; the numbers are the highest bars", humane(g.every))))
	return b.String()
}

// crowd says how many did what, and in how long.
func crowd(did string, at []time.Time) string {
	text := fmt.Sprintf("%d %s", len(at), did)
	if len(at) > 1 {
		text += " within " + humane(at[len(at)-1].Sub(at[0]).Seconds())
	}
	return text
}

// bars draws counts as upright bars, two characters to each: rows from top to
// bottom, without the empty ones on top.
func bars(counts []int, peak int) []string {
	const eighths = " ▁▂▃▄▅▆▇█"
	steps := []rune(eighths)
	tall := highest(counts)
	var rows []string
	for row := pictureRows - 1; row >= 0; row-- {
		var b strings.Builder
		for _, n := range counts {
			height := int(math.Round(float64(n) / float64(peak) * pictureRows * 8))
			if n > 0 {
				height = max(height, 1) // One request is little, but not nothing.
			}
			b.WriteRune(steps[min(max(height-row*8, 0), 8)])
			b.WriteByte(' ')
		}
		line := strings.TrimRight(b.String(), " ")
		if line != "" || row == 0 && tall == 0 {
			rows = append(rows, line)
		}
	}
	return rows
}

// axis draws the line under the bars, with times at round places.
func axis(g grid) string {
	width := 2*g.columns - 1
	step := roundStep(float64(g.columns) * g.every / 6)
	unit := unitFor(float64(g.columns) * g.every)
	line := []rune(strings.Repeat("─", width))
	labels := []rune(strings.Repeat(" ", width+8))
	for i := 0; ; i++ {
		seconds := float64(i) * step
		at := int(2 * (seconds + g.lead) / g.every)
		if at >= width {
			break
		}
		line[at] = '┴'
		copy(labels[at:], []rune(fmt.Sprintf("%.6g %s", seconds/unit.length, unit.name)))
	}
	return fmt.Sprintf("%s%s\n%s%s\n", margin, string(line), margin, strings.TrimRight(string(labels), " "))
}

// roundStep is the smallest of 1, 2 and 5 times a power of ten that is at
// least that many seconds.
func roundStep(least float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, n := range []float64{1, 2, 5} {
		if n*power >= least {
			return n * power
		}
	}
	return 10 * power
}

func highest(counts []int) int {
	high := 0
	for _, n := range counts {
		high = max(high, n)
	}
	return high
}
