package plot

import (
	"fmt"
	"strings"

	"example.com/leakybucket/bench/internal/report"
)

// The measures of bars, in pixels.
const (
	barRow    = 34.0 // from one row to the next
	barHeight = 18.0
	barLabel  = 62.0 // the room for a figure at the right of the longest bar
	barGap    = 18.0 // between panels
)

// Bars is a picture of a few figures of each limiter: a row for each, and a panel
// for each figure, with its value beside the bar. Panels of one unit have one
// scale, so that their bars compare.
type Bars struct {
	Name, Title, What, Caption string
	Panels                     []BarPanel
	Rows                       []BarRow
}

// A BarPanel is a column of bars. Label writes one of its values.
type BarPanel struct {
	Title string
	Unit  string
	Label func(value float64) string
}

// A BarRow has a value for each panel; NaN where there is none.
type BarRow struct {
	Name   string
	Note   string // below the name
	Values []float64
}

// Draw sets off the limiter named ours, and its variants.
func (b Bars) Draw(ours string) report.Picture {
	var names []string
	longest := map[string]float64{}
	for _, r := range b.Rows {
		names = append(names, r.Name)
		for i, panel := range b.Panels {
			if isFinite(r.Values[i]) {
				longest[panel.Unit] = max(longest[panel.Unit], r.Values[i])
			}
		}
	}
	var s svg
	y := s.heading(b.Title, b.What) + 20
	left := pictureMargin + nameColumnWidth(names)
	n := float64(max(1, len(b.Panels)))
	width := (pictureWidth - pictureMargin - left - barGap*(n-1)) / n
	lines := 0
	for _, panel := range b.Panels {
		lines = max(lines, len(report.Wrap(panel.Title, width/boldLetter)))
	}
	for i, panel := range b.Panels {
		for j, line := range report.Wrap(panel.Title, width/boldLetter) {
			s.text(left+float64(i)*(width+barGap), y+16*float64(j), line, textStyle{bold: true})
		}
	}
	top := y + 16*float64(lines-1) + 10
	foot := top + barRow*float64(len(b.Rows))
	for i := range b.Panels {
		x := left + float64(i)*(width+barGap)
		s.line(x, top, x, foot, lineColour, "")
	}
	var described []string
	for j, r := range b.Rows {
		middle := top + barRow*(float64(j)+0.5)
		set, colour := rowStyle(r.Name, ours)
		nameAt := middle + 4.5
		if r.Note != "" {
			nameAt -= 6
			s.text(pictureMargin, nameAt+14, r.Note, textStyle{size: 11, colour: softColour})
		}
		s.text(pictureMargin, nameAt, r.Name, set)
		var said []string
		for i, panel := range b.Panels {
			x, v := left+float64(i)*(width+barGap), r.Values[i]
			if !isFinite(v) {
				s.text(x+6, middle+4.5, none, textStyle{colour: softColour})
				continue
			}
			length := 0.0
			if most := longest[panel.Unit]; most > 0 {
				length = max(0, v) / most * (width - barLabel)
			}
			s.rect(x, middle-barHeight/2, max(length, 1), barHeight, colour)
			s.text(x+length+6, middle+4.5, panel.Label(v), textStyle{size: 12.5, colour: set.colour, bold: set.bold})
			said = append(said, panel.Title+" "+panel.Label(v))
		}
		described = append(described, r.Name+": "+strings.Join(said, ", "))
	}
	s.caption(foot+26, b.Caption)
	return s.picture(b.Name, fmt.Sprintf("%s %s.", b.Title, strings.Join(described, "; ")))
}
