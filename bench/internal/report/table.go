package report

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// A Table is printed with its columns aligned. Its title and its note may be missing;
// without columns it is only those.
type Table struct {
	Title   string
	Note    string // how it was measured, and what to beware of
	Columns []string
	Rows    [][]string
}

// Markdown returns the table for a document, and for a terminal.
func (t Table) Markdown() string {
	var b strings.Builder
	if t.Title != "" {
		b.WriteString("### " + t.Title + "\n\n")
	}
	if t.Note != "" {
		b.WriteString(strings.Join(Wrap(t.Note, 100), "\n") + "\n\n")
	}
	if len(t.Columns) == 0 {
		return b.String()
	}
	lines := make([]strings.Builder, 2+len(t.Rows)) // The second is the rule.
	for i, heading := range t.Columns {
		cells, width := []string{heading}, max(3, utf8.RuneCountInString(heading))
		for _, row := range t.Rows {
			cells = append(cells, strings.ReplaceAll(row[i], "|", `\|`))
			width = max(width, utf8.RuneCountInString(row[i]))
		}
		right := areFigures(cells[1:])
		rule := strings.Repeat("-", width)
		if right {
			rule = rule[1:] + ":"
		}
		for j, cell := range slices.Insert(cells, 1, rule) {
			room := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(cell)))
			if right {
				lines[j].WriteString("| " + room + cell + " ")
			} else {
				lines[j].WriteString("| " + cell + room + " ")
			}
		}
	}
	for i := range lines {
		b.WriteString(lines[i].String() + "|\n")
	}
	return b.String()
}

// areFigures reports whether the cells of a column are figures: one at least begins as
// a number does, and none is several words or begins as a word.
func areFigures(cells []string) bool {
	figures := false
	for _, cell := range cells {
		cell = strings.TrimPrefix(cell, "< ")
		if cell == "" {
			continue
		}
		switch first := cell[0]; {
		case strings.Contains(cell, " "):
			return false
		case first >= '0' && first <= '9':
			figures = true
		case first != '-':
			return false
		}
	}
	return figures
}

// Wrap breaks text between words, into lines of at most so many letters where
// its words allow.
func Wrap(text string, letters float64) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && float64(len([]rune(line))+1+len([]rune(word))) > letters {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
