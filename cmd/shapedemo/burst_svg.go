package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"example.com/leakybucket/internal/limitwords"
)

// The dimensions of the drawing, in pixels.
const (
	svgWidth          = 760
	svgHeight         = 256
	svgLeft           = 24
	svgRight          = 736
	stacksBase        = 138.0 // y of the bottom of the stacks of arrivals
	stacksHeight      = 122.0
	dotWidth          = 5.0
	disconnectsBase   = 153.0 // y of the bottom of the marks of clients that disconnect
	disconnectsHeight = 9.0
	ticksBase         = 224.0 // y of the bottom of the ticks of departures
	ticksHeight       = 34.0

	// maxMarks keeps the file below 12 KB: with more requests than that, one mark
	// stands for several.
	maxMarks = 300
)

// svgStyle has colours for light and for dark pages, and uses the reader's own
// font. It has no CSS variables, because some SVG viewers do not support them.
const svgStyle = `svg{font:13px system-ui,sans-serif}` +
	`text,.t{fill:#1b1f24}.m{fill:#656d76}.l{stroke:#c4ccd4}` +
	`.a{fill:#0072b2;stroke:#0072b2}.r{fill:#b84f00;stroke:#d55e00}.d{fill:#00785a;stroke:#00785a}.v{fill:#96417a;stroke:#b0588f}` +
	`@media(prefers-color-scheme:dark){text,.t{fill:#e6e8eb}.m{fill:#9198a1}.l{stroke:#4a525c}` +
	`.a{fill:#56b4e9;stroke:#56b4e9}.r{fill:#f0883e;stroke:#f0883e}.d{fill:#2fc99a;stroke:#2fc99a}.v{fill:#e39ccb;stroke:#e39ccb}}` +
	`path.a,path.r,path.d,path.v{fill:none}text.a,text.r,text.d,text.v{stroke:none}`

// burstSVG draws the shaped trial as an SVG. On top, each arrival at the proxy is
// a dot, stacked where many come at once. At the bottom, each arrival at the
// upstream is a tick. Between them, a short mark is a client that disconnected.
func burstSVG(info limitsInfo, shaped trial) string {
	if len(shaped.arrived) == 0 || len(shaped.reached) == 0 {
		return ""
	}
	begin, end := shaped.span()
	length := max(end.Sub(begin).Seconds(), 1e-6)
	x := func(at time.Time) float64 {
		return svgLeft + at.Sub(begin).Seconds()/length*(svgRight-svgLeft)
	}
	stacks, edge := dotStacks(shaped, x)

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s"><style>%s</style>`+"\n",
		svgWidth, svgHeight, describeRun(info, shaped), svgStyle)
	writeSVGAxis(&b, length)
	b.WriteString(stacks)
	if shaped.disconnected > 0 {
		fmt.Fprintf(&b, `<path class="v" stroke-width="1.6" d="%s"/>`+"\n", ticks(shaped.disconnects, x, disconnectsBase, disconnectsHeight))
	}
	fmt.Fprintf(&b, `<path class="d" stroke-width="2.4" d="%s"/>`+"\n", ticks(shaped.reached, x, ticksBase, ticksHeight))
	lines := []struct{ class, text string }{
		{"t", "A ragged burst goes in: " + countAndSpan("requests", shaped.arrived)},
		{"a", fmt.Sprintf("%d are admitted, and wait up to %s", shaped.served+shaped.disconnected, limitwords.Seconds(shaped.longestWait.Seconds()))},
		{"v", fmt.Sprintf("%d of these disconnect while they wait, and %s", shaped.disconnected, costInSlots(wastedSlots(info, shaped)))},
		{"r", fmt.Sprintf("%d do not fit, and are refused at once", shaped.refused)},
	}
	y := 44
	for _, line := range lines {
		if line.class == "v" && shaped.disconnected == 0 || line.class == "r" && shaped.refused == 0 {
			continue
		}
		fmt.Fprintf(&b, `<text class="%s" x="%.0f" y="%d">%s</text>`+"\n", line.class, edge+24, y, line.text)
		y += 22
	}
	out := "A comb comes out"
	if !info.unlimited {
		out += ": one every " + limitwords.Seconds(info.interval)
	}
	fmt.Fprintf(&b, `<text class="d" x="%d" y="%.0f">%s</text>`+"\n</svg>\n", svgLeft, ticksBase-ticksHeight-10, out)
	return b.String()
}

// describeRun returns in words what the drawing shows.
func describeRun(info limitsInfo, shaped trial) string {
	disconnected := ""
	if shaped.disconnected > 0 {
		disconnected = fmt.Sprintf(", %d disconnect while they wait", shaped.disconnected)
	}
	return fmt.Sprintf("With limits %s, a ragged burst of %s; %d are refused at once%s and %d reach the upstream evenly within %s",
		info.limits, countAndSpan("requests arrives", shaped.arrived), shaped.refused, disconnected, len(shaped.reached),
		limitwords.Seconds(shaped.reached[len(shaped.reached)-1].Sub(shaped.reached[0]).Seconds()))
}

// dotStacks draws the arrivals as stacks of dots, in the order in which they
// came. It returns one path for each class of dots, and the x of their right edge.
func dotStacks(shaped trial, x func(time.Time) float64) (stacks string, edge float64) {
	inOrder := byArrival(shaped.requests)
	each := requestsPerMark(len(inOrder))
	columns := make([]int, svgWidth)
	column := func(r *requestLog) int { return int(x(r.arrived) / (dotWidth + 1)) }
	for i := 0; i < len(inOrder); i += each {
		columns[column(inOrder[i])]++
	}
	pitch := min(4, stacksHeight/float64(highest(columns)))
	clear(columns)
	paths := map[string]string{}
	for i := 0; i < len(inOrder); i += each {
		r := inOrder[i]
		at := column(r)
		left := float64(at) * (dotWidth + 1)
		edge = max(edge, left+dotWidth)
		class := classOf(r)
		paths[class] += fmt.Sprintf("M%.0f %.1fh%.0f", left, stacksBase-(float64(columns[at])+0.5)*pitch, dotWidth)
		columns[at]++
	}
	for _, class := range slices.Sorted(maps.Keys(paths)) {
		stacks += fmt.Sprintf(`<path class="%s" stroke-width="%.1f" d="%s"/>`+"\n", class, pitch*0.75, paths[class])
	}
	return stacks, edge
}

// classOf returns the CSS class, and so the colour, of a request's dot.
func classOf(r *requestLog) string {
	switch {
	case !r.refused.IsZero():
		return "r"
	case !r.disconnected.IsZero():
		return "v"
	}
	return "a"
}

// ticks draws instants as upright marks.
func ticks(instants []time.Time, x func(time.Time) float64, foot, height float64) string {
	var b strings.Builder
	for i := 0; i < len(instants); i += requestsPerMark(len(instants)) {
		fmt.Fprintf(&b, "M%.1f %.0fv-%.0f", x(instants[i]), foot, height)
	}
	return b.String()
}

// requestsPerMark returns how many of n requests one mark stands for.
func requestsPerMark(n int) int { return max(1, (n+maxMarks-1)/maxMarks) }

// writeSVGAxis draws the base lines of arrivals and departures, and the time axis
// below the lower one.
func writeSVGAxis(b *strings.Builder, length float64) {
	for _, foot := range []float64{stacksBase, ticksBase} {
		fmt.Fprintf(b, `<path class="l" d="M%d %.1fH%d"/>`, svgLeft-4, foot+0.5, svgRight+4)
	}
	b.WriteString("\n")
	step, u := roundStep(length/6), limitwords.UnitFor(length)
	for i := 0; float64(i)*step <= length; i++ {
		seconds := float64(i) * step
		at := svgLeft + seconds/length*(svgRight-svgLeft)
		fmt.Fprintf(b, `<path class="l" d="M%.1f %.0fv5"/><text class="m" x="%.1f" y="%.0f" text-anchor="middle">%.6g %s</text>`+"\n",
			at, ticksBase+1, math.Round(at), ticksBase+20, seconds/u.Length, u.Name)
	}
}
