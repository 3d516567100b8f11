package report

import (
	"strings"
	"unicode/utf8"
)

// A Table is printed with its columns aligned. Without columns it is only a
// title with a note.
type Table struct {
	Title   string
	Note    string // how it was measured, and what to beware of
	Columns []string
	Rows    [][]string
}

// Markdown returns the table for a document, and for a terminal.
func (t Table) Markdown() string {
	widths := t.widths()
	rule := make([]string, len(widths))
	for i, width := range widths {
		rule[i] = strings.Repeat("-", max(3, width))
		if t.right(i) {
			rule[i] = rule[i][1:] + ":"
		}
	}
	rows := t.rows()
	rows = append([][]string{rows[0], rule}, rows[1:]...)
	var b strings.Builder
	b.WriteString("### " + t.Title + "\n\n")
	if t.Note != "" {
		b.WriteString(strings.Join(Wrap(t.Note, 100), "\n") + "\n\n")
	}
	if len(t.Columns) == 0 {
		rows = nil
	}
	for _, row := range rows {
		b.WriteString("|")
		for i, cell := range row {
			b.WriteString(" " + t.aligned(i, strings.ReplaceAll(cell, "|", `\|`), widths[i]) + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// rows returns those of the table after its heading; each has all the columns.
func (t Table) rows() [][]string {
	rows := [][]string{t.Columns}
	for _, row := range t.Rows {
		full := make([]string, len(t.Columns))
		copy(full, row)
		rows = append(rows, full)
	}
	return rows
}

func (t Table) widths() []int {
	widths := make([]int, len(t.Columns))
	for _, row := range t.rows() {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

func (t Table) aligned(column int, cell string, width int) string {
	room := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(cell)))
	if t.right(column) {
		return room + cell
	}
	return cell + room
}

// right reports whether a column holds figures: one at least of its cells begins
// as a number does, and none is several words or begins as a word.
func (t Table) right(column int) bool {
	figures := false
	for _, row := range t.Rows {
		if column >= len(row) || row[column] == "" {
			continue
		}
		cell := strings.TrimPrefix(row[column], "< ")
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
