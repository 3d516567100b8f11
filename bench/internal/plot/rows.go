package plot

import (
	"slices"
	"strings"
)

// isOurs reports whether a limiter is ours, or a variant of it: its name is then
// ours, a dash and more.
func isOurs(name, ours string) bool {
	return name == ours || ours != "" && strings.HasPrefix(name, ours+"-")
}

// oursFirst moves what is ours to the front, and leaves the order otherwise.
func oursFirst[T any](rows []T, ours string, name func(T) string) {
	slices.SortStableFunc(rows, func(a, b T) int {
		switch mine := isOurs(name(a), ours); {
		case mine == isOurs(name(b), ours):
			return 0
		case mine:
			return -1
		}
		return 1
	})
}

// rowStyle returns how a limiter's name is set, and the colour of what is drawn
// for it.
func rowStyle(name, ours string) (set textStyle, fill string) {
	if !isOurs(name, ours) {
		return textStyle{size: 13}, rivalColour
	}
	return textStyle{size: 13, colour: oursColour, bold: name == ours}, oursColour
}
