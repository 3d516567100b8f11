package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
)

// samples are pictures with figures of about the manner of real ones.
func samples() []report.Picture {
	const caption = "linux/amd64, 2 × AMD EPYC 9R14, go1.26.8"
	names := []string{"x/time/rate", "shaper", "shaper-coarse", "uber ratelimit", "uber without slack", "channel + ticker"}
	spacings := Spacings{Rate: 1000, Caption: caption}
	reached := Percentages{Name: "rate", Title: "Is the rate reached?", What: strings.Repeat("What it shows. ", 20), Axis: "set rate", Caption: caption}
	bars := Bars{Name: "keys", Title: "What does a key cost?", What: "Shorter is better.", Caption: caption, Panels: []BarPanel{
		{"call without a key", "ns", Time}, {"call, 1,000 keys", "ns", Time}, {"memory of a key", "B", Percent},
	}}
	for i, name := range names {
		bins := make([]int, 120)
		for bin, n := range map[int]int{0: 1100, 35: 600, 37: 1500, 39: 2400, 41: 2300, 44: 900, 76: 500, 119: 500} {
			bins[bin] = n + i
		}
		spacings.Rows = append(spacings.Rows, spread(name, 98_600*float64(i+1), 90.3/float64(i+1), bins, 10_000))
		for _, panel := range []string{"idle", "busy: loops", "busy: allocators", "busy: pieces"} {
			for _, rate := range []float64{10, 100, 1000, 10_000} {
				reached.Columns = append(reached.Columns, Column{name, panel, rate, ShortRate(rate), 100.4 - 15*float64(i)})
			}
		}
		bars.Rows = append(bars.Rows, BarRow{name, "Wait", []float64{math.NaN(), 83 * float64(i+1), 150}})
	}
	return []report.Picture{spacings.Draw("shaper"), reached.Draw("shaper"), bars.Draw("shaper")}
}

func spread(name string, errorP50, bunched float64, histogram []int, departures int) SpacingsRow {
	return SpacingsRow{name, measure.Spread{Spacing: measure.Spacing{ErrorP50: errorP50, Bunched: bunched}, Departures: departures, Histogram: histogram}}
}

// svgElement is what the tests look at of an element.
type svgElement struct {
	name  string
	attrs map[string]string
	text  string
}

// readSVG fails the test if the picture is not well-formed XML.
func readSVG(t *testing.T, p report.Picture) []svgElement {
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

func TestPicturesAreWellFormedAndTheSameEachTime(t *testing.T) {
	again := samples()
	for i, p := range samples() {
		require.Equal(t, again[i], p)
		elements := readSVG(t, p)
		require.Equal(t, "svg", elements[0].name)
		require.NotEmpty(t, elements[0].attrs["aria-label"])
		require.NotContains(t, string(p.SVG), "NaN")
		require.NotContains(t, string(p.SVG), "Inf")
		require.Contains(t, strings.Join(texts(elements), " "), "AMD EPYC 9R14", "the caption tells where it was measured")
	}
}

func TestNothingOfAPictureLiesOutsideOrIsTooSmallToRead(t *testing.T) {
	numbers := regexp.MustCompile(`-?\d+(\.\d+)?`)
	for _, p := range samples() {
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

func TestSpacingsHaveTheirFiguresBesideThem(t *testing.T) {
	p := Spacings{Rate: 1000, Rows: []SpacingsRow{
		spread("theirs", 1_112_000, 19.4, nil, 0), spread("ours", 7300, 0.31, nil, 0),
	}}.Draw("ours")
	require.Equal(t, "spacing-1000", p.Name)
	said := texts(readSVG(t, p))
	require.Subset(t, said, []string{"7.30 µs", "0.3 %", "1.11 ms", "19 %"})
	require.Less(t, slices.Index(said, "ours"), slices.Index(said, "theirs"), "ours stands first")
}

func TestHistogramsHaveTheSquareRootOfTheirShareAndTheirCentreAtTheInterval(t *testing.T) {
	x := func(intervals float64) float64 { return 400 * intervals }
	histogram := make([]int, 120)
	histogram[39], histogram[40] = 32, 32 // 0.975 to 1.025
	bunch, even := bars(histogram, 0, 3, x, histogramHeight)
	require.Empty(t, bunch)
	require.Equal(t, "M390 46V0H410V46Z", even, "all in one bar")

	histogram[0], histogram[119] = 32, 32
	bunch, even = bars(histogram, 0, 3, x, histogramHeight)
	require.Equal(t, "M0 46V23H10V46Z", bunch, "a quarter is half as high")
	require.Equal(t, "M390 46V13.5H410V46ZM1190 46V23H1200V46Z", even)

	histogram[119] = 0
	_, even = bars(histogram, 128, 3, x, histogramHeight)
	require.Equal(t, "M390 46V13.5H410V46ZM1190 46V23H1200V46Z", even, "those beyond stand with the last")

	bunch, even = bars(make([]int, 120), 0, 3, x, 0)
	require.Empty(t, bunch+even)
	bunch, even = bars(nil, 5, 3, x, 0)
	require.Empty(t, bunch+even)
}

func TestColumnsAreAsHighAsTheirPercentage(t *testing.T) {
	p := Percentages{Columns: []Column{
		{"theirs", "cancel", 200, "200 %", 50},
		{"ours-too", "cancel", 200, "200 %", 103},
		{"theirs", "cancel", 111, "111 %", 94.6},
		{"theirs", "deadline", 111, "111 %", 0},
	}}.Draw("ours")
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

func TestBarsOfOneUnitCompare(t *testing.T) {
	p := Bars{Panels: []BarPanel{{"few", "ns", Time}, {"many", "ns", Time}, {"memory", "B", Percent}}, Rows: []BarRow{
		{"theirs", "", []float64{100, 400, 10}}, {"ours", "Wait", []float64{50, math.NaN(), 5}},
	}}.Draw("ours")
	elements := readSVG(t, p)
	widths := map[string][]float64{}
	for _, e := range elements {
		if e.name == "rect" {
			width, err := strconv.ParseFloat(e.attrs["width"], 64)
			require.NoError(t, err)
			widths[e.attrs["fill"]] = append(widths[e.attrs["fill"]], width)
		}
	}
	theirs, ours := widths[rivalColour], widths[oursColour]
	require.Len(t, theirs, 3)
	require.Len(t, ours, 2)
	require.InDelta(t, theirs[1]/4, theirs[0], 0.1, "few and many have one scale")
	require.InDelta(t, theirs[1]/8, ours[0], 0.1)
	require.InDelta(t, theirs[2], theirs[1], 0.1, "each unit fills its panel")
	said := texts(elements)
	require.Subset(t, said, []string{"400 ns", "50.0 ns", "Wait", none, "10 %"})
}

func TestPicturesBearWhatIsMissingOrStrange(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	strange := `<&"> ` + "\x00"
	for i, p := range []report.Picture{
		Spacings{}.Draw(""),
		Spacings{Rate: 1000, Caption: strange, Rows: []SpacingsRow{spread(strange, inf, nan, nil, 0), spread("b", nan, 5, []int{-1, 0, 3}, 1)}}.Draw(strange),
		Percentages{}.Draw(""),
		Percentages{Title: strange, Columns: []Column{{strange, strange, nan, strange, nan}, {"b", "c", 1, "d", math.Inf(-1)}}}.Draw(strange),
		Bars{}.Draw(""),
		Bars{Title: strange, Panels: []BarPanel{{strange, strange, Time}}, Rows: []BarRow{{strange, strange, []float64{inf}}, {"b", "", []float64{-1}}}}.Draw(strange),
	} {
		readSVG(t, p)
		require.NotContains(t, string(p.SVG), "NaN", fmt.Sprint(i))
		require.NotContains(t, string(p.SVG), "Inf", fmt.Sprint(i))
	}
}

func TestFiguresInPictures(t *testing.T) {
	for ns, want := range map[float64]string{
		0: "0 ns", 290: "290 ns", 999.6: "1.00 µs", 7314: "7.31 µs", 98_560: "98.6 µs", 999_400: "999 µs",
		999_600: "1.00 ms", 1_112_000: "1.11 ms", 2.5e9: "2.50 s", math.NaN(): none,
	} {
		require.Equal(t, want, Time(ns))
	}
	for v, want := range map[float64]string{0: "0 %", 0.31: "0.3 %", 0.25: "0.3 %", 96.5: "97 %", 9.94: "9.9 %", 9.96: "10 %", 99.6: "100 %", math.Inf(1): none} {
		require.Equal(t, want, Percent(v))
	}
	for v, want := range map[float64]string{10: "10/s", 1000: "1k/s", 1500: "1500/s", 100_000: "100k/s"} {
		require.Equal(t, want, ShortRate(v))
	}
}

func TestCoordinatesAreShort(t *testing.T) {
	for v, want := range map[float64]string{1: "1", 2.25: "2.3", -0.04: "0", math.NaN(): "0", math.Inf(-1): "0"} {
		require.Equal(t, want, coordinate(v))
	}
}
