package report

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"example.com/leakybucket/bench/internal/measure"
)

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
		Processor:  "unknown",
		CPUs:       runtime.NumCPU(),
		Go:         runtime.Version(),
		GOMAXPROCS: runtime.GOMAXPROCS(0),
	}
	if name := measure.ProcField("/proc/cpuinfo", "model name"); name != "" {
		m.Processor = name
	}
	var kib int
	if _, err := fmt.Sscan(measure.ProcField("/proc/meminfo", "MemTotal"), &kib); err == nil {
		m.Memory = fmt.Sprintf("%.1f GiB", float64(kib)/(1<<20))
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(release))
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
