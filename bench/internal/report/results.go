package report

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
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

// Goals returns those of all experiments under a heading, and "" if there are none.
func (r Results) Goals() string {
	t := Table{Columns: []string{"goal", "wanted", "found", "reached"}}
	for _, one := range r.Reports {
		for _, g := range one.Goals {
			reached := "yes"
			if !g.Reached {
				reached = "NO"
			}
			t.Rows = append(t.Rows, []string{g.What, g.Want, g.Got, reached})
		}
	}
	if len(t.Rows) == 0 {
		return ""
	}
	return "\n## Goals\n\n" + t.Markdown()
}

// Write puts the tables, the benchmark lines and the pictures into a folder. It
// returns the names of the files. Of pictures with the same name the last one
// counts: it shows what the earlier one does, and more.
func (r Results) Write(folder string) (names []string, err error) {
	var failed []error
	put := func(name string, content []byte) {
		failed = append(failed, os.WriteFile(filepath.Join(folder, name), content, 0o644))
		names = append(names, name)
	}
	put(TablesFile, []byte(r.markdown()))
	put(LinesFile, []byte(r.lines()))
	pictures := map[string][]byte{}
	var order []string
	for _, one := range r.Reports {
		for _, picture := range one.Pictures {
			if pictures[picture.Name] == nil {
				order = append(order, picture.Name)
			}
			pictures[picture.Name] = picture.SVG
		}
	}
	for _, name := range order {
		put(name+".svg", pictures[name])
	}
	return names, errors.Join(failed...)
}

// markdown returns the results for a document.
func (r Results) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Results of `%s`\n\n%s: %s.\n\n", r.Command, r.Date.Format(time.DateOnly), r.Machine)
	fmt.Fprintf(&b, "All figures are in [%s](%s) too, each round by itself; `benchstat old new` compares two such files.\n", LinesFile, LinesFile)
	b.WriteString(r.Goals())
	for _, one := range r.Reports {
		fmt.Fprintf(&b, "\n## %s: %s\n", one.Name, one.What)
		for _, t := range one.Tables {
			b.WriteString("\n" + t.Markdown())
		}
	}
	return b.String()
}

// lines returns the results in Go's benchmark format. An iteration is a whole
// measurement, and so each line has one; its own time tells nothing and is left
// out.
func (r Results) lines() string {
	var b strings.Builder
	system, architecture, _ := strings.Cut(r.Machine.System, "/")
	fmt.Fprintf(&b, "goos: %s\ngoarch: %s\npkg: example.com/leakybucket/bench\ncpu: %s\n", system, architecture, r.Machine.Processor)
	// What differs from run to run is a comment: benchstat does not compare lines
	// below headers that differ.
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
