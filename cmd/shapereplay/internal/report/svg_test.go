package report

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/simulate"
	"example.com/leakybucket/config"
)

// drawn returns the picture of a replay of so many rules, each with a burst of ten requests
// and one more two seconds later.
func drawn(t *testing.T, rules int, limits string) string {
	t.Helper()
	text := "limits: {}\n"
	if rules > 0 {
		text = "limits:\n"
	}
	for i := range rules {
		text += fmt.Sprintf("  \"<%d>&\": %s\n", i, limits)
	}
	parsed, err := config.Parse("test.yaml", []byte(text))
	require.NoError(t, err)
	s := simulate.New(parsed, simulate.Options{Series: true})
	for n := range 11 {
		for i := range rules {
			s.Arrive(when.Add(time.Duration(n/10)*2*time.Second), fmt.Sprintf("<%d>&", i), "")
		}
	}
	d := Replay(s.Result(), false, 10)
	d.Key = `"&`
	return SVG(d)
}

func TestThePictureIsAnXMLDocument(t *testing.T) {
	for _, svg := range []string{drawn(t, 1, "10/s depth 4"), drawn(t, 3, "inf"), drawn(t, 0, ""), drawn(t, 20, "1/s")} {
		elements := 0
		for d := xml.NewDecoder(strings.NewReader(svg)); ; elements++ {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, svg)
		}
		require.Greater(t, elements, 10)
		require.NotContains(t, svg, "NaN")
		require.NotContains(t, svg, "Inf")
	}
}

func TestThePictureShowsArrivalsDeparturesAndTheLine(t *testing.T) {
	svg := drawn(t, 1, "10/s depth 4")
	// Of the ten five are refused, and four leave within 400 ms. A bin is 16 ms wide.
	require.Contains(t, svg, `aria-label="&lt;0&gt;&amp;: of 11 requests 4 waited, 5 were refused, the longest wait was 400 ms"`)
	require.Contains(t, svg, ">625/s<") // ten in 16 ms
	require.Contains(t, svg, ">4<")     // waiting
	require.Contains(t, svg, `<path class="a" d="M64.0 164H64.0V92.0H`)
	require.Contains(t, svg, `<path class="r" d="M64.0 164H64.0V128.0H`)
	require.Contains(t, svg, ">08:00:01.000<")
	require.NotContains(t, drawn(t, 1, "inf"), `class="w" d=`)
}

func TestRulesWithFewRequestsAreNotDrawn(t *testing.T) {
	require.NotContains(t, drawn(t, 12, "1/s"), "not drawn")
	require.Contains(t, drawn(t, 15, "1/s"), "the 12 rules with the most requests; 3 more are not drawn")
}

func TestTimesAreRound(t *testing.T) {
	for span, want := range map[time.Duration]time.Duration{
		time.Millisecond: time.Millisecond, 3 * time.Second: 500 * time.Millisecond, 8 * time.Minute: 2 * time.Minute, 8 * time.Hour: 2 * time.Hour, time.Hour: 10 * time.Minute,
		24 * time.Hour: 6 * time.Hour, 30 * 24 * time.Hour: 6 * 24 * time.Hour,
	} {
		require.Equal(t, want, tickStep(span))
	}
}
