package main

import (
	"strings"
	"unicode/utf8"
)

// text is the table for a terminal: its columns are aligned, figures to the
// right.
func (t table) text() string {
	widths := t.widths()
	var b strings.Builder
	b.WriteString(t.Title + "\n")
	if t.Note != "" {
		b.WriteString(wrapped(t.Note, 100) + "\n")
	}
	for _, row := range t.rows() {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString("  " + t.aligned(i, cell, widths[i]))
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// markdown is the table for a document.
func (t table) markdown() string {
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
		b.WriteString(t.Note + "\n\n")
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

// rows are those of the table with its heading; each has all the columns.
func (t table) rows() [][]string {
	rows := [][]string{t.Columns}
	for _, row := range t.Rows {
		full := make([]string, len(t.Columns))
		copy(full, row)
		rows = append(rows, full)
	}
	return rows
}

func (t table) widths() []int {
	widths := make([]int, len(t.Columns))
	for _, row := range t.rows() {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

func (t table) aligned(column int, cell string, width int) string {
	room := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(cell)))
	if t.right(column) {
		return room + cell
	}
	return cell + room
}

// right says whether a column holds figures: one at least of its cells begins
// as a number does, and none is several words or begins as a word.
func (t table) right(column int) bool {
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

// wrapped breaks text between words, into lines of at most so many characters
// where its words allow.
func wrapped(text string, width int) string {
	return strings.Join(wrapWords(text, float64(width)), "\n")
}
