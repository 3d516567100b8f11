package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// The measures of the drawing, in pixels.
const (
	drawingWidth  = 760
	drawingHeight = 256
	drawingLeft   = 24
	drawingRight  = 736
	towersFoot    = 138.0 // where the towers of arrivals stand
	towersHeight  = 122.0
	dotWidth      = 5.0
	teethFoot     = 224.0 // where the teeth of the comb stand
	teethHeight   = 34.0

	// mostMarks keeps the file below 12 KB: of more requests than that, one
	// mark stands for several.
	mostMarks = 300
)

// drawingStyle gives light and dark pages each their colours, with the reader's
// own font, and without variables, which not every viewer of SVG knows.
const drawingStyle = `svg{font:13px system-ui,sans-serif}` +
	`text,.t{fill:#1b1f24}.m{fill:#656d76}.l{stroke:#c4ccd4}` +
	`.a{fill:#0072b2;stroke:#0072b2}.r{fill:#b84f00;stroke:#d55e00}.d{fill:#00785a;stroke:#00785a}` +
	`@media(prefers-color-scheme:dark){text,.t{fill:#e6e8eb}.m{fill:#9198a1}.l{stroke:#4a525c}` +
	`.a{fill:#56b4e9;stroke:#56b4e9}.r{fill:#f0883e;stroke:#f0883e}.d{fill:#2fc99a;stroke:#2fc99a}}` +
	`path.a,path.r,path.d{fill:none}text.a,text.r,text.d{stroke:none}`

// drawing draws the shaped trial as an SVG: each arrival at the proxy a dot,
// piled up where many come at once, and below each departure, when it reached
// the upstream, a tooth of a comb.
func drawing(m meaning, shaped trial) string {
	if len(shaped.arrived) == 0 || len(shaped.reached) == 0 {
		return ""
	}
	begin, end := shaped.span()
	length := max(end.Sub(begin).Seconds(), 1e-6)
	x := func(at time.Time) float64 {
		return drawingLeft + at.Sub(begin).Seconds()/length*(drawingRight-drawingLeft)
	}
	served, refused, edge := towers(shaped, x)

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s"><style>%s</style>`+"\n",
		drawingWidth, drawingHeight, describe(m, shaped), drawingStyle)
	drawAxis(&b, length)
	fmt.Fprintf(&b, `<path class="a" %s/>`+"\n", served)
	if shaped.refused > 0 {
		fmt.Fprintf(&b, `<path class="r" %s/>`+"\n", refused)
	}
	fmt.Fprintf(&b, `<path class="d" stroke-width="2.4" d="%s"/>`+"\n", teeth(shaped.reached, x))
	for i, line := range []struct{ class, text string }{
		{"t", "A ragged burst goes in: " + crowd("requests", shaped.arrived)},
		{"a", fmt.Sprintf("%d are admitted, and wait up to %s", shaped.served, humane(shaped.longest.Seconds()))},
		{"r", fmt.Sprintf("%d do not fit, and are refused at once", shaped.refused)},
	} {
		if line.class != "r" || shaped.refused > 0 {
			fmt.Fprintf(&b, `<text class="%s" x="%.0f" y="%d">%s</text>`+"\n", line.class, edge+24, 44+22*i, line.text)
		}
	}
	out := "A comb comes out"
	if !m.endless {
		out += ": one every " + humane(m.every)
	}
	fmt.Fprintf(&b, `<text class="d" x="%d" y="%.0f">%s</text>`+"\n</svg>\n", drawingLeft, teethFoot-teethHeight-10, out)
	return b.String()
}

// describe says in words what the drawing shows.
func describe(m meaning, shaped trial) string {
	return fmt.Sprintf("With limits %s, a ragged burst of %s; %d are refused at once and %d reach the upstream evenly within %s",
		m.limits, crowd("requests arrives", shaped.arrived), shaped.refused, len(shaped.reached),
		humane(shaped.reached[len(shaped.reached)-1].Sub(shaped.reached[0]).Seconds()))
}

// towers piles the arrivals up as dots, in the order in which they came, and
// returns the attributes of two paths, for the admitted and the refused, and
// the right edge of it all.
func towers(shaped trial, x func(time.Time) float64) (served, refused string, edge float64) {
	inOrder := byArrival(shaped.passages)
	each := marksFor(len(inOrder))
	columns := make([]int, drawingWidth)
	column := func(p *passage) int { return int(x(p.arrived) / (dotWidth + 1)) }
	for i := 0; i < len(inOrder); i += each {
		columns[column(inOrder[i])]++
	}
	pitch := min(4, towersHeight/float64(highest(columns)))
	clear(columns)
	var paths [2]strings.Builder
	for i := 0; i < len(inOrder); i += each {
		p := inOrder[i]
		at := column(p)
		left := float64(at) * (dotWidth + 1)
		edge = max(edge, left+dotWidth)
		path := &paths[0]
		if !p.refused.IsZero() {
			path = &paths[1]
		}
		fmt.Fprintf(path, "M%.0f %.1fh%.0f", left, towersFoot-(float64(columns[at])+0.5)*pitch, dotWidth)
		columns[at]++
	}
	attributes := func(path string) string {
		return fmt.Sprintf(`stroke-width="%.1f" d="%s"`, pitch*0.75, path)
	}
	return attributes(paths[0].String()), attributes(paths[1].String()), edge
}

// teeth draws the departures.
func teeth(reached []time.Time, x func(time.Time) float64) string {
	var b strings.Builder
	for i := 0; i < len(reached); i += marksFor(len(reached)) {
		fmt.Fprintf(&b, "M%.1f %.0fv-%.0f", x(reached[i]), teethFoot, teethHeight)
	}
	return b.String()
}

// marksFor is how many of n requests one mark stands for.
func marksFor(n int) int { return max(1, (n+mostMarks-1)/mostMarks) }

// drawAxis draws the ground of both lanes, and the time under the lower one.
func drawAxis(b *strings.Builder, length float64) {
	for _, foot := range []float64{towersFoot, teethFoot} {
		fmt.Fprintf(b, `<path class="l" d="M%d %.1fH%d"/>`, drawingLeft-4, foot+0.5, drawingRight+4)
	}
	b.WriteString("\n")
	step, u := roundStep(length/6), unitFor(length)
	for i := 0; float64(i)*step <= length; i++ {
		seconds := float64(i) * step
		at := drawingLeft + seconds/length*(drawingRight-drawingLeft)
		fmt.Fprintf(b, `<path class="l" d="M%.1f %.0fv5"/><text class="m" x="%.1f" y="%.0f" text-anchor="middle">%.6g %s</text>`+"\n",
			at, teethFoot+1, math.Round(at), teethFoot+20, seconds/u.length, u.name)
	}
}
