package report

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
	"time"

	"example.com/leakybucket/cmd/shapereplay/internal/simulate"
	"example.com/leakybucket/internal/limitwords"
)

// The dimensions of the picture, in pixels.
const (
	svgWidth    = 860
	svgLeft     = 64
	svgRight    = 844
	svgHead     = 62  // above the first rule
	svgFoot     = 34  // below the last
	ruleHeight  = 176 // of a rule
	flowTop     = 30  // of arrivals and departures, from the top of the rule
	flowHeight  = 72
	lineTop     = 116 // of the line
	lineHeight  = 40
	drawnRules  = 12 // the rules with the most requests are drawn
	ticksWanted = 6
)

// svgStyle has colours for light and for dark pages, and uses the reader's own font. It
// has no CSS variables, because some SVG viewers do not support them.
const svgStyle = `svg{font:13px system-ui,sans-serif}` +
	`.bg{fill:#fff}text{fill:#1b1f24}.b{font-weight:600}text.m{fill:#59636e}.l{stroke:#d1d9e0;fill:none}` +
	`.a{fill:#8fbfe0}text.a{fill:#0062a3}.r{fill:#d55e00}text.r{fill:#b84f00}.d{stroke:#00785a;fill:none}text.d{fill:#00785a;stroke:none}.w{fill:#b58bc9}text.w{fill:#7b3f98}` +
	`@media(prefers-color-scheme:dark){.bg{fill:#0d1117}text{fill:#e6e8eb}text.m{fill:#9198a1}.l{stroke:#3d444d}` +
	`.a{fill:#2b5f86}text.a{fill:#6cb6ec}.r{fill:#e5702a}text.r{fill:#f0883e}.d{stroke:#2fc99a}text.d{fill:#2fc99a;stroke:none}.w{fill:#7d5a91}text.w{fill:#cf9be6}}`

// SVG returns a picture of a replay that has kept series: for each rule, the arrivals,
// departures and refusals over time, and the length of the line.
func SVG(d *Document) string {
	rules := slices.DeleteFunc(slices.Clone(d.Rules), func(r Rule) bool { return r.Requests == 0 })
	slices.SortStableFunc(rules, func(a, b Rule) int { return b.Requests - a.Requests })
	omitted := max(0, len(rules)-drawnRules)
	rules = rules[:len(rules)-omitted]
	height := svgHead + ruleHeight*len(rules) + svgFoot

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s"><style>%s</style>`+"\n",
		svgWidth, height, html.EscapeString(d.describe()), svgStyle)
	fmt.Fprintf(&b, `<rect class="bg" width="%d" height="%d"/>`+"\n", svgWidth, height)
	fmt.Fprintf(&b, `<text class="b" x="16" y="24">%s</text>`+"\n", html.EscapeString(d.title()))
	writeLegend(&b, omitted)
	bins := 0
	for _, r := range rules {
		bins = max(bins, len(r.series.Bins))
	}
	for i, r := range rules {
		p := panel{top: svgHead + ruleHeight*i, bins: r.series.Bins, width: r.series.Width, all: bins}
		p.write(&b, r)
	}
	if len(rules) > 0 {
		writeTimes(&b, *d.From, rules[0].series.Width*time.Duration(bins), svgHead+ruleHeight*len(rules))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// describe describes the picture in words.
func (d *Document) describe() string {
	var all []string
	for _, r := range d.Rules {
		all = append(all, fmt.Sprintf("%s: of %s %s waited, %s were refused, the longest wait was %s",
			ruleName(r.Rule), Count(r.Requests, "request"), Number(r.Waited), Number(r.Refused), limitwords.Seconds(time.Duration(r.Longest).Seconds())))
	}
	return strings.Join(all, "; ")
}

func writeLegend(b *strings.Builder, omitted int) {
	const y = 46
	x := 16.0
	entry := func(mark, class, text string) {
		fmt.Fprintf(b, mark+`<text class="%s" x="%.0f" y="%d">%s</text>`+"\n", class, x+20, y, text)
		x += 36 + 7*float64(len(text))
	}
	box := func(class string) string {
		return fmt.Sprintf(`<rect class="%s" x="%.0f" y="%d" width="14" height="10"/>`, class, x, y-9)
	}
	entry(box("a"), "a", "arrived")
	entry(box("r"), "r", "of these refused")
	entry(fmt.Sprintf(`<path class="d" stroke-width="2" d="M%.0f %dh14"/>`, x, y-4), "d", "left")
	entry(box("w"), "w", "waiting")
	if omitted > 0 {
		fmt.Fprintf(b, `<text class="m" x="%.0f" y="%d">the %d rules with the most requests; %s more are not drawn</text>`+"\n", x+8, y, drawnRules, Number(omitted))
	}
}

// A panel is the part of the picture that shows one rule.
type panel struct {
	top   int
	bins  []simulate.Bin
	width time.Duration // of a bin
	all   int           // bins of the longest series
}

func (p *panel) x(i int) float64 { return svgLeft + float64(i)*(svgRight-svgLeft)/float64(p.all) }

func (p *panel) write(b *strings.Builder, r Rule) {
	fmt.Fprintf(b, `<text x="16" y="%d"><tspan class="b">%s</tspan> <tspan dx="8" opacity=".75">%s</tspan></text>`+"\n",
		p.top+20, html.EscapeString(cut(Quoted(ruleName(r.Rule)), 40)), html.EscapeString(cmp.Or(r.Limits, "no candidate")))
	said := fmt.Sprintf(`<tspan>%s, %s waited, longest %s</tspan>`, Count(r.Requests, "request"), Number(r.Waited), limitwords.Seconds(time.Duration(r.Longest).Seconds()))
	if r.Refused > 0 {
		said += fmt.Sprintf(`<tspan>, %s refused (%s)</tspan>`, Number(r.Refused), html.EscapeString(share(r.Refused, r.Requests)))
	}
	class := "m"
	if r.Refused > 0 {
		class = "r"
	}
	fmt.Fprintf(b, `<text class="%s" text-anchor="end" x="%d" y="%d">%s</text>`+"\n", class, svgRight, p.top+20, said)

	most := 0
	waiting := 0.0 // on average, in the bin where it is most
	for _, bin := range p.bins {
		most = max(most, bin.Arrived, bin.Left)
		waiting = max(waiting, float64(bin.Waiting)/float64(p.width))
	}
	foot := p.top + flowTop + flowHeight
	left := func(bin simulate.Bin) float64 { return float64(bin.Left) }
	p.area(b, "a", foot, flowHeight, float64(most), func(bin simulate.Bin) float64 { return float64(bin.Arrived) })
	p.area(b, "r", foot, flowHeight, float64(most), func(bin simulate.Bin) float64 { return float64(bin.Refused) })
	fmt.Fprintf(b, `<path class="d" stroke-width="1.5" d="%s"/>`+"\n", p.steps(foot, flowHeight, float64(most), left))
	p.axis(b, foot, flowHeight, perSecond(float64(most)/p.width.Seconds()))
	if waiting == 0 {
		return
	}
	foot = p.top + lineTop + lineHeight
	p.area(b, "w", foot, lineHeight, waiting, func(bin simulate.Bin) float64 { return float64(bin.Waiting) / float64(p.width) })
	p.axis(b, foot, lineHeight, threeDigits(waiting))
}

// area fills the space below the values of the bins.
func (p *panel) area(b *strings.Builder, class string, foot, height int, most float64, value func(simulate.Bin) float64) {
	if path := p.steps(foot, height, most, value); strings.Contains(path, "V") {
		fmt.Fprintf(b, `<path class="%s" d="%sZ"/>`+"\n", class, path)
	}
}

// steps returns a path along the values of the bins, which begins and ends at the foot.
func (p *panel) steps(foot, height int, most float64, value func(simulate.Bin) float64) string {
	path := fmt.Sprintf("M%.1f %d", p.x(0), foot)
	last := float64(foot)
	for i, bin := range p.bins {
		y := float64(foot)
		if most > 0 {
			y -= value(bin) / most * float64(height)
		}
		// Equal steps are joined, so that the file is small.
		if math.Abs(y-last) >= 0.05 {
			path += fmt.Sprintf("H%.1fV%.1f", p.x(i), y)
			last = y
		}
	}
	path += fmt.Sprintf("H%.1f", p.x(len(p.bins)))
	if last != float64(foot) {
		path += fmt.Sprintf("V%d", foot)
	}
	return path
}

// axis draws the foot, and labels the height.
func (p *panel) axis(b *strings.Builder, foot, height int, most string) {
	fmt.Fprintf(b, `<path class="l" d="M%d %d.5H%d"/><path class="l" stroke-dasharray="2 4" d="M%d %d.5H%d"/><text class="m" text-anchor="end" x="%d" y="%d">%s</text>`+"\n",
		svgLeft, foot, svgRight, svgLeft, foot-height, svgRight, svgLeft-6, foot-height+8, most)
}

func perSecond(rate float64) string {
	switch {
	case rate >= 1 || rate == 0:
		return threeDigits(rate) + "/s"
	case rate*60 >= 1:
		return threeDigits(rate*60) + "/min"
	}
	return threeDigits(rate*3600) + "/h"
}

func threeDigits(n float64) string {
	if n >= 100 {
		return Number(int64(math.Round(n)))
	}
	return fmt.Sprintf("%.3g", n)
}

// writeTimes writes the times of day below the last rule, at round steps.
func writeTimes(b *strings.Builder, from time.Time, span time.Duration, y int) {
	step := tickStep(span)
	layout := "15:04:05"
	switch {
	case step >= 24*time.Hour:
		layout = "2006-01-02"
	case step >= time.Minute:
		layout = "15:04"
	case step < time.Second:
		layout = "15:04:05.000"
	}
	for at := from.Truncate(step).Add(step); at.Before(from.Add(span)); at = at.Add(step) {
		x := svgLeft + float64(at.Sub(from))/float64(span)*(svgRight-svgLeft)
		text := at.Format(layout)
		middle := min(x, svgWidth-4-4*float64(len(text))) // so that the last one is not cut
		fmt.Fprintf(b, `<path class="l" d="M%.1f %dv5"/><text class="m" text-anchor="middle" x="%.1f" y="%d">%s</text>`+"\n", x, y-18, middle, y+2, text)
	}
	fmt.Fprintf(b, `<text class="m" x="%d" y="%d">UTC</text>`+"\n", 16, y+2)
}

// tickStep returns the round time between two labels.
func tickStep(span time.Duration) time.Duration {
	for _, step := range []time.Duration{
		time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond,
		time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
	} {
		if span/step <= ticksWanted {
			return step
		}
	}
	days := int64(span/(24*time.Hour))/ticksWanted + 1
	return time.Duration(days) * 24 * time.Hour
}
