// Package report shows measurements to people, as tables and pictures, and to programs, as
// benchmark lines that benchstat reads.
package report

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/cpuid/v2"
	"github.com/prometheus/procfs"
	"golang.org/x/perf/benchmath"

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
	Name      string
	Figures   []Figure
	Histogram []int // for a picture, if the line has one
}

// A Figure is a value with its unit.
type Figure struct {
	Value float64
	Unit  string
}

// LineOf returns the line of a Figure or of another struct: of its fields, and the fields of structs in it, each float64, int or
// duration with a tag such as `unit:"err-p50-ns"` is a figure, unless it is not known.
func LineOf(name string, found any) Line {
	if one, is := found.(Figure); is {
		return Line{Name: name, Figures: []Figure{one}}
	}
	line := Line{Name: name, Figures: figuresOf(reflect.ValueOf(found))}
	if spacing, has := found.(interface{ Histogram() []int }); has {
		line.Histogram = spacing.Histogram()
	}
	return line
}

func figuresOf(found reflect.Value) []Figure {
	var all []Figure
	for i := range found.NumField() {
		field, value := found.Type().Field(i), 0.0
		switch field.Type.Kind() {
		case reflect.Struct:
			all = append(all, figuresOf(found.Field(i))...)
			continue
		case reflect.Float64:
			value = found.Field(i).Float()
		case reflect.Int, reflect.Int64:
			value = float64(found.Field(i).Int())
		}
		if unit := field.Tag.Get("unit"); unit != "" && measure.Known(value) {
			all = append(all, Figure{value, unit})
		}
	}
	return all
}

// Beyond adds to lines the difference between one of their figures and the same figure of a bare case, such as a goroutine
// without a limiter, in the same round. of returns the name of the bare case of a line, and a divisor for the difference.
func Beyond(lines []Line, unit, as string, of func(name string) (bare string, per float64)) {
	rounds := map[string][]float64{}
	for _, l := range lines {
		rounds[l.Name] = append(rounds[l.Name], l.figure(unit))
	}
	seen := map[string]int{}
	for i, l := range lines {
		round := seen[l.Name]
		seen[l.Name]++
		bare, per := of(l.Name)
		if round >= len(rounds[bare]) {
			continue
		}
		if beyond := (l.figure(unit) - rounds[bare][round]) / per; measure.Known(beyond) {
			lines[i].Figures = append(l.Figures, Figure{beyond, as})
		}
	}
}

// figure returns the figure with that unit, which is [measure.Unknown] if there is none.
func (l Line) figure(unit string) float64 {
	at := slices.IndexFunc(l.Figures, func(f Figure) bool { return f.Unit == unit })
	if at < 0 {
		return measure.Unknown
	}
	return l.Figures[at].Value
}

// summed are figures of lines by name and unit, with a space between them.
type summed map[string]float64

// sumUp returns the median of the rounds of each figure, or the largest of the allocations of a call,
// which must hold in every round.
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
		if strings.HasSuffix(name, " allocs/call") {
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

// PerSecond writes a rate.
func PerSecond(rate float64) string { return number(rate) + "/s" }

// A Goal is a bound that the project sets for our figures, each as such or against rivals' figures.
type Goal struct {
	What   string   // may have groups of Ours in it, such as $1
	Ours   string   // a regular expression for a whole name of a line and a unit, with a space between them
	Theirs []string // names with units, which may have groups of Ours in them: the best counts. None: ours is judged as such.
	Least  float64  // the bounds of our figure, or of its ratio to theirs
	Most   float64  // 0: none
}

// judge returns a row of a table for each figure of ours that was measured.
func (g Goal) judge(figures summed) (rows [][]string) {
	ours := regexp.MustCompile("^" + g.Ours + "$")
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		if groups := ours.FindStringSubmatchIndex(name); groups != nil {
			expand := func(text string) string { return string(ours.ExpandString(nil, text, name, groups)) }
			rows = append(rows, append([]string{expand(g.What)}, g.judgeOne(figures[name], figures, expand)...))
		}
	}
	return rows
}

// judgeOne returns the bound, the finding and whether the bound is kept.
func (g Goal) judgeOne(ours float64, figures summed, expand func(string) string) []string {
	best, want := slices.Min[[]float64], fmt.Sprintf("at most %.4g", g.Most)
	if g.Most == 0 {
		best, want = slices.Max, fmt.Sprintf("at least %.4g", g.Least)
	} else if g.Least != 0 {
		want = fmt.Sprintf("%.4g to %.4g", g.Least, g.Most)
	}
	got, judged := number(ours), ours
	if len(g.Theirs) > 0 {
		want += " times theirs"
		var theirs []float64
		for _, name := range g.Theirs {
			figure, measured := figures[expand(name)]
			if !measured {
				return []string{want, "a rival was not measured", "?"}
			}
			theirs = append(theirs, figure)
		}
		rival := best(theirs)
		got = fmt.Sprintf("%s against %s", number(ours), number(rival))
		if ours != 0 || rival != 0 {
			judged = ours / rival
			got = fmt.Sprintf("%.3g (%s)", judged, got)
		}
	}
	if judged < g.Least || g.Most != 0 && judged > g.Most*(1+1e-9) { // Some are sums of floats.
		return []string{want, got, "NO"}
	}
	return []string{want, got, "yes"}
}

// The files of a run, beside its pictures.
const (
	TablesFile = "results.md"
	LinesFile  = "results.bench.txt"
)

// Results are all that a run has found.
type Results struct {
	Date    time.Time
	Command string // that measures the same again
	Machine string
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
			t.rows = append(t.rows, g.judge(figures)...)
		}
	}
	if len(t.rows) == 0 {
		return ""
	}
	return "\n## Goals\n\n" + t.markdown()
}

// Write puts the tables, the benchmark lines and the pictures into a folder. It returns the
// names of the files.
func (r Results) Write(folder string) (names []string, err error) {
	var failed []error
	put := func(name string, content []byte) {
		names = append(names, name)
		failed = append(failed, os.WriteFile(filepath.Join(folder, name), content, 0o644))
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
	fmt.Fprintf(&b, "goos: %s\ngoarch: %s\npkg: example.com/leakybucket/bench\ncpu: %s\n", runtime.GOOS, runtime.GOARCH, processor)
	// Everything that differs from run to run is a comment: benchstat does not compare lines below
	// headers that differ.
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

var processor = cmp.Or(cpuid.CPU.BrandName, "unknown")

// ThisMachine returns the properties of this machine on which the figures depend beside the code. Nothing in it
// distinguishes one machine from another of its kind.
func ThisMachine() string {
	known := []string{fmt.Sprintf("%s/%s, %s (%d CPUs)", runtime.GOOS, runtime.GOARCH, processor, runtime.NumCPU())}
	// Only Linux tells these.
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if memory, err := fs.Meminfo(); err == nil && memory.MemTotalBytes != nil {
			known = append(known, fmt.Sprintf("%.1f GiB", float64(*memory.MemTotalBytes)/(1<<30)))
		}
		if release, err := fs.SysctlStrings("kernel/osrelease"); err == nil {
			known = append(known, "kernel "+strings.Join(release, " "))
		}
	}
	return strings.Join(append(known, fmt.Sprintf("%s, GOMAXPROCS %d", runtime.Version(), runtime.GOMAXPROCS(0))), ", ")
}
