package house_test

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a newcomer meets in package shaper. At 71eb3d8 it was 38 types, 40 functions, 98 methods and 2,354 lines of
// documentation. What is added from then on is for few, and stands in laterNames; the documentation has the same bound
// with it.
const (
	mostTypes     = 22
	mostFunctions = 39
	mostMethods   = 84
	mostDocLines  = 1600
)

// laterNames are the names that levels of several units brought.
var laterNames = strings.Fields("Meter MeterStats WithMeters WithCosts WaitEach ReserveEach AtMostEach SetMeters Meters")

func TestThePublicFaceStaysSmall(t *testing.T) {
	t.Parallel()
	count := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^(type|func|method) (?:\([^)]*\) )?(\w+)`).FindAllStringSubmatch(read(t, "../../shaper/testdata/api.txt"), -1) {
		if !slices.Contains(laterNames, m[2]) {
			count[m[1]]++
		}
	}
	lines := strings.Count(string(goCommand(t, root, "doc", "-all", "./shaper")), "\n")
	t.Logf("%v, %d lines of go doc -all", count, lines)
	require.LessOrEqual(t, count["type"], mostTypes, "types")
	require.LessOrEqual(t, count["func"], mostFunctions, "functions")
	require.LessOrEqual(t, count["method"], mostMethods, "methods")
	require.LessOrEqual(t, lines, mostDocLines, "lines of go doc -all ./shaper: say each thing once, at the method that it is about")
}

// The guarantees are read in one go. Their details stand at the methods.
func TestEachGuaranteeHasFourLinesAtMost(t *testing.T) {
	t.Parallel()
	found := regexp.MustCompile(`(?m)^ (\d+)\. ([A-Z][a-z ]+)\..*\n(?:    \S.*\n)*`).FindAllStringSubmatch(string(goCommand(t, root, "doc", "./shaper")), -1)
	require.Len(t, found, 11)
	for i, m := range found {
		require.Equal(t, strconv.Itoa(i+1), m[1])
		require.LessOrEqual(t, strings.Count(m[0], "\n"), 4, m[2])
	}
}

// A page of the documents answers a question, and README and CHANGELOG are pages. At 71eb3d8 these were 34,700 words, 160
// and 208 lines.
func TestTheDocumentsStayShort(t *testing.T) {
	words := 0
	for _, document := range documents(t) {
		if text := read(t, document); strings.HasPrefix(document, "../../docs/") {
			words += len(strings.Fields(text))
		}
	}
	t.Logf("%d words", words)
	require.LessOrEqual(t, words, 24_000, "words in docs/*.md: say each thing once, where it belongs")
	require.LessOrEqual(t, strings.Count(read(t, "../../README.md"), "\n"), 150, "lines of README.md")
	require.LessOrEqual(t, strings.Count(read(t, "../../CHANGELOG.md"), "\n"), 60, "lines of CHANGELOG.md")
}
