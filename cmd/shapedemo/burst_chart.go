package main

import (
	"fmt"
	"math"
	"strings"
	"time"

	"example.com/leakybucket/internal/limitwords"
)

const (
	chartColumns = 36 // about that many; each is two characters wide
	chartRows    = 5  // height of the highest bar

	margin = "       " // left of the bars, for the number of the highest one
)

// A grid divides the time of a run into the columns of a chart.
type grid struct {
	every   float64 // seconds to a column
	lead    float64 // seconds from the left edge to the first arrival
	columns int
}

// gridOf divides a run into about chartColumns columns. A column is a whole
// number of the shaper's intervals, or an interval a whole number of columns:
// otherwise an even flow would look uneven.
func gridOf(info limitsInfo, shaped trial) grid {
	begin, end := shaped.span()
	seconds := max(end.Sub(begin).Seconds(), 1e-6)
	g := grid{every: seconds / chartColumns}
	if !info.unlimited {
		if info.interval <= g.every {
			g.every = info.interval * math.Ceil(g.every/info.interval)
		} else {
			g.every = info.interval / math.Floor(info.interval/g.every)
		}
		if len(shaped.reached) > 0 {
			// Each departure is placed in the middle of the stretch that should hold
			// one. A departure that is a little early or late is then not counted in
			// the column of its neighbour.
			stretch := min(info.interval, g.every)
			g.lead = stretch/2 - math.Mod(shaped.reached[0].Sub(begin).Seconds(), stretch)
			if g.lead < 0 {
				g.lead += stretch
			}
		}
	}
	g.columns = int((seconds+g.lead)/g.every) + 1
	return g
}

// count returns how many of the instants fall into each column of a run that
// began at begin.
func (g grid) count(begin time.Time, at []time.Time) []int {
	counts := make([]int, g.columns)
	for _, a := range at {
		column := int(math.Floor((a.Sub(begin).Seconds() + g.lead) / g.every))
		counts[min(max(column, 0), g.columns-1)]++
	}
	return counts
}

// burstChart draws both trials as bars over time, all in the same scale.
func burstChart(t *terminal, info limitsInfo, direct, shaped trial) string {
	if len(direct.reached) == 0 || len(shaped.arrived) == 0 {
		return "No request arrived: there is nothing to draw.\n"
	}
	begin, _ := shaped.span()
	g := gridOf(info, shaped)
	type series struct {
		title  string
		colour colour
		counts []int
	}
	all := []series{
		{"direct: " + countAndSpan("reach the upstream", direct.reached), red, g.count(direct.reached[0], direct.reached)},
		{"shaped: " + countAndSpan("arrive at the proxy", shaped.arrived), yellow, g.count(begin, shaped.arrived)},
	}
	if len(shaped.disconnects) > 0 {
		all = append(all, series{"shaped: " + countAndSpan("disconnect while waiting", shaped.disconnects), blue, g.count(begin, shaped.disconnects)})
	}
	all = append(all, series{"shaped: " + countAndSpan("reach the upstream", shaped.reached), green, g.count(begin, shaped.reached)})
	peak := 1
	for _, s := range all {
		for _, n := range s.counts {
			peak = max(peak, n)
		}
	}
	var b strings.Builder
	for _, s := range all {
		fmt.Fprintf(&b, "  %s\n", t.coloured(bold, s.title))
		rows := bars(s.counts, peak)
		for i, row := range rows {
			label := ""
			if i == 0 {
				label = fmt.Sprint(highest(s.counts))
			}
			fmt.Fprintf(&b, "%6s %s\n", label, t.coloured(s.colour, row))
		}
	}
	b.WriteString(axis(g))
	fmt.Fprintf(&b, "  %s\n", t.coloured(faint, fmt.Sprintf("one column is %s; the number is how many requests the highest bar counts", limitwords.Seconds(g.every))))
	return b.String()
}

// countAndSpan returns the text of how many requests or clients did what, and
// within which time.
func countAndSpan(did string, at []time.Time) string {
	text := fmt.Sprintf("%d %s", len(at), did)
	if len(at) > 1 {
		text += " within " + limitwords.Seconds(at[len(at)-1].Sub(at[0]).Seconds())
	}
	return text
}

// bars draws counts as upright bars, each two characters wide. It returns the
// rows from top to bottom, without empty rows on top.
func bars(counts []int, peak int) []string {
	const eighths = " ▁▂▃▄▅▆▇█"
	steps := []rune(eighths)
	tall := highest(counts)
	var rows []string
	for row := chartRows - 1; row >= 0; row-- {
		var b strings.Builder
		for _, n := range counts {
			height := int(math.Round(float64(n) / float64(peak) * chartRows * 8))
			if n > 0 {
				height = max(height, 1) // Even one request among many is shown.
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

// axis draws the time axis below the bars, with labels at round times.
func axis(g grid) string {
	width := 2*g.columns - 1
	step := roundStep(float64(g.columns) * g.every / 6)
	unit := limitwords.UnitFor(float64(g.columns) * g.every)
	line := []rune(strings.Repeat("─", width))
	labels := []rune(strings.Repeat(" ", width+8))
	for i := 0; ; i++ {
		seconds := float64(i) * step
		at := int(2 * (seconds + g.lead) / g.every)
		if at >= width {
			break
		}
		line[at] = '┴'
		copy(labels[at:], []rune(fmt.Sprintf("%.6g %s", seconds/unit.Length, unit.Name)))
	}
	return fmt.Sprintf("%s%s\n%s%s\n", margin, string(line), margin, strings.TrimRight(string(labels), " "))
}

// roundStep returns the smallest of 1, 2 and 5 times a power of ten that is at
// least that many seconds.
func roundStep(minimum float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(minimum)))
	for _, n := range []float64{1, 2, 5} {
		if n*power >= minimum {
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
