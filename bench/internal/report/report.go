// Package report shows measurements to people, as tables and pictures, and to programs, as
// benchmark lines that benchstat reads.
package report

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/cpuid/v2"
	"github.com/prometheus/procfs"
	"golang.org/x/perf/benchmath"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

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

// LineOf returns the line of a struct: of its fields, and the fields of structs in it, each float64, int or
// duration with a tag such as `unit:"err-p50-ns"` is a figure, unless it is not known.
func LineOf(name string, found any) Line {
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

// Beyond adds to lines by how much one of their figures is beyond the same figure of a bare case, such as a goroutine
// without a limiter, in the same round. of returns the name of the bare case of a line, and by what the difference is divided.
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

// Grouped writes a whole number with commas between its thousands.
func Grouped(n int) string { return message.NewPrinter(language.English).Sprint(n) }

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
			t.rows = append(t.rows, g.judge(figures)...)
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
