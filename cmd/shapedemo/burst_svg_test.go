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
	svg := burstSVG(newLimitsInfo(limitsOf(t, "20/s depth 14")), shaped)
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

func TestDrawingMarksClientsThatDisconnect(t *testing.T) {
	_, shaped := disconnecting()
	svg := burstSVG(newLimitsInfo(limitsOf(t, "20/s depth 14")), shaped)
	require.Equal(t, 1, elements(t, svg)["svg"])
	_, ofThem, _ := strings.Cut(svg, `<path class="v"`)
	ofThem, _, _ = strings.Cut(ofThem, "/>")
	require.Equal(t, 4, strings.Count(ofThem, "h5"), "arrivals of clients that disconnect")
	require.Equal(t, 18, strings.Count(svg, "h5"), "arrivals")
	require.Equal(t, 11, strings.Count(svg, "v-34"), "departures")
	require.Equal(t, 4, strings.Count(svg, "v-9"), "marks")
	require.Contains(t, svg, "4 of these disconnect while they wait, and cost no slot")
}

func TestDrawingStaysSmall(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var shaped trial
	for i := range maxBurst {
		r := &requestLog{arrived: begin.Add(time.Duration(i%7) * 37 * time.Millisecond), departed: begin.Add(time.Duration(i) * time.Millisecond)}
		shaped.requests = append(shaped.requests, r)
		shaped.reached = append(shaped.reached, r.departed)
	}
	for _, r := range byArrival(shaped.requests) {
		shaped.arrived = append(shaped.arrived, r.arrived)
	}
	svg := burstSVG(newLimitsInfo(limitsOf(t, "1000/s depth 10000")), shaped)
	elements(t, svg)
	require.Less(t, len(svg), 12<<10)
	require.Empty(t, burstSVG(newLimitsInfo(limitsOf(t, "inf")), trial{}))
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
