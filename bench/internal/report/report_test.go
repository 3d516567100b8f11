package report

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
)

func line(name string, value float64, unit string, more ...Figure) Line {
	return Line{Name: name, Figures: append([]Figure{{value, unit}}, more...)}
}

func TestEachFigureOfOursIsJudgedBesideTheBestOfTheirs(t *testing.T) {
	lines := []Line{
		line("Pace/limiter=ours/rate=1", 10, "err-ns"), line("Pace/limiter=ours/rate=2", 30, "err-ns"), line("Pace/limiter=ours/rate=2", 20, "err-ns"), line("Pace/limiter=ours/rate=2", 90, "err-ns"),
		line("Pace/limiter=a/rate=1", 60, "err-ns"), line("Pace/limiter=a/rate=2", 60, "err-ns"), line("Pace/limiter=b/rate=2", 120, "err-ns"),
		line("Rate/limiter=ours", 0.99, "of-rate"), line("Call/limiter=ours", 1, "allocs/call"), line("Call/limiter=ours", 5, "allocs/call"),
	}
	for _, row := range []struct {
		goal Goal
		want [][]string
	}{
		{Goal{What: "error at $1", Ours: "Pace/limiter=ours/rate=(.*) err-ns", Most: 29}, [][]string{{"error at 1", "at most 29", "10", "yes"}, {"error at 2", "at most 29", "30", "NO"}}},
		{Goal{Ours: "Pace/limiter=ours/rate=2 err-ns", Most: 30}, [][]string{{"", "at most 30", "30", "yes"}}},
		{
			Goal{Ours: "Pace/limiter=ours/rate=(.*) err-ns", Theirs: []string{"Pace/limiter=a/rate=$1 err-ns", "Pace/limiter=b/rate=2 err-ns"}, Most: 0.4},
			[][]string{{"", "at most 0.4 times theirs", "0.167 (10 against 60)", "yes"}, {"", "at most 0.4 times theirs", "0.5 (30 against 60)", "NO"}},
		},
		{Goal{Ours: "Pace/limiter=ours/rate=2 err-ns", Theirs: []string{"Pace/limiter=a/rate=2 err-ns", "Pace/limiter=b/rate=2 err-ns"}, Least: 0.3}, [][]string{{"", "at least 0.3 times theirs", "0.25 (30 against 120)", "NO"}}},
		{Goal{Ours: "Pace/limiter=ours/rate=2 err-ns", Theirs: []string{"Pace/limiter=c/rate=2 err-ns"}, Most: 9}, [][]string{{"", "at most 9 times theirs", "a rival was not measured", "?"}}},
		{Goal{Ours: "Rate/limiter=ours of-rate", Least: 0.99}, [][]string{{"", "at least 0.99", "0.99", "yes"}}},
		{Goal{Ours: "Rate/limiter=ours of-rate", Least: 0.995, Most: 1.005}, [][]string{{"", "0.995 to 1.005", "0.99", "NO"}}},
		{Goal{Ours: "Call/limiter=ours allocs/call", Most: 4}, [][]string{{"", "at most 4", "5", "NO"}}}, // A bound holds in every round.
		{Goal{Ours: "Rate/limiter=theirs of-rate", Least: 1}, nil},
	} {
		require.Equal(t, row.want, row.goal.judge(sumUp(lines)), row.goal)
	}
}

func TestWhatIsBeyondABareCaseIsOfTheSameRound(t *testing.T) {
	lines := []Line{line("Bare", 1, "B"), line("Bare", 2, "B"), line("Ours", 11, "B"), line("Ours", 14, "B"), line("Ours", 9, "B"), line("Ours", 9, "ns")}
	Beyond(lines, "B", "beyond-B", func(name string) (string, float64) {
		return "Bare", map[string]float64{"Ours": 2}[name] // Beside itself the bare case has nothing beyond.
	})
	require.Equal(t, []Figure{{1, "B"}}, lines[0].Figures)
	require.Equal(t, []Figure{{11, "B"}, {5, "beyond-B"}}, lines[2].Figures)
	require.Equal(t, []Figure{{14, "B"}, {6, "beyond-B"}}, lines[3].Figures)
	require.Equal(t, []Figure{{9, "B"}}, lines[4].Figures, "the bare case has no third round")
}

func TestSpacingsAreDrawnOfTheLimitersThatWereMeasured(t *testing.T) {
	even := LineOf("Even/a", measure.Spacing{Departures: 1, Bars: make([]int, measure.HistogramBars)})
	picture := Spacings{Name: "even", Limiters: []string{"a", "b"}, Line: func(limiter string) string { return "Even/" + limiter }}
	r := Report{Lines: []Line{even, even}}
	require.NoError(t, r.DrawSpacings(picture, "a"))
	require.Len(t, r.Pictures, 1)
	require.Contains(t, string(r.Pictures[0].SVG), "a: median error")
	require.NotContains(t, string(r.Pictures[0].SVG), "b: median error")
	r = Report{}
	require.NoError(t, r.DrawSpacings(picture, "a"))
	require.Empty(t, r.Pictures)
}

func TestFieldsWithAUnitAreFigures(t *testing.T) {
	type round struct {
		Wait   time.Duration `unit:"wait-ns"`
		Count  int           `unit:"calls"`
		Share  float64       `unit:"%"`
		Nobody float64       `unit:"unknown"`
		Hidden float64
	}
	require.Equal(t, line("Pace", 5, "wait-ns", Figure{6, "calls"}, Figure{0.5, "%"}), LineOf("Pace", round{Wait: 5, Count: 6, Share: 0.5, Nobody: measure.Unknown}))
}
