package report

import (
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// A column of a table.
type column struct {
	title string
	right bool // aligned to the right, as numbers are
	least int  // how narrow it may become if the terminal is; 0: it keeps its width
	order int  // of those that are left out where that is not enough, the first; 0: it stays
}

// A cell is text in a colour.
type cell struct {
	text  string
	style style
}

func plain(text string) cell { return cell{text: text} }

// A style is the code of a text style. What it tells is told by the text as well.
type style string

const (
	bold  style = "1"
	faint style = "2"
	red   style = "31"
)

// A Terminal is where text goes.
type Terminal struct {
	Out    io.Writer
	Width  int // 0: lines may be of any length
	Colour bool
}

func (t *Terminal) styled(s style, text string) string {
	if !t.Colour || s == "" || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

const gap = 2 // blanks between two columns

// table returns rows below titles, each column as wide as its longest cell. If that is
// wider than the terminal, columns that allow it are cut, and if need be left out.
func (t *Terminal) table(columns []column, rows [][]cell) string {
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = utf8.RuneCountInString(c.title)
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i].text))
		}
	}
	if !t.fit(columns, widths) {
		if i := firstToGo(columns); i >= 0 {
			return t.table(without(columns, i), withoutCell(rows, i))
		}
	}
	titles := make([]cell, len(columns))
	for i, c := range columns {
		titles[i] = cell{c.title, faint}
	}
	var b strings.Builder
	for _, row := range append([][]cell{titles}, rows...) {
		line := ""
		for i, c := range row {
			text := cut(c.text, widths[i])
			blanks := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if i > 0 {
				line += strings.Repeat(" ", gap)
			}
			if columns[i].right {
				line += blanks + t.styled(c.style, text)
			} else {
				line += t.styled(c.style, text) + blanks
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// fit makes the widest columns narrower, as far as they allow it, until all fit. It
// reports whether they do.
func (t *Terminal) fit(columns []column, widths []int) bool {
	total := gap * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for t.Width > 0 && total > t.Width {
		widest := -1
		for i, c := range columns {
			if c.least > 0 && widths[i] > c.least && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return false
		}
		widths[widest]--
		total--
	}
	return true
}

// firstToGo returns the index of the column that is left out first, or -1.
func firstToGo(columns []column) int {
	first := -1
	for i, c := range columns {
		if c.order > 0 && (first < 0 || c.order < columns[first].order) {
			first = i
		}
	}
	return first
}

// without returns a slice without the element with an index.
func without[E any](all []E, i int) []E { return slices.Concat(all[:i], all[i+1:]) }

func withoutCell(rows [][]cell, i int) [][]cell {
	var some [][]cell
	for _, row := range rows {
		some = append(some, without(row, i))
	}
	return some
}

// cut returns a text of at most so many characters.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}
