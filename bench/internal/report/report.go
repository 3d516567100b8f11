// Package report shows measurements to people, as tables and pictures, and to programs, as
// benchmark lines that benchstat reads.
package report

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/klauspost/cpuid/v2"
	"github.com/prometheus/procfs"
	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchmath"
	"golang.org/x/perf/benchunit"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"example.com/leakybucket/bench/internal/measure"
)

// A Report has the results of an experiment.
type Report struct {
	Name, What string // of the experiment
	Note       string // how it was measured, and its pitfalls
	Lines      []Line // which the tables show, and the goals look at
	Goals      []Goal
	Pictures   []Picture
}

// A Picture is written as SVG under its name.
type Picture struct {
	Name string // of the file, without .svg
	SVG  []byte
}

// A Line is one measurement in one round. All rounds of a measurement have the same name,
// such as "Spacing/limiter=shaper/rate=1000", so that benchstat takes them for samples of
// one benchmark.
type Line struct {
	Name    string
	Figures []Figure
}

// A Figure is a value with its unit.
type Figure struct {
	Value float64
	Unit  string
}

// Lines returns a line for each round. A round is a struct: of its fields, and the fields of
// structs in it, each float64, int or duration with a tag such as `unit:"err-p50-ns"` is a figure of
// the line, unless it is not known.
func Lines[T any](name string, rounds []T) []Line {
	var lines []Line
	for _, round := range rounds {
		if figures := figuresOf(reflect.ValueOf(round)); len(figures) > 0 {
			lines = append(lines, Line{name, figures})
		}
	}
	return lines
}

func figuresOf(round reflect.Value) []Figure {
	var all []Figure
	for i := range round.NumField() {
		field, value := round.Type().Field(i), 0.0
		switch field.Type.Kind() {
		case reflect.Struct:
			all = append(all, figuresOf(round.Field(i))...)
			continue
		case reflect.Float64:
			value = round.Field(i).Float()
		case reflect.Int, reflect.Int64:
			value = float64(round.Field(i).Int())
		}
		if unit := field.Tag.Get("unit"); unit != "" && measure.Known(value) {
			all = append(all, Figure{value, unit})
		}
	}
	return all
}

// summed are figures of lines by name and unit, with a space between them.
type summed map[string]float64

// sumUp returns the median of the rounds of each figure, or the largest if it is a bound that
// must hold in every round: a burst, or the allocations of a call.
func sumUp(lines []Line) summed {
	samples := map[string][]float64{}
	for _, l := range lines {
		for _, f := range l.Figures {
			samples[l.Name+" "+f.Unit] = append(samples[l.Name+" "+f.Unit], f.Value)
		}
	}
	figures := summed{}
	for name, values := range samples {
		s := benchmath.NewSample(values, &benchmath.DefaultThresholds)
		figures[name] = benchmath.AssumeNothing.Summary(s, 0.95).Center
		if strings.HasSuffix(name, " slot-burst-ns") || strings.HasSuffix(name, " allocs/call") {
			figures[name] = s.Values[len(s.Values)-1] // They are sorted.
		}
	}
	return figures
}

// Median returns the median of a figure over the rounds of a measurement. It is [measure.Unknown] if
// no line has it.
func Median(lines []Line, name, unit string) float64 {
	if figure, ok := sumUp(lines)[name+" "+unit]; ok {
		return figure
	}
	return measure.Unknown
}

// Grouped writes a whole number with commas between its thousands.
func Grouped(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// PerSecond writes a rate.
func PerSecond(rate float64) string { return Grouped(int(rate)) + "/s" }

// The files of a run, beside its pictures.
const (
	TablesFile = "results.md"
	LinesFile  = "results.bench.txt"
)

// Results are all that a run has found.
type Results struct {
	Date    time.Time
	Command string // that measures the same again
	Machine Machine
	Reports []Report
}

// Tables returns the report for a document, and for a terminal.
func (r Report) Tables() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s: %s\n", r.Name, r.What)
	if r.Note != "" {
		b.WriteString("\n" + r.Note + "\n")
	}
	for _, t := range tables(r.Lines) {
		b.WriteString("\n" + t.markdown())
	}
	return b.String()
}

// Goals returns how the goals of all experiments fare, under a heading, and "" if nothing
// was measured that has one.
func (r Results) Goals() string {
	t := table{columns: []string{"goal", "wanted", "found", "reached"}}
	for _, one := range r.Reports {
		figures := sumUp(one.Lines)
		for _, g := range one.Goals {
			if row, measured := g.judge(figures); measured {
				t.rows = append(t.rows, row)
			}
		}
	}
	if len(t.rows) == 0 {
		return ""
	}
	return "\n## Goals\n\n" + t.markdown()
}

// Write puts the tables, the benchmark lines and the pictures into a folder. It returns the
// names of the files. Of pictures with the same name the last one counts: it shows all of
// the earlier one, and more.
func (r Results) Write(folder string) (names []string, err error) {
	var failed []error
	written := map[string]bool{}
	put := func(name string, content []byte) {
		failed = append(failed, os.WriteFile(filepath.Join(folder, name), content, 0o644))
		if !written[name] {
			names, written[name] = append(names, name), true
		}
	}
	put(TablesFile, []byte(r.markdown()))
	put(LinesFile, []byte(r.lines()))
	for _, one := range r.Reports {
		for _, picture := range one.Pictures {
			put(picture.Name+".svg", picture.SVG)
		}
	}
	return names, errors.Join(failed...)
}

// markdown returns the results for a document.
func (r Results) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Results of `%s`\n\n%s: %s.\n\n", r.Command, r.Date.Format(time.DateOnly), r.Machine)
	fmt.Fprintf(&b, "Medians of the rounds. Each round by itself is in [%s](%s); `benchstat old new` compares two such files.\n", LinesFile, LinesFile)
	b.WriteString(r.Goals())
	for _, one := range r.Reports {
		b.WriteString(one.Tables())
	}
	return b.String()
}

// lines returns the results in Go's benchmark format. An iteration is a whole measurement, and
// so each line has one; its own time tells nothing and is left out.
func (r Results) lines() string {
	var b strings.Builder
	system, architecture, _ := strings.Cut(r.Machine.System, "/")
	fmt.Fprintf(&b, "goos: %s\ngoarch: %s\npkg: example.com/leakybucket/bench\ncpu: %s\n", system, architecture, r.Machine.Processor)
	// What differs from run to run is a comment: benchstat does not compare lines below headers
	// that differ.
	fmt.Fprintf(&b, "# %s\n# %s: %s\n\n", r.Command, r.Date.Format(time.DateOnly), r.Machine)
	for _, one := range r.Reports {
		for _, line := range one.Lines {
			fmt.Fprintf(&b, "Benchmark%s 1", line.Name)
			for _, f := range line.Figures {
				fmt.Fprintf(&b, " %.6g %s", f.Value, f.Unit)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// A Machine has the properties on which the figures depend beside the code. Nothing in it
// distinguishes one machine from another of its kind.
type Machine struct {
	System, Processor  string
	CPUs               int
	Memory, Kernel, Go string
	GOMAXPROCS         int
}

// ThisMachine returns the one that this process runs on.
func ThisMachine() Machine {
	m := Machine{
		System:     runtime.GOOS + "/" + runtime.GOARCH,
		Processor:  cmp.Or(cpuid.CPU.BrandName, "unknown"),
		CPUs:       runtime.NumCPU(),
		Go:         runtime.Version(),
		GOMAXPROCS: runtime.GOMAXPROCS(0),
	}
	// Only Linux tells the rest.
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if memory, err := fs.Meminfo(); err == nil && memory.MemTotalBytes != nil {
			m.Memory = fmt.Sprintf("%.1f GiB", float64(*memory.MemTotalBytes)/(1<<30))
		}
		if release, err := fs.SysctlStrings("kernel/osrelease"); err == nil {
			m.Kernel = strings.Join(release, " ")
		}
	}
	return m
}

func (m Machine) String() string {
	known := []string{fmt.Sprintf("%s, %s (%d CPUs)", m.System, m.Processor, m.CPUs)}
	if m.Memory != "" {
		known = append(known, m.Memory)
	}
	if m.Kernel != "" {
		known = append(known, "kernel "+m.Kernel)
	}
	return strings.Join(append(known, fmt.Sprintf("%s, GOMAXPROCS %d", m.Go, m.GOMAXPROCS)), ", ")
}

// A table has the lines of one benchmark: a row for each of its names, and columns for what
// differs in the names and for the figures.
type table struct {
	title   string
	columns []string
	rows    [][]string
}

// tables returns a table for each benchmark, in the order of the lines.
func tables(lines []Line) []table {
	var all []table
	for _, l := range lines {
		if base := baseOf(l.Name); !slices.ContainsFunc(all, func(t table) bool { return t.title == base }) {
			of := slices.DeleteFunc(slices.Clone(lines), func(l Line) bool { return baseOf(l.Name) != base })
			all = append(all, tableOf(base, of))
		}
	}
	return all
}

func baseOf(name string) string {
	base, _ := benchfmt.Name(name).Parts()
	return string(base)
}

// settings returns the settings in a name, such as rate=1000, by key.
func settings(name string) (keys []string, values map[string]string) {
	_, parts := benchfmt.Name(name).Parts()
	values = map[string]string{}
	for _, part := range parts {
		key, value, _ := strings.Cut(strings.TrimPrefix(string(part), "/"), "=")
		keys, values[key] = append(keys, key), value
	}
	return keys, values
}

func tableOf(base string, lines []Line) table {
	var names, keys, units []string
	rounds := map[string]int{}
	for _, l := range lines {
		rounds[l.Name]++
		if rounds[l.Name] > 1 {
			continue
		}
		names = append(names, l.Name)
		of, _ := settings(l.Name)
		keys = add(keys, of...)
		for _, f := range l.Figures {
			units = add(units, f.Unit)
		}
	}
	t := table{title: base, columns: slices.Clone(keys)}
	for _, unit := range units {
		_, tidy := benchunit.Tidy(1, unit)
		t.columns = append(t.columns, tidy)
	}
	t.columns = append(t.columns, "rounds")
	figures := sumUp(lines)
	for _, name := range names {
		_, values := settings(name)
		var row []string
		for _, key := range keys {
			row = append(row, values[key])
		}
		for _, unit := range units {
			if figure, ok := figures[name+" "+unit]; ok {
				row = append(row, written(figure, unit))
			} else {
				row = append(row, "–")
			}
		}
		t.rows = append(t.rows, append(row, fmt.Sprint(rounds[name])))
	}
	return t
}

// add appends those words that are not there yet.
func add(words []string, more ...string) []string {
	for _, word := range more {
		if !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return words
}

// written returns a figure for people. Times have a prefix, such as 4.31µs.
func written(x float64, unit string) string {
	value, tidy := benchunit.Tidy(x, unit)
	if first, _, _ := strings.Cut(tidy, "/"); first == "sec" || strings.HasSuffix(first, "-sec") {
		return benchunit.Scale(value, benchunit.Decimal) + "s"
	}
	return number(x)
}

// number writes four significant digits, and whole numbers with commas.
func number(x float64) string {
	if x >= 1000 || x <= -1000 {
		return Grouped(int(x))
	}
	return fmt.Sprintf("%.4g", x)
}

// markdown returns the table for a document, and for a terminal.
func (t table) markdown() string {
	var b strings.Builder
	if t.title != "" {
		b.WriteString("### " + t.title + "\n\n")
	}
	w := tabwriter.NewWriter(&b, 3, 0, 1, ' ', 0)
	rule := slices.Repeat([]string{"---"}, len(t.columns))
	for _, row := range slices.Concat([][]string{t.columns, rule}, t.rows) {
		fmt.Fprintf(w, "| %s\t|\n", strings.Join(row, "\t| "))
	}
	_ = w.Flush() // A Builder takes everything.
	return b.String()
}

// A Goal is a bound that the project sets for one of our figures, as such or against a rival's. Of
// several figures of ours the worst counts, and of several of rivals the best.
type Goal struct {
	What   string
	Ours   string   // a pattern for [path.Match] of a line's name and a unit, with a space between them
	Theirs []string // likewise, and each must have been measured; none: our figure is judged as such
	Least  float64  // the bounds of our figure, or of its ratio to theirs
	Most   float64  // 0: none
}

// judge returns the row of a table. It has none if nothing of ours was measured.
func (g Goal) judge(figures summed) (row []string, measured bool) {
	worst := slices.Max[[]float64]
	theirBest := slices.Min[[]float64]
	want := fmt.Sprintf("at most %.4g", g.Most)
	if g.Most == 0 {
		worst, theirBest = slices.Min, slices.Max
		want = fmt.Sprintf("at least %.4g", g.Least)
	} else if g.Least != 0 {
		want = fmt.Sprintf("%.4g to %.4g", g.Least, g.Most)
	}
	ours := figures.matching(g.Ours)
	if len(ours) == 0 {
		return nil, false
	}
	judged := worst(ours)
	if g.Least != 0 && g.Most != 0 { // The one that is farthest off is worst.
		middle := (g.Least + g.Most) / 2
		judged = slices.MaxFunc(ours, func(a, b float64) int {
			return int(math.Copysign(1, math.Abs(a-middle)-math.Abs(b-middle)))
		})
	}
	got := number(judged)
	if len(g.Theirs) > 0 {
		want += " times theirs"
		var theirs []float64
		for _, pattern := range g.Theirs {
			found := figures.matching(pattern)
			if len(found) == 0 {
				return []string{g.What, want, "a rival was not measured", "?"}, true
			}
			theirs = append(theirs, found...)
		}
		best := theirBest(theirs)
		got = fmt.Sprintf("%s against %s", number(judged), number(best))
		if judged != 0 || best != 0 {
			judged /= best
			got = fmt.Sprintf("%.3g (%s)", judged, got)
		}
	}
	reached := "yes"
	if judged < g.Least || g.Most != 0 && judged > g.Most*(1+1e-9) { // Some are sums of floats.
		reached = "NO"
	}
	return []string{g.What, want, got, reached}, true
}

// matching returns the figures whose names match a pattern.
func (s summed) matching(pattern string) (found []float64) {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if match, err := path.Match(pattern, name); err != nil {
			panic(err) // All patterns are the experiments' own.
		} else if match {
			found = append(found, s[name])
		}
	}
	return found
}

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
