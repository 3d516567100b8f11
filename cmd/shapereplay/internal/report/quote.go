package report

import (
	"strconv"
	"strings"
	"unicode"
)

// quoted returns a text as it may be shown on a terminal. A client writes part of its key,
// so it may try to write to the terminal of whoever reads the report.
func quoted(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.QuoteToGraphic(text)
	}
	return text
}
