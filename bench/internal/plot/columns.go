package plot

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"example.com/leakybucket/bench/internal/report"
)

// The measures of columns, in pixels.
const (
	columnsRow   = 62.0  // from one limiter to the next
	columnTrack  = 34.0  // the height of 100 %
	columnsGap   = 26.0  // between panels
	boldLetter   = 7.2   // the assumed width of a letter of a panel's name
	widestColumn = 104.0 // from one column to the next, at most
)

// shortfall is how many percent may be missing before a column is shown as short.
// Percentages count as they are written, in whole numbers.
const shortfall = 5

// Percentages is a picture of percentages: a row for each limiter, panels side by
// side, and in each panel a column for each setting. It is a table as much as a
// picture, since most figures are 100 and dots would lie upon one another.
type Percentages struct {
	Name, Title, What, Axis, Caption string
	Columns                          []Column
}

// A Column is one percentage. Our rows stand first; otherwise rows and panels
// stand in the order of their first columns. The settings of a panel go up.
type Column struct {
	Row, Panel string
	At         float64
	Label      string // of At
	Percent    float64
}

// A columnSlot is where the columns of one panel and setting stand.
type columnSlot struct {
	panel, label string
	at, x        float64
}

// Draw sets off the limiter named ours, and its variants.
func (c Percentages) Draw(ours string) report.Picture {
	rows := distinct(c.Columns, func(f Column) string { return f.Row })
	oursFirst(rows, ours, func(row string) string { return row })
	panels := distinct(c.Columns, func(f Column) string { return f.Panel })
	slots := distinct(c.Columns, func(f Column) columnSlot { return columnSlot{panel: f.Panel, label: f.Label, at: f.At} })
	slices.SortStableFunc(slots, func(a, b columnSlot) int {
		return cmp.Or(cmp.Compare(slices.Index(panels, a.panel), slices.Index(panels, b.panel)), cmp.Compare(a.at, b.at))
	})

	var s svg
	y := s.heading(c.Title, c.What)
	left := pictureMargin + nameColumnWidth(rows)
	room := pictureWidth - pictureMargin - left - columnsGap*float64(max(0, len(panels)-1))
	pitch := min(widestColumn, room/float64(max(1, len(slots))))
	track := min(44, pitch*0.7)
	for i := range slots {
		slots[i].x = left
		if i > 0 {
			slots[i].x = slots[i-1].x + pitch
			if slots[i].panel != slots[i-1].panel {
				slots[i].x += columnsGap
			}
		}
	}

	// A panel's name takes as many lines as it needs, and stands on the lowest.
	names := make([][]string, len(panels))
	widths := make([]float64, len(panels))
	lines := 0
	for i, panel := range panels {
		for _, slot := range slots {
			if slot.panel == panel {
				widths[i] += pitch
			}
		}
		widths[i] -= pitch - track
		names[i] = report.Wrap(panel, (widths[i]+columnsGap/2)/boldLetter)
		lines = max(lines, len(names[i]))
	}
	y += 16 * float64(lines)
	for i, panel := range panels {
		first := slices.IndexFunc(slots, func(s columnSlot) bool { return s.panel == panel })
		from := slots[first].x + (pitch-track)/2
		for j, line := range names[i] {
			s.text(from, y-16*float64(len(names[i])-1-j), line, textStyle{bold: true})
		}
		s.line(from, y+6.5, from+widths[i], y+6.5, lineColour, "")
	}
	y += 20
	s.text(left-10, y, c.Axis, textStyle{colour: softColour, anchor: "end"})
	for _, slot := range slots {
		s.text(slot.x+pitch/2, y, slot.label, textStyle{colour: softColour, anchor: "middle", size: 11.5})
	}

	var described []string
	for i, row := range rows {
		foot := y + 8 + columnsRow*float64(i+1) - 4
		set, colour := rowStyle(row, ours)
		s.text(pictureMargin, foot-columnTrack/2+5, row, set)
		var said []string
		for _, at := range slots {
			x, share := at.x+pitch/2, c.at(row, at)
			if !isFinite(share) {
				s.text(x, foot-columnTrack/2+5, none, textStyle{colour: softColour, anchor: "middle"})
				continue
			}
			s.rect(x-track/2, foot-columnTrack, track, columnTrack, trackColour)
			fill, how := colour, textStyle{size: 12.5, anchor: "middle", colour: set.colour, bold: set.bold}
			if math.Round(share) < 100-shortfall {
				fill, how.colour, how.bold = badColour, badInk, true
			}
			height := columnTrack * min(max(share, 0), 100) / 100
			s.rect(x-track/2, foot-height, track, height, fill)
			s.text(x, foot-columnTrack-5, number(share), how)
			said = append(said, fmt.Sprintf("%s at %s %s", at.panel, at.label, Percent(share)))
		}
		described = append(described, row+": "+strings.Join(said, ", "))
	}
	s.caption(y+8+columnsRow*float64(len(rows))+26, fmt.Sprintf("Orange: more than %d %% below 100 %%. %s", shortfall, c.Caption))
	return s.picture(c.Name, c.Title+" "+strings.Join(described, "; ")+".")
}

// at returns the percentage of a row in a slot, and NaN if there is none.
func (c Percentages) at(row string, at columnSlot) float64 {
	for _, f := range c.Columns {
		if f.Row == row && f.Panel == at.panel && f.At == at.at {
			return f.Percent
		}
	}
	return math.NaN()
}

// distinct returns the keys of all, each once, in the order in which they are met.
func distinct[K comparable](figures []Column, key func(Column) K) []K {
	var keys []K
	for _, f := range figures {
		if k := key(f); !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys
}
