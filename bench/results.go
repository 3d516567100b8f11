package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// results are all that a run has found.
type results struct {
	Date    time.Time
	Command string // that measures the same again
	Machine machine
	Parts   []partResult
}

type partResult struct {
	name string
	report
}

// goals are those of all parts, as a table.
func (r results) goals() table {
	t := table{Title: "Goals", Columns: []string{"goal", "wanted", "found", "reached"}}
	for _, p := range r.Parts {
		for _, g := range p.Goals {
			reached := "yes"
			if !g.Reached {
				reached = "NO"
			}
			t.Rows = append(t.Rows, []string{g.What, g.Want, g.Got, reached})
		}
	}
	return t
}

// write puts results.json, results.md and the pictures into a folder, and
// returns how many pictures there are.
func (r results) write(folder string) (drawn int, err error) {
	data, err := r.json()
	if err != nil {
		return 0, err
	}
	put := func(name string, content []byte) error {
		return os.WriteFile(filepath.Join(folder, name), content, 0o644)
	}
	errs := []error{put("results.json", data), put("results.md", []byte(r.markdown()))}
	pictures := r.pictures()
	for _, picture := range pictures {
		errs = append(errs, put(picture.Name+".svg", picture.SVG))
	}
	return len(pictures), errors.Join(errs...)
}

// json is the results with one measurement on each line, in an order that does
// not change, so that two runs can be compared line by line.
func (r results) json() ([]byte, error) {
	var b bytes.Buffer
	var failed error
	put := func(format string, values ...any) {
		texts := make([]any, len(values))
		for i, v := range values {
			text, err := json.Marshal(v)
			failed = errors.Join(failed, err)
			texts[i] = text
		}
		fmt.Fprintf(&b, format, texts...)
	}
	put("{\n\"date\": %s,\n\"command\": %s,\n\"machine\": %s,\n\"parts\": [", r.Date, r.Command, r.Machine)
	goals := []any{}
	for i, p := range r.Parts {
		data, err := linesOf(p.Data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		put(comma(i)+"\n{\"name\": %s, \"data\": ", p.name)
		b.Write(data)
		b.WriteString("}")
		for _, g := range p.Goals {
			goals = append(goals, g)
		}
	}
	b.WriteString("\n],\n\"goals\": ")
	lines, err := linesOf(goals)
	b.Write(lines)
	b.WriteString("\n}\n")
	return b.Bytes(), errors.Join(failed, err)
}

// linesOf is a value as JSON; where it is an array, each element has a line.
func linesOf(value any) ([]byte, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var elements []json.RawMessage
	if json.Unmarshal(data, &elements) != nil || len(elements) == 0 {
		return data, nil // Not an array, or none to break up.
	}
	var b bytes.Buffer
	b.WriteString("[")
	for i, element := range elements {
		b.WriteString(comma(i) + "\n")
		b.Write(element)
	}
	b.WriteString("\n]")
	return b.Bytes(), nil
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

// markdown is the results for a document.
func (r results) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Results of `%s`\n\n%s: %s.\n", r.Command, r.Date.Format(time.DateOnly), r.Machine)
	tables := []table{}
	if goals := r.goals(); len(goals.Rows) > 0 {
		tables = append(tables, goals)
	}
	for _, p := range r.Parts {
		tables = append(tables, p.Tables...)
	}
	for _, t := range tables {
		b.WriteString("\n" + t.markdown())
	}
	return b.String()
}
