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
	Rows        []SpacingsRow
	Caption     string
}

// A SpacingsRow is one limiter. Its rounds are added up.
type SpacingsRow struct {
	Name   string
	Rounds []measure.Spread
}

// Draw sets off the limiter named ours, and its variants. It fails if there are no rows.
//
// The height of a bar is the square root of its share: on a plain scale a needle of 90 %
// leaves nothing to be seen of a tail, on a logarithmic one a single spacing in ten thousand
// looks like a habit.
func (p Spacings) Draw(ours string) (Picture, error) {
	var rows []*plot.Plot
	for i, r := range p.Rows {
		one := plot.New()
		one.Title.Text = fmt.Sprintf("%s: median error %s, %.3g %% closer than half an interval", r.Name,
			ofTime(r.median(func(s measure.Spacing) float64 { return s.ErrorP50 })), r.median(func(s measure.Spacing) float64 { return s.Bunched }))
		one.X.Min, one.X.Max, one.Y.Min, one.Y.Max = 0, measure.HistogramReach, 0, 1
		one.HideY()
		if i == len(p.Rows)-1 {
			one.X.Label.Text = fmt.Sprintf("spacing ÷ interval of %s; the last bar holds all beyond. Height: the square root of the share", ofTime(1e9/p.Rate))
		} else {
			one.X.Tick.Marker = plot.ConstantTicks(nil)
		}
		bunched, even := r.bars()
		for _, bars := range []struct {
			bins   []plotter.HistogramBin
			colour color.Color
		}{{bunched, badColour}, {even, colourOf(r.Name, ours, 0)}} {
			if len(bars.bins) > 0 {
				one.Add(&plotter.Histogram{Bins: bars.bins, Width: bars.bins[0].Max - bars.bins[0].Min, FillColor: bars.colour})
			}
		}
		rows = append(rows, one)
	}
	return picture(p.Name, p.Title, p.Caption, rows, 80)
}

func (r SpacingsRow) median(figure func(measure.Spacing) float64) float64 {
	var values []float64
	for _, round := range r.Rounds {
		values = append(values, figure(round.Spacing))
	}
	return measure.Quantile(values, 0.5)
}

// bars returns the histogram as shares: what lies below half an interval, and the rest. Two
// bins are one bar whose middle is a multiple of its width, so that a needle at 1 is one bar,
// and not two at either side of 1; the first and the last bin stand alone.
func (r SpacingsRow) bars() (bunched, even []plotter.HistogramBin) {
	counts, all := make([]float64, measure.HistogramBins/2+1), 0.
	for _, round := range r.Rounds {
		within := 0
		for i, n := range round.Histogram {
			counts[(i+1)/2] += float64(n)
			within += n
		}
		beyond := max(0, round.Departures-within)
		counts[len(counts)-1] += float64(beyond)
		all += float64(within + beyond)
	}
	const width = 2. * measure.HistogramReach / measure.HistogramBins
	for i, n := range counts {
		middle := float64(i) * width
		bin := plotter.HistogramBin{Min: middle - width/2, Max: middle + width/2, Weight: math.Sqrt(n / max(1, all))}
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
	Title, Axis string
	Settings    []string
	Rows        []Row
}

// A Row has the figures of a limiter, one for each setting; [measure.Unknown] where there is none.
type Row struct {
	Name   string
	Values []float64
}

// Measured reports whether any figure of the panel is known.
func (p Panel) Measured() bool {
	return slices.ContainsFunc(p.Rows, func(r Row) bool { return slices.ContainsFunc(r.Values, measure.Known) })
}

// Draw sets off the limiter named ours, and its variants. It fails if there are no panels.
func (b Bars) Draw(ours string) (Picture, error) {
	var panels []*plot.Plot
	for i, panel := range b.Panels {
		one := plot.New()
		one.Title.Text, one.Y.Label.Text, one.Y.Min = panel.Title, panel.Axis, 0
		one.NominalX(panel.Settings...)
		one.Legend.Top, one.Legend.XOffs, one.Legend.Padding = true, vg.Points(120), vg.Points(3)
		one.Legend.TextStyle.Font.Size = vg.Points(9)
		width := vg.Points(460 / float64(max(1, len(panel.Settings)*(len(panel.Rows)+1))))
		for j, r := range panel.Rows {
			values := make(plotter.Values, len(r.Values))
			for k, v := range r.Values {
				if measure.Known(v) {
					values[k] = v
				}
			}
			chart, err := plotter.NewBarChart(values, width)
			if err != nil {
				return Picture{}, err
			}
			chart.Color, chart.LineStyle.Width = colourOf(r.Name, ours, j), 0
			chart.Offset = width * vg.Length(float64(j)-float64(len(panel.Rows)-1)/2)
			one.Add(chart)
			if i == 0 {
				one.Legend.Add(r.Name+"  ", chart) // Browsers have wider letters than the library reckons with.
			}
		}
		panels = append(panels, one)
	}
	return picture(b.Name, b.Title, b.Caption, panels, 150)
}

// picture puts plots one below the other, each of the height, under a title.
func picture(name, title, caption string, plots []*plot.Plot, height float64) (Picture, error) {
	if len(plots) == 0 {
		return Picture{}, fmt.Errorf("the picture %q has nothing to show", name)
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
	return Picture{Name: name, SVG: svg.Bytes()}, err
}

// ofTime writes a time given in nanoseconds.
func ofTime(ns float64) string {
	for _, unit := range []string{"ns", "µs", "ms"} {
		if ns < 999.5 {
			return fmt.Sprintf("%.3g %s", ns, unit)
		}
		ns /= 1000
	}
	return fmt.Sprintf("%.3g s", ns)
}
