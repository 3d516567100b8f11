package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
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
	marksFoot     = 153.0 // where the marks of those who vanish stand
	marksHeight   = 9.0
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
	`.a{fill:#0072b2;stroke:#0072b2}.r{fill:#b84f00;stroke:#d55e00}.d{fill:#00785a;stroke:#00785a}.v{fill:#96417a;stroke:#b0588f}` +
	`@media(prefers-color-scheme:dark){text,.t{fill:#e6e8eb}.m{fill:#9198a1}.l{stroke:#4a525c}` +
	`.a{fill:#56b4e9;stroke:#56b4e9}.r{fill:#f0883e;stroke:#f0883e}.d{fill:#2fc99a;stroke:#2fc99a}.v{fill:#e39ccb;stroke:#e39ccb}}` +
	`path.a,path.r,path.d,path.v{fill:none}text.a,text.r,text.d,text.v{stroke:none}`

// drawing draws the shaped trial as an SVG: each arrival at the proxy a dot,
// piled up where many come at once, and below each departure, when it reached
// the upstream, a tooth of a comb. Between them a short mark tells when a client
// vanished.
func drawing(m meaning, shaped trial) string {
	if len(shaped.arrived) == 0 || len(shaped.reached) == 0 {
		return ""
	}
	begin, end := shaped.span()
	length := max(end.Sub(begin).Seconds(), 1e-6)
	x := func(at time.Time) float64 {
		return drawingLeft + at.Sub(begin).Seconds()/length*(drawingRight-drawingLeft)
	}
	towers, edge := towersOf(shaped, x)

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s"><style>%s</style>`+"\n",
		drawingWidth, drawingHeight, describe(m, shaped), drawingStyle)
	drawAxis(&b, length)
	b.WriteString(towers)
	if shaped.vanished > 0 {
		fmt.Fprintf(&b, `<path class="v" stroke-width="1.6" d="%s"/>`+"\n", teeth(shaped.gone, x, marksFoot, marksHeight))
	}
	fmt.Fprintf(&b, `<path class="d" stroke-width="2.4" d="%s"/>`+"\n", teeth(shaped.reached, x, teethFoot, teethHeight))
	lines := []struct{ class, text string }{
		{"t", "A ragged burst goes in: " + crowd("requests", shaped.arrived)},
		{"a", fmt.Sprintf("%d are admitted, and wait up to %s", shaped.served+shaped.vanished, humane(shaped.longest.Seconds()))},
		{"v", fmt.Sprintf("%d of these leave while they wait, and %s", shaped.vanished, cost(spent(m, shaped)))},
		{"r", fmt.Sprintf("%d do not fit, and are refused at once", shaped.refused)},
	}
	y := 44
	for _, line := range lines {
		if line.class == "v" && shaped.vanished == 0 || line.class == "r" && shaped.refused == 0 {
			continue
		}
		fmt.Fprintf(&b, `<text class="%s" x="%.0f" y="%d">%s</text>`+"\n", line.class, edge+24, y, line.text)
		y += 22
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
	vanished := ""
	if shaped.vanished > 0 {
		vanished = fmt.Sprintf(", %d leave while they wait", shaped.vanished)
	}
	return fmt.Sprintf("With limits %s, a ragged burst of %s; %d are refused at once%s and %d reach the upstream evenly within %s",
		m.limits, crowd("requests arrives", shaped.arrived), shaped.refused, vanished, len(shaped.reached),
		humane(shaped.reached[len(shaped.reached)-1].Sub(shaped.reached[0]).Seconds()))
}

// towersOf piles the arrivals up as dots, in the order in which they came, and
// returns a path for each class of them that occurs, and the right edge of it
// all.
func towersOf(shaped trial, x func(time.Time) float64) (towers string, edge float64) {
	inOrder := byArrival(shaped.passages)
	each := marksFor(len(inOrder))
	columns := make([]int, drawingWidth)
	column := func(p *passage) int { return int(x(p.arrived) / (dotWidth + 1)) }
	for i := 0; i < len(inOrder); i += each {
		columns[column(inOrder[i])]++
	}
	pitch := min(4, towersHeight/float64(highest(columns)))
	clear(columns)
	paths := map[string]string{}
	for i := 0; i < len(inOrder); i += each {
		p := inOrder[i]
		at := column(p)
		left := float64(at) * (dotWidth + 1)
		edge = max(edge, left+dotWidth)
		class := classOf(p)
		paths[class] += fmt.Sprintf("M%.0f %.1fh%.0f", left, towersFoot-(float64(columns[at])+0.5)*pitch, dotWidth)
		columns[at]++
	}
	for _, class := range slices.Sorted(maps.Keys(paths)) {
		towers += fmt.Sprintf(`<path class="%s" stroke-width="%.1f" d="%s"/>`+"\n", class, pitch*0.75, paths[class])
	}
	return towers, edge
}

// classOf is the class, and with it the colour, of a request's dot.
func classOf(p *passage) string {
	switch {
	case !p.refused.IsZero():
		return "r"
	case !p.vanished.IsZero():
		return "v"
	}
	return "a"
}

// teeth draws instants as upright marks.
func teeth(instants []time.Time, x func(time.Time) float64, foot, height float64) string {
	var b strings.Builder
	for i := 0; i < len(instants); i += marksFor(len(instants)) {
		fmt.Fprintf(&b, "M%.1f %.0fv-%.0f", x(instants[i]), foot, height)
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
