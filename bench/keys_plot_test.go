package main

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func keysPoints(contestant, call string, byKeys map[int]float64) []keysResult {
	var results []keysResult
	for keys, ns := range byKeys {
		results = append(results, keysResult{Contestant: contestant, Call: call, Keys: keys, ByCallers: []admissionTiming{{1, ns, 0}}})
	}
	return results
}

func TestKeysPlotHasACurveForEachCallOnLogarithmicScales(t *testing.T) {
	p := keysPlot(append(
		keysPoints("theirs", "Take", map[int]float64{0: 5, 1: 7, 1_000: 100, 10_000: 100, 100_000: 1_000}),
		keysPoints("ours", "Wait", map[int]float64{1_000: 1_000, 100_000: 10_000})...), "ours", "")
	require.Equal(t, "keys", p.Name)
	elements := readSVG(t, p)
	curves := map[string]string{}
	for _, e := range elements {
		if e.name == "path" && e.attrs["fill"] == "none" {
			curves[e.attrs["stroke"]] = e.attrs["d"]
		}
	}
	require.Len(t, curves, 2)
	numbers := regexp.MustCompile(`\d+(\.\d+)?`).FindAllString(curves[rivalColour], -1)
	require.Len(t, numbers, 6)
	var x1, y1, x2, y2, x3, y3 float64
	for i, to := range []*float64{&x1, &y1, &x2, &y2, &x3, &y3} {
		v, err := strconv.ParseFloat(numbers[i], 64)
		require.NoError(t, err)
		*to = v
	}
	require.InDelta(t, x2-x1, x3-x2, 0.2, "each power of ten is as wide")
	require.Equal(t, y1, y2, "as slow with ten times the keys")
	require.InDelta(t, curvesHeight/2, y2-y3, 0.2, "ten times as slow, of 100 ns to 10 µs in all")
	said := texts(elements)
	require.Subset(t, said, []string{"theirs Take", "ours Wait", "100 ns", "10 µs", "1,000", "10,000", "100,000"})
	require.NotContains(t, said, "1", "one key is for contention")
}

func TestKeysPlotBearsWhatIsMissingOrStrange(t *testing.T) {
	for i, results := range [][]keysResult{
		nil,
		{{Contestant: "c", Call: "Take", Keys: 1_000}},
		keysPoints(`<&"> `, "Take", map[int]float64{1_000: math.NaN(), 10_000: math.Inf(1), 100_000: 0, 1_000_000: -1}),
		keysPoints("b", "Take", map[int]float64{1_000: 50}),
	} {
		p := keysPlot(results, `<&"> `, `<&"> `)
		curves := 0
		for _, text := range texts(readSVG(t, p)) {
			if strings.HasSuffix(text, " Take") {
				curves++
			}
		}
		require.Equal(t, i/3, curves, "but for the last there is nothing to draw")
		require.NotContains(t, string(p.SVG), "NaN")
		require.NotContains(t, string(p.SVG), "Inf")
	}
}

func TestTicksAreRoundAndEncloseAll(t *testing.T) {
	require.Equal(t, []float64{10, 20, 50, 100, 200}, keysTicks(17, 130))
	require.Equal(t, []float64{20, 50, 100}, keysTicks(20, 100))
	require.Equal(t, []float64{50, 100}, keysTicks(50, 50))
	require.Len(t, keysTicks(math.Inf(1), 0), 4)
}

func TestLabelsDoNotLieUponOneAnother(t *testing.T) {
	places := func(at ...float64) (moved []float64) {
		var curves []keysCurve
		for _, y := range at {
			curves = append(curves, keysCurve{at: y})
		}
		spreadLabels(curves, 100, 200)
		for _, c := range curves {
			moved = append(moved, c.at)
		}
		return moved
	}
	require.Equal(t, []float64{120, 180}, places(180, 120), "they stay where there is room")
	require.Equal(t, []float64{120, 135, 150}, places(120, 121, 120))
	require.Equal(t, []float64{170, 185, 200}, places(199, 200, 200), "and in the field")
	require.Equal(t, []float64{100, 115}, places(90, 90))
	require.Len(t, places(1, 2, 3, 4, 5, 6, 7, 8, 9), 9)
}
