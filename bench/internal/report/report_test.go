package report

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
)

func line(name string, value float64, unit string) Line {
	return Line{Name: name, Figures: []Figure{{Value: value, Unit: unit}}}
}

func TestAGoalIsJudgedByTheWorstOfOursAndTheBestOfTheirs(t *testing.T) {
	lines := []Line{
		line("Pace/limiter=ours/rate=1", 10, "err-ns"), line("Pace/limiter=ours/rate=2", 30, "err-ns"), line("Pace/limiter=ours/rate=2", 20, "err-ns"), line("Pace/limiter=ours/rate=2", 90, "err-ns"),
		line("Pace/limiter=a/rate=2", 60, "err-ns"), line("Pace/limiter=b/rate=2", 120, "err-ns"),
		line("Rate/limiter=ours", 0.99, "of-rate"), line("Call/limiter=ours", 1, "allocs/call"), line("Call/limiter=ours", 5, "allocs/call"),
	}
	for _, row := range []struct {
		goal     Goal
		measured bool
		got, yes string
	}{
		{Goal{Ours: "Pace/limiter=ours/rate=* err-ns", Most: 30}, true, "30", "yes"},
		{Goal{Ours: "Pace/limiter=ours/rate=* err-ns", Most: 29}, true, "30", "NO"},
		{Goal{Ours: "Pace/limiter=ours/rate=2 err-ns", Theirs: []string{"Pace/limiter=a/rate=2 err-ns", "Pace/limiter=b/rate=2 err-ns"}, Most: 0.5}, true, "0.5 (30 against 60)", "yes"},
		{Goal{Ours: "Pace/limiter=ours/rate=2 err-ns", Theirs: []string{"Pace/limiter=c/rate=2 err-ns"}, Most: 9}, true, "a rival was not measured", "?"},
		{Goal{Ours: "Rate/limiter=ours of-rate", Least: 0.99}, true, "0.99", "yes"},
		{Goal{Ours: "Rate/limiter=ours of-rate", Least: 0.995}, true, "0.99", "NO"},
		{Goal{Ours: "Rate/limiter=ours of-rate", Least: 0.995, Most: 1.005}, true, "0.99", "NO"},
		{Goal{Ours: "Call/limiter=ours allocs/call", Most: 4}, true, "5", "NO"}, // A bound holds in every round.
		{Goal{Ours: "Rate/limiter=theirs of-rate", Least: 1}, false, "", ""},
	} {
		got, measured := row.goal.judge(sumUp(lines))
		require.Equal(t, row.measured, measured, row.goal)
		if measured {
			require.Contains(t, got[1]+got[2], row.got, row.goal)
			require.Equal(t, row.yes, got[3], row.goal)
		}
	}
}

func TestARunIsWrittenAsTablesAndAsLinesForBenchstat(t *testing.T) {
	folder := t.TempDir()
	r := Results{Command: "go run ./bench", Reports: []Report{{
		Name: "pace", What: "how even", Lines: []Line{line("Pace/limiter=ours/rate=1000", 4300, "err-ns"), line("Pace/limiter=x/rate=1000", 102_000, "err-ns")},
		Goals: []Goal{{What: "evenness", Ours: "Pace/limiter=ours/rate=1000 err-ns", Most: 5000}}, Pictures: []Picture{{Name: "pace", SVG: []byte("<svg/>")}},
	}}}
	names, err := r.Write(folder)
	require.NoError(t, err)
	require.Equal(t, []string{TablesFile, LinesFile, "pace.svg"}, names)
	tables, err := os.ReadFile(filepath.Join(folder, TablesFile))
	require.NoError(t, err)
	require.Contains(t, string(tables), "| limiter | rate | err-sec | rounds |")
	require.Contains(t, string(tables), "4.300µs")
	require.Contains(t, string(tables), "| evenness | at most 5000 | 4,300 | yes     |")
	lines, err := os.ReadFile(filepath.Join(folder, LinesFile))
	require.NoError(t, err)
	require.Contains(t, string(lines), "\nBenchmarkPace/limiter=x/rate=1000 1 102000 err-ns\n")
}

func TestFieldsWithAUnitAreFigures(t *testing.T) {
	type round struct {
		Wait   time.Duration `unit:"wait-ns"`
		Count  int           `unit:"calls"`
		Share  float64       `unit:"%"`
		Nobody float64       `unit:"unknown"`
		Hidden float64
	}
	lines := Lines("Pace", []round{{Wait: 5, Count: 6, Share: 0.5, Nobody: measure.Unknown}})
	require.Equal(t, []Line{{"Pace", []Figure{{5, "wait-ns"}, {6, "calls"}, {0.5, "%"}}}}, lines)
}
