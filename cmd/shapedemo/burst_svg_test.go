package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// elements parses an SVG to its end, and counts its elements.
func elements(t *testing.T, text string) map[string]int {
	t.Helper()
	count := map[string]int{}
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return count
		}
		require.NoError(t, err)
		if e, ok := token.(xml.StartElement); ok {
			count[e.Name.Local]++
		}
	}
}

func TestDrawingHasAMarkForEachRequest(t *testing.T) {
	_, shaped := trials()
	svg := drawing(meaningOf(limitsOf(t, "20/s depth 14")), shaped)
	require.Equal(t, 1, elements(t, svg)["svg"])
	require.Contains(t, svg, `role="img" aria-label="With limits 20/s depth 14, a ragged burst of 18 requests`)
	require.Contains(t, svg, "prefers-color-scheme:dark")
	require.Equal(t, 18, strings.Count(svg, "h5"), "arrivals")
	require.Equal(t, 15, strings.Count(svg, "v-34"), "departures")
	require.Contains(t, svg, "3 do not fit, and are refused at once")
	require.Contains(t, svg, "one every 50 ms")
	for _, foreign := range []string{"<script", "@import", "url(", "href"} {
		require.NotContains(t, svg, foreign)
	}
}

func TestDrawingMarksThoseWhoVanish(t *testing.T) {
	_, shaped := vanishing()
	svg := drawing(meaningOf(limitsOf(t, "20/s depth 14")), shaped)
	require.Equal(t, 1, elements(t, svg)["svg"])
	_, ofThem, _ := strings.Cut(svg, `<path class="v"`)
	ofThem, _, _ = strings.Cut(ofThem, "/>")
	require.Equal(t, 4, strings.Count(ofThem, "h5"), "arrivals of those who vanish")
	require.Equal(t, 18, strings.Count(svg, "h5"), "arrivals")
	require.Equal(t, 11, strings.Count(svg, "v-34"), "departures")
	require.Equal(t, 4, strings.Count(svg, "v-9"), "marks")
	require.Contains(t, svg, "4 of these leave while they wait, and cost no slot")
}

func TestDrawingStaysSmall(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var shaped trial
	for i := range mostBurst {
		p := &passage{arrived: begin.Add(time.Duration(i%7) * 37 * time.Millisecond), left: begin.Add(time.Duration(i) * time.Millisecond)}
		shaped.passages = append(shaped.passages, p)
		shaped.reached = append(shaped.reached, p.left)
	}
	for _, p := range byArrival(shaped.passages) {
		shaped.arrived = append(shaped.arrived, p.arrived)
	}
	svg := drawing(meaningOf(limitsOf(t, "1000/s depth 10000")), shaped)
	elements(t, svg)
	require.Less(t, len(svg), 12<<10)
	require.Empty(t, drawing(meaningOf(limitsOf(t, "inf")), trial{}))
}

func TestSVGFlagDrawsTheRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "burst.svg")
	p := start("-svg", file, "-limits", "60/s depth 5", "-burst", "120")
	require.Equal(t, exitOK, p.ends(t), "%s%s", &p.stdout, &p.stderr)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, 120, strings.Count(string(text), "h5"))
	require.NotContains(t, p.stdout.String(), "Serving")
}
