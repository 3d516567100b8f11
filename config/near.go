package config

import (
	"slices"
	"strings"
)

// nearest returns the one of names that word is probably a misspelling of, or "".
func nearest(word string, names []string) string {
	best, least := "", 3 // Two slips are a misspelling, three are another word.
	for _, name := range names {
		if len(word) > len(name)+2 {
			continue // It may be a megabyte long.
		}
		// Of a word of four letters half must be right.
		if d := distance(strings.ToLower(word), name); d < least && d <= len(name)/2 {
			best, least = name, d
		}
	}
	return best
}

// distance returns how many single letters must be inserted, deleted, replaced, or
// swapped with their neighbour to turn a into b: the optimal string alignment distance.
func distance(a, b string) int {
	from, to := []rune(a), []rune(b)
	// Each row holds the distances of a beginning of a to all beginnings of b.
	var before, last []int
	row := make([]int, len(to)+1)
	for j := range row {
		row[j] = j
	}
	for i, x := range from {
		before, last, row = last, row, make([]int, len(to)+1)
		row[0] = i + 1
		for j, y := range to {
			replace := last[j]
			if x != y {
				replace++
			}
			row[j+1] = slices.Min([]int{last[j+1] + 1, row[j] + 1, replace})
			if i > 0 && j > 0 && x == to[j-1] && from[i-1] == y {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(to)]
}
