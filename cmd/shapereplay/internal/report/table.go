package report

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// Table returns rows below titles. A column whose title begins with a blank has numbers,
// which are aligned to the right.
func Table(titles []string, rows [][]string) string {
	rows = append([][]string{slices.Clone(titles)}, rows...)
	for i, title := range titles {
		trimmed := strings.TrimPrefix(title, " ")
		rows[0][i] = trimmed
		if trimmed == title {
			continue
		}
		// A tabwriter aligns all of its columns alike.
		width := 0
		for _, row := range rows {
			width = max(width, utf8.RuneCountInString(row[i]))
		}
		for _, row := range rows {
			row[i] = fmt.Sprintf("%*s", width, row[i])
		}
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.TrimRight(strings.Join(row, "\t"), " \t"))
	}
	w.Flush()
	return b.String()
}

// cut returns a text of at most so many characters.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}
