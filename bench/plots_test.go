package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A madeUp contestant has figures of about the manner of a real one. Its
// spacings are how many there are in some bins of 1/40 of an interval.
type madeUp struct {
	name            string
	spacings        map[int]int
	median, bunched float64    // µs, %
	reached         [4]float64 // by load
	served          [2]float64 // by how callers give up
}

var (
	madeUpLoads = [4]string{idle, "loops", "allocators", "pieces"}
	madeUpWays  = [2]string{"cancel", "deadline"}

	madeUpNeedle = map[int]int{39: 4600, 40: 4700, 38: 120, 41: 140, 32: 6, 52: 5, 119: 1}
	madeUpHeap   = map[int]int{0: 8600, 1: 300, 4: 90, 24: 12, 40: 40, 88: 20, 119: 900}
	madeUpTimer  = map[int]int{0: 1100, 35: 600, 37: 1500, 39: 2400, 41: 2300, 44: 900, 76: 500, 82: 500}

	madeUps = []madeUp{
		{"shaper", madeUpNeedle, 7.3, 0.31, [4]float64{1, 0.99, 1.004, 0.97}, [2]float64{100.4, 99.8}},
		{"x/time/rate", madeUpHeap, 98.6, 90.3, [4]float64{1, 1.003, 1, 1.01}, [2]float64{8.4, 100.2}},
		{"shaper-coarse", madeUpTimer, 130, 9, [4]float64{1, 0.99, 1.004, 0.97}, [2]float64{100.4, 99.8}},
		{"uber ratelimit", madeUpTimer, 140, 11, [4]float64{0.999, 1, 0.99, 0.98}, [2]float64{4.2, 4.1}},
		{"uber without slack", madeUpTimer, 140, 11, [4]float64{0.999, 1, 0.99, 0.98}, [2]float64{4.2, 4.1}},
		{"failsafe smooth", madeUpTimer, 138, 9, [4]float64{0.999, 1, 0.99, 0.98}, [2]float64{8, 100}},
		{"channel + ticker", madeUpTimer, 1112, 19.4, [4]float64{0.92, 0.114, 0.63, 0.3}, [2]float64{52, 61}},
	}
)

func madeUpSpacings() []spacingResult {
	var results []spacingResult
	for _, m := range madeUps {
		histogram, departures := make([]int, 120), 0
		for bin, n := range m.spacings {
			histogram[bin] = n
			departures += n
		}
		for i, load := range madeUpLoads {
			rates := []float64{100, 1000, 10_000}
			if load == idle {
				rates = []float64{10, 100, 1000, 10_000, 100_000}
			}
			for _, rate := range rates {
				results = append(results, spacingResult{
					Contestant: m.name, Rate: rate, Waiters: 100, Load: load, RateReached: m.reached[i],
					ErrorP50: m.median, Bunched: m.bunched, Histogram: histogram, Departures: departures,
				})
			}
		}
	}
	return results
}

func madeUpGoodput() []goodputResult {
	var results []goodputResult
	for _, m := range madeUps {
		for i, way := range madeUpWays {
			for _, offered := range []float64{111, 125, 200} {
				results = append(results, goodputResult{Contestant: m.name, Offered: offered, By: way, Served: m.served[i]})
			}
		}
	}
	return results
}

const madeUpCaption = "linux/amd64, 2 × AMD EPYC 9R14, go1.26.8. Medians of 5 interleaved rounds: go run ./bench"

func madeUpPlots() []plot {
	return []plot{
		spacingPlot(madeUpSpacings(), 1000, 100, "shaper", madeUpCaption),
		ratePlot(madeUpSpacings(), 100, "shaper", madeUpCaption),
		goodputPlot(madeUpGoodput(), "shaper", madeUpCaption),
		keysPlot(keysResultsOf(83, 53, 150), "shaper", madeUpCaption),
	}
}

// svgElement is what the tests look at of an element.
type svgElement struct {
	name  string
	attrs map[string]string
	text  string
}

// readSVG fails the test if the picture is not well-formed XML.
func readSVG(t *testing.T, p plot) []svgElement {
	t.Helper()
	var all []svgElement
	decoder := xml.NewDecoder(bytes.NewReader(p.SVG))
	for {
		piece, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoErrorf(t, err, "%s.svg", p.Name)
		switch piece := piece.(type) {
		case xml.StartElement:
			e := svgElement{name: piece.Name.Local, attrs: map[string]string{}}
			for _, a := range piece.Attr {
				e.attrs[a.Name.Local] = a.Value
			}
			all = append(all, e)
		case xml.CharData:
			if len(all) > 0 {
				all[len(all)-1].text += strings.TrimSpace(string(piece))
			}
		}
	}
}

func texts(elements []svgElement) []string {
	var all []string
	for _, e := range elements {
		if e.name == "text" {
			all = append(all, e.text)
		}
	}
	return all
}

func TestPlotsAreWellFormedAndTheSameEachTime(t *testing.T) {
	again := madeUpPlots()
	for i, p := range madeUpPlots() {
		require.Equal(t, again[i], p)
		elements := readSVG(t, p)
		require.Equal(t, "svg", elements[0].name)
		require.NotEmpty(t, elements[0].attrs["aria-label"])
		require.NotContains(t, string(p.SVG), "NaN")
		require.NotContains(t, string(p.SVG), "Inf")
		require.Contains(t, strings.Join(texts(elements), " "), madeUpCaption, "the caption tells where it was measured")
	}
}

func TestNothingOfAPlotLiesOutsideOrIsTooSmallToRead(t *testing.T) {
	numbers := regexp.MustCompile(`-?\d+(\.\d+)?`)
	for _, p := range madeUpPlots() {
		elements := readSVG(t, p)
		height, err := strconv.ParseFloat(elements[0].attrs["height"], 64)
		require.NoError(t, err)
		for _, e := range elements[1:] {
			for attr, most := range map[string]float64{"x": pictureWidth, "y": height, "width": pictureWidth, "height": height} {
				if text, ok := e.attrs[attr]; ok {
					v, err := strconv.ParseFloat(text, 64)
					require.NoError(t, err)
					require.Truef(t, v >= 0 && v <= most, "%s: %s of %v", p.Name, attr, e)
				}
			}
			for _, text := range numbers.FindAllString(e.attrs["d"], -1) {
				v, err := strconv.ParseFloat(text, 64)
				require.NoError(t, err)
				require.Truef(t, v >= 0 && v <= max(pictureWidth, height), "%s: %v", p.Name, e)
			}
			if size, ok := e.attrs["font-size"]; ok {
				v, err := strconv.ParseFloat(size, 64)
				require.NoError(t, err)
				require.GreaterOrEqual(t, v, 11.0)
			}
		}
	}
}

func TestSpacingPlotShowsItsRateOnly(t *testing.T) {
	results := madeUpSpacings()
	for i := range results {
		if results[i].Rate != 1000 || results[i].Load != idle {
			results[i].ErrorP50 = 777
		}
	}
	other := results[2]
	other.Waiters, other.ErrorP50 = 10_000, 777
	p := spacingPlot(append(results, other), 1000, 100, "shaper", "")
	require.Equal(t, "spacing-1000", p.Name)
	said := texts(readSVG(t, p))
	require.NotContains(t, said, "777 µs")
	for _, m := range madeUps {
		require.Contains(t, said, m.name)
	}
	require.Subset(t, said, []string{"7.3 µs", "0.3 %", "98.6 µs", "90 %", "1.11 ms", "19 %"})
}

func TestBarsHaveTheSquareRootOfTheirShareAndTheirCentreAtTheInterval(t *testing.T) {
	x := func(intervals float64) float64 { return 400 * intervals }
	histogram := make([]int, 120)
	histogram[39], histogram[40] = 32, 32 // 0.975 to 1.025
	bunch, even := bars(histogram, 0, x, histogramHeight)
	require.Empty(t, bunch)
	require.Equal(t, "M390 46V0H410V46Z", even, "all in one bar")

	histogram[0], histogram[119] = 32, 32
	bunch, even = bars(histogram, 0, x, histogramHeight)
	require.Equal(t, "M0 46V23H10V46Z", bunch, "a quarter is half as high")
	require.Equal(t, "M390 46V13.5H410V46ZM1190 46V23H1200V46Z", even)

	histogram[119] = 0
	_, even = bars(histogram, 128, x, histogramHeight)
	require.Equal(t, "M390 46V13.5H410V46ZM1190 46V23H1200V46Z", even, "those beyond stand with the last")

	bunch, even = bars(make([]int, 120), 0, x, 0)
	require.Empty(t, bunch+even)
	bunch, even = bars(nil, 5, x, 0)
	require.Empty(t, bunch+even)
}

func TestColumnsAreAsHighAsTheirPercentage(t *testing.T) {
	p := goodputPlot([]goodputResult{
		{Contestant: "theirs", Offered: 200, By: "cancel", Served: 50},
		{Contestant: "ours-too", Offered: 200, By: "cancel", Served: 103},
		{Contestant: "theirs", Offered: 111, By: "cancel", Served: 94.6},
		{Contestant: "theirs", Offered: 111, By: "deadline", Served: 0},
	}, "ours", "")
	elements := readSVG(t, p)
	heights := map[string][]string{}
	for _, e := range elements {
		if e.name == "rect" {
			heights[e.attrs["fill"]] = append(heights[e.attrs["fill"]], e.attrs["height"])
		}
	}
	require.Equal(t, []string{"34"}, heights[oursColour], "above 100 % it is full")
	require.Equal(t, []string{"32.2"}, heights[rivalColour], "it is written 95")
	require.Equal(t, []string{"17", "0"}, heights[badColour])
	require.Len(t, heights[trackColour], 4)
	said := texts(elements)
	require.Subset(t, said, []string{"103", "95", "50", "0", "111 %", "200 %"})
	require.Less(t, slices.Index(said, "ours-too"), slices.Index(said, "theirs"), "ours stands first")
	missing := 0
	for _, text := range said {
		if text == none {
			missing++
		}
	}
	require.Equal(t, 2, missing, "what was not measured is no 0")
}

func TestPlotsBearWhatIsMissingOrStrange(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	strange := `<&"> ` + "\x00"
	spacings := []spacingResult{
		{Contestant: strange, Rate: 1000, Waiters: 100, Load: idle, RateReached: nan, ErrorP50: inf, Bunched: nan},
		{Contestant: "b", Rate: 1000, Waiters: 100, Load: strange, RateReached: math.Inf(-1), Histogram: []int{-1, 0, 3}},
	}
	for _, p := range []plot{
		spacingPlot(spacings, 1000, 100, strange, strange),
		spacingPlot(nil, 1000, 100, "", ""),
		ratePlot(spacings, 100, strange, strange),
		ratePlot(nil, 100, "", ""),
		goodputPlot([]goodputResult{{Contestant: strange, Offered: nan, By: strange, Served: nan}}, "", strange),
		goodputPlot(nil, "", ""),
	} {
		readSVG(t, p)
		require.NotContains(t, string(p.SVG), "NaN")
		require.NotContains(t, string(p.SVG), "Inf")
	}
}

func TestFiguresInPlots(t *testing.T) {
	for us, want := range map[float64]string{
		0: "0 ns", 0.29: "290 ns", 0.9996: "1 µs", 7.314: "7.31 µs", 98.55: "98.6 µs", 999.4: "999 µs",
		999.6: "1 ms", 1112: "1.11 ms", 2_500_000: "2.5 s", math.NaN(): none,
	} {
		require.Equal(t, want, plotTime(us))
	}
	for v, want := range map[float64]string{0: "0 %", 0.31: "0.3 %", 9.94: "9.9 %", 9.96: "10 %", 99.6: "100 %", math.Inf(1): none} {
		require.Equal(t, want, plotPercent(v))
	}
	for v, want := range map[float64]string{0.5: "0.5", 10: "10", 1000: "1,000", 1_000_000: "1,000,000", 1500.5: "1500.5"} {
		require.Equal(t, want, plotRate(v))
	}
	for v, want := range map[float64]string{10: "10/s", 1000: "1k/s", 1500: "1500/s", 100_000: "100k/s"} {
		require.Equal(t, want, shortRate(v))
	}
}

func TestCoordinatesAreShort(t *testing.T) {
	for v, want := range map[float64]string{1: "1", 2.25: "2.3", -0.04: "0", math.NaN(): "0", math.Inf(-1): "0"} {
		require.Equal(t, want, coordinate(v))
	}
}

func TestWordsWrapAtTheirWidth(t *testing.T) {
	require.Equal(t, []string{"a bc", "def", "g"}, wrapWords(" a bc\n def g", 4))
	require.Equal(t, []string{"longer", "than"}, wrapWords("longer than", 4))
	require.Empty(t, wrapWords("", 4))
}
