package house_test

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// committedRuns are what the last full run of `go run ./bench` has written, and those of
// `go run ./bench -only shared -out docs/bench/shared` and of the same with proxies, which
// need a quiet machine for processes beside servers. No figure is in two of them.
var committedRuns = []string{
	"../../docs/bench/results.bench.txt", "../../docs/bench/shared/results.bench.txt", "../../docs/bench/proxies/results.bench.txt",
}

// measured matches a figure of a document, its unit, and in an HTML comment, which
// readers do not see, where it is found: the name of a benchmark and its unit, and
// for a ratio two of them with " / " between.
var measured = regexp.MustCompile(`([\d.,]+)( ?[^\d\s|<]*) ?<!-- = ([^>]+) -->`)

// below matches a paragraph with figures in its sentences, and the comment below it that says where
// they are found: for each the figure as it is shown, with its unit, and its source, as in
// "0.12 = Name unit; 4.3 µs = Name unit".
var below = regexp.MustCompile(`(?m)((?:^[^\n]+\n)+)\n?^<!-- figures: ([^>]+) -->$`)

// shownAs matches what such a comment says of one figure.
var shownAs = regexp.MustCompile(`^([\d.,]+)( ?\S*) = (.+)$`)

// rateOf matches a rate at which something was measured.
var rateOf = regexp.MustCompile(`\d[\d,]*/s\b`)

// Each figure in README and docs that somebody measured is the one of a committed
// run, rounded to the digits that are shown. SHAPER_UPDATE_FIGURES=1 puts the
// figures of a new run in.
func TestFiguresAreThoseOfTheCommittedRun(t *testing.T) {
	figures := map[string]float64{}
	for _, file := range committedRuns {
		for name, value := range figuresOf(t, file) {
			require.NotContains(t, figures, name, "%s and another committed run have it", file)
			figures[name] = value
		}
	}
	update := os.Getenv("SHAPER_UPDATE_FIGURES") != ""
	found := 0
	for _, document := range documents(t) {
		text := read(t, document)
		fresh := measured.ReplaceAllStringFunc(text, func(figure string) string {
			found++
			m := measured.FindStringSubmatch(figure)
			want := lookUp(t, figures, m[3]) / perUnit(m[2], m[3])
			if update {
				return strings.Replace(figure, m[1], rounded(want), 1)
			}
			shown, digits := parseFigure(t, m[1])
			require.InDeltaf(t, want, shown, 0.500001*math.Pow10(-digits), "%s: %q; the committed run has %.4g%s", document, figure, want, m[2])
			return figure
		})
		fresh = below.ReplaceAllStringFunc(fresh, func(paragraph string) string {
			m := below.FindStringSubmatch(paragraph)
			for entry := range strings.SplitSeq(m[2], "; ") {
				found++
				figure := shownAs.FindStringSubmatch(strings.TrimSpace(entry))
				require.NotNilf(t, figure, "%s: %q", document, entry)
				want := lookUp(t, figures, figure[3]) / perUnit(figure[2], figure[3])
				require.Regexpf(t, `(?:^|[^\d.])`+regexp.QuoteMeta(figure[1])+`(?:[^\d]|$)`, m[1], "%s: the figure stands in the paragraph", document)
				if update {
					paragraph = strings.ReplaceAll(paragraph, figure[1]+figure[2], rounded(want)+figure[2])
					continue
				}
				shown, digits := parseFigure(t, figure[1])
				require.InDeltaf(t, want, shown, 0.500001*math.Pow10(-digits), "%s: %q; the committed run has %.4g%s", document, entry, want, figure[2])
			}
			return paragraph
		})
		if update && fresh != text {
			require.NoError(t, os.WriteFile(document, []byte(fresh), 0o644))
		}
	}
	require.Greater(t, found, 20, "documents quote figures")
}

// A table of a benchmark has no figure that is not checked.
func TestTablesOfBenchmarksAreChecked(t *testing.T) {
	// The section ends at the heading, or with the document.
	for document, end := range map[string]string{"../../README.md": "Try it", "../../docs/benchmarks.md": "", "../../docs/shared.md": "Watch it"} {
		_, section, ok := strings.Cut(read(t, document), "# How it compares\n")
		require.True(t, ok, document)
		if end != "" {
			section, _, ok = strings.Cut(section, "\n## "+end+"\n")
			require.True(t, ok, document)
		}
		lines := strings.Split(section, "\n")
		for i, line := range lines[:len(lines)-1] {
			cells := strings.Split(line, "|")
			if len(cells) < 4 || strings.HasPrefix(line, "|---") || strings.HasPrefix(lines[i+1], "|---") {
				continue
			}
			for _, cell := range cells[2:] { // The first one says what is measured.
				rest := rateOf.ReplaceAllString(measured.ReplaceAllString(cell, ""), "")
				require.NotRegexpf(t, `\d`, rest, "%s: a figure without its source in %q", document, line)
			}
		}
	}
}

// figuresOf returns the median of every figure in a file of benchmark results, by the
// name of its benchmark and its unit, with a space between them; and with "lowest " or
// "highest " before that name, what its lowest and its highest round have.
func figuresOf(t *testing.T, file string) map[string]float64 {
	t.Helper()
	samples, figures := map[string][]float64{}, map[string]float64{}
	for line := range strings.Lines(read(t, file)) {
		words := strings.Fields(line) // Benchmark… 1 value unit value unit …
		if len(words) < 4 || !strings.HasPrefix(words[0], "Benchmark") {
			continue
		}
		for i := 2; i+1 < len(words); i += 2 {
			value, err := strconv.ParseFloat(words[i], 64)
			require.NoError(t, err, line)
			name := strings.TrimPrefix(words[0], "Benchmark") + " " + words[i+1]
			samples[name] = append(samples[name], value)
		}
	}
	for name, of := range samples {
		slices.Sort(of)
		figures[name] = (of[(len(of)-1)/2] + of[len(of)/2]) / 2
		figures["lowest "+name], figures["highest "+name] = of[0], of[len(of)-1]
	}
	return figures
}

// lookUp returns a figure, or the ratio of two.
func lookUp(t *testing.T, figures map[string]float64, source string) float64 {
	t.Helper()
	of := func(name string) float64 {
		value, ok := figures[name]
		require.Truef(t, ok, "the committed runs have no figure %q", name)
		return value
	}
	if a, b, isRatio := strings.Cut(source, " / "); isRatio {
		return of(a) / of(b)
	}
	return of(source)
}

// perUnit is how much of the figure's unit in the run one of its unit in the document
// is: times are in nanoseconds there.
func perUnit(shown, source string) float64 {
	unit := source[strings.LastIndex(source, " ")+1:] // The name may have "ns" in it.
	if strings.Contains(source, " / ") || !strings.Contains(unit, "ns") {
		return 1
	}
	return map[string]float64{"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[strings.TrimSpace(shown)]
}

// parseFigure returns a figure and how many decimals it has.
func parseFigure(t *testing.T, text string) (value float64, decimals int) {
	t.Helper()
	text = strings.ReplaceAll(text, ",", "")
	value, err := strconv.ParseFloat(text, 64)
	require.NoError(t, err)
	if _, fraction, ok := strings.Cut(text, "."); ok {
		decimals = len(fraction)
	}
	return value, decimals
}

// rounded shows a figure with two digits, and whole from 10 on.
func rounded(value float64) string {
	switch {
	case value >= 9.95:
		whole := strconv.FormatFloat(math.Round(value), 'f', -1, 64)
		for i := len(whole) - 3; i > 0; i -= 3 {
			whole = whole[:i] + "," + whole[i:]
		}
		return whole
	case value >= 0.995 || value == 0:
		return fmt.Sprintf("%.1f", value)
	}
	return fmt.Sprintf("%.2g", value)
}
