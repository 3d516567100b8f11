package report

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"example.com/leakybucket/bench/internal/measure"
)

var (
	oursColour = color.RGBA{R: 0x0b, G: 0x6e, B: 0x99, A: 0xff}
	badColour  = color.RGBA{R: 0xd9, G: 0x5f, B: 0x0e, A: 0xff}
	softColour = color.RGBA{R: 0x59, G: 0x63, B: 0x6e, A: 0xff}
	// The greys tell rivals apart; ours stands out.
	rivalGreys = []uint8{0x6b, 0x8a, 0xa6, 0xbf, 0xd4, 0xe4}
)

// colourOf returns the colour of a limiter, which is ours under the name of ours, or that name,
// a dash and more. At is its place among the rivals.
func colourOf(name, ours string, at int) color.Color {
	switch {
	case name == ours:
		return oursColour
	case strings.HasPrefix(name, ours+"-"):
		return color.RGBA{R: 0x6f, G: 0xae, B: 0xc8, A: 0xff}
	}
	grey := rivalGreys[at%len(rivalGreys)]
	return color.RGBA{R: grey, G: grey, B: grey, A: 0xff}
}

// Spacings is a picture of how the spacings of each limiter's departures spread at one rate,
// one row a limiter over a common axis.
type Spacings struct {
	Name, Title string // of the file, and of the picture
	Rate        float64
	Limiters    []string
	Line        func(limiter string) string // the name of its lines, whose rounds are added up
	Caption     string
}

// DrawSpacings adds a picture of those limiters that were measured, if any was. It sets off the limiter named ours, and its variants.
//
// The height of a bar is the square root of its share: on a plain scale a needle of 90 %
// leaves nothing to be seen of a tail, on a logarithmic one a single spacing in ten thousand
// looks like a habit.
func (r *Report) DrawSpacings(p Spacings, ours string) error {
	var rows []*plot.Plot
	for _, limiter := range p.Limiters {
		name := p.Line(limiter)
		rounds := slices.DeleteFunc(slices.Clone(r.Lines), func(l Line) bool { return l.Name != name })
		if len(rounds) == 0 {
			continue
		}
		one := plot.New()
		one.Title.Text = fmt.Sprintf("%s: median error %s, %.3g %% closer than half an interval",
			limiter, written(Median(rounds, name, "err-p50-ns"), "ns"), Median(rounds, name, "bunched-%"))
		one.X.Min, one.X.Max, one.Y.Min, one.Y.Max = 0, (measure.HistogramBars-1)*measure.BarWidth, 0, 1
		one.HideY()
		one.X.Tick.Marker = plot.ConstantTicks(nil)
		bunched, even := bars(rounds)
		for _, bars := range []struct {
			bins   []plotter.HistogramBin
			colour color.Color
		}{{bunched, badColour}, {even, colourOf(limiter, ours, 0)}} {
			if len(bars.bins) > 0 {
				one.Add(&plotter.Histogram{Bins: bars.bins, Width: bars.bins[0].Max - bars.bins[0].Min, FillColor: bars.colour})
			}
		}
		rows = append(rows, one)
	}
	if len(rows) > 0 {
		last := rows[len(rows)-1]
		last.X.Tick.Marker = plot.DefaultTicks{}
		last.X.Label.Text = fmt.Sprintf("spacing ÷ interval of %s; the last bar holds all beyond. Height: the square root of the share", written(1e9/p.Rate, "ns"))
	}
	return r.draw(p.Name, p.Title, p.Caption, rows, 80)
}

// bars returns the histogram as shares: spacings below half an interval, and the rest.
func bars(rounds []Line) (bunched, even []plotter.HistogramBin) {
	counts, all := make([]float64, measure.HistogramBars), 0.
	for _, round := range rounds {
		for i, n := range round.Histogram {
			counts[i] += float64(n)
			all += float64(n)
		}
	}
	for i, n := range counts {
		middle := float64(i) * measure.BarWidth
		bin := plotter.HistogramBin{Min: middle - measure.BarWidth/2, Max: middle + measure.BarWidth/2, Weight: math.Sqrt(n / max(1, all))}
		if middle < 0.5 {
			bunched = append(bunched, bin)
		} else {
			even = append(even, bin)
		}
	}
	return bunched, even
}

// Bars is a picture of figures of each limiter, in panels one below the other.
type Bars struct {
	Name, Title, Caption string
	Panels               []Panel
}

// A Panel has a group of bars for each setting, in which each limiter has one.
type Panel struct {
	Title, Axis        string
	Settings, Limiters []string
	// Figure returns the figure of a limiter in the i-th setting; [measure.Unknown] where there is none.
	Figure func(limiter string, i int) float64
}

// DrawBars adds a picture of those panels of which a figure is known, if there are any. It sets off the limiter named ours, and its variants.
func (r *Report) DrawBars(b Bars, ours string) error {
	var panels []*plot.Plot
	for _, panel := range b.Panels {
		one, measured := plot.New(), false
		one.Title.Text, one.Y.Label.Text, one.Y.Min = panel.Title, panel.Axis, 0
		one.NominalX(panel.Settings...)
		one.Legend.Top, one.Legend.XOffs, one.Legend.Padding = true, vg.Points(120), vg.Points(3)
		one.Legend.TextStyle.Font.Size = vg.Points(9)
		width := vg.Points(460 / float64(max(1, len(panel.Settings)*(len(panel.Limiters)+1))))
		for j, limiter := range panel.Limiters {
			values := make(plotter.Values, len(panel.Settings))
			for k := range values {
				if v := panel.Figure(limiter, k); measure.Known(v) {
					values[k], measured = v, true
				}
			}
			chart, err := plotter.NewBarChart(values, width)
			if err != nil {
				return err
			}
			chart.Color, chart.LineStyle.Width = colourOf(limiter, ours, j), 0
			chart.Offset = width * vg.Length(float64(j)-float64(len(panel.Limiters)-1)/2)
			one.Add(chart)
			if len(panels) == 0 {
				one.Legend.Add(limiter+"  ", chart) // Browsers have wider letters than the library reckons with.
			}
		}
		if measured {
			panels = append(panels, one)
		}
	}
	return r.draw(b.Name, b.Title, b.Caption, panels, 150)
}

// draw adds a picture of plots one below the other, each of the height, under a title. Without plots there is none.
func (r *Report) draw(name, title, caption string, plots []*plot.Plot, height float64) error {
	if len(plots) == 0 {
		return nil
	}
	const head, foot, perLine = 30, 34, 160
	canvas := vgsvg.New(vg.Points(720), vg.Points(head+foot+height*float64(len(plots))))
	all := draw.New(canvas)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	style := plots[0].Title.TextStyle
	style.XAlign, style.YAlign, style.Font.Size = draw.XLeft, draw.YBottom, vg.Points(15)
	all.FillText(style, vg.Point{X: vg.Points(10), Y: all.Max.Y - vg.Points(22)}, title)
	style.Font.Size, style.Color = vg.Points(8), softColour
	if at := strings.LastIndex(caption[:min(perLine, len(caption))], " "); len(caption) > perLine {
		caption = caption[:at] + "\n" + caption[at+1:]
	}
	all.FillText(style, vg.Point{X: vg.Points(10), Y: vg.Points(6)}, caption)
	within := draw.Crop(all, vg.Points(10), -vg.Points(130), vg.Points(foot), -vg.Points(head))
	grid := make([][]*plot.Plot, len(plots))
	for i, one := range plots {
		one.Title.TextStyle.Font.Size = vg.Points(10)
		grid[i] = []*plot.Plot{one}
	}
	tiles := draw.Tiles{Rows: len(plots), Cols: 1, PadY: vg.Points(4)}
	for i, row := range plot.Align(grid, tiles, within) {
		plots[i].Draw(row[0])
	}
	var svg bytes.Buffer
	_, err := canvas.WriteTo(&svg)
	r.Pictures = append(r.Pictures, Picture{name, svg.Bytes()})
	return err
}
