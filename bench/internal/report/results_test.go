package report

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
)

type pace struct {
	measure.Spacing
	Limiter string
	Bytes   float64 `unit:"B/waiter"`
	Left    int     `unit:"departures"`
	Hidden  float64
}

func sampleResults() Results {
	return Results{
		Date:    time.Date(2025, 11, 21, 8, 0, 0, 0, time.UTC),
		Command: "go run ./bench -quick",
		Machine: Machine{System: "linux/amd64", Processor: "Abacus", CPUs: 2, Go: "go1.26.8", GOMAXPROCS: 2},
		Reports: []Report{
			{
				Name: "pace", What: "how fast",
				Tables: []Table{{Title: "Spacing", Columns: []string{"who"}, Rows: [][]string{{"ours"}}}},
				Goals:  []Goal{{What: "even", Want: "≥ 8×", Got: "9×", Reached: true}},
				Lines: Lines("Pace/limiter=shaper/rate=10", []pace{
					{Spacing: measure.Spacing{RateReached: 0.5, ErrorP50: 12.5, ErrorP99: 1e6}, Bytes: 190, Left: 7, Hidden: 5},
					{Bytes: measure.Unknown},
				}),
				Pictures: []Picture{{Name: "rate", SVG: []byte("less")}},
			},
			{
				Name: "keys", What: "what they cost",
				Goals:    []Goal{{What: "small", Want: "≤ 200", Got: "201"}},
				Pictures: []Picture{{Name: "rate", SVG: []byte("more")}, {Name: "keys", SVG: []byte("bars")}},
			},
		},
	}
}

func TestEachRoundIsABenchmarkLine(t *testing.T) {
	require.Equal(t, `goos: linux
goarch: amd64
pkg: example.com/leakybucket/bench
cpu: Abacus
# go run ./bench -quick
# 2025-11-21: linux/amd64, Abacus (2 CPUs), go1.26.8, GOMAXPROCS 2

BenchmarkPace/limiter=shaper/rate=10 1 0.5 of-rate 12.5 err-p50-ns 1e+06 err-p99-ns 0 bunched-% 0 overtaken-% 190 B/waiter 7 departures
BenchmarkPace/limiter=shaper/rate=10 1 0 of-rate 0 err-p50-ns 0 err-p99-ns 0 bunched-% 0 overtaken-% 0 departures
`, sampleResults().lines())
}

func TestARoundWithoutAKnownFigureHasNoLine(t *testing.T) {
	type bytes struct {
		Each float64 `unit:"B"`
	}
	require.Empty(t, Lines("Memory", []bytes{{measure.Unknown}}))
	require.Len(t, Lines("Memory", []bytes{{1}, {measure.Unknown}, {2}}), 2)
}

func TestMarkdownBeginsWithTheGoals(t *testing.T) {
	require.Equal(t, "# Results of `go run ./bench -quick`\n\n"+
		"2025-11-21: linux/amd64, Abacus (2 CPUs), go1.26.8, GOMAXPROCS 2.\n\n"+
		"All figures are in [results.bench.txt](results.bench.txt) too, each round by itself; `benchstat old new` compares two such files.\n\n"+
		"## Goals\n\n"+
		"| goal  | wanted | found | reached |\n"+
		"| ----- | ------ | ----: | ------- |\n"+
		"| even  | ≥ 8×   |    9× | yes     |\n"+
		"| small | ≤ 200  |   201 | NO      |\n\n"+
		"## pace: how fast\n\n"+
		"### Spacing\n\n"+
		"| who  |\n| ---- |\n| ours |\n\n"+
		"## keys: what they cost\n", sampleResults().markdown())
}

func TestTheLastPictureOfANameCounts(t *testing.T) {
	folder := t.TempDir()
	names, err := sampleResults().Write(folder)
	require.NoError(t, err)
	require.Equal(t, []string{"results.md", "results.bench.txt", "rate.svg", "keys.svg"}, names)
	drawn, err := os.ReadFile(filepath.Join(folder, "rate.svg"))
	require.NoError(t, err)
	require.Equal(t, "more", string(drawn))
	_, err = sampleResults().Write(filepath.Join(folder, "missing"))
	require.Error(t, err)
}

func TestMachineSaysWhatItKnows(t *testing.T) {
	m := Machine{System: "linux/amd64", Processor: "Abacus", CPUs: 1, Memory: "4.0 GiB", Kernel: "6.18", Go: "go1.26.8", GOMAXPROCS: 1}
	require.Equal(t, "linux/amd64, Abacus (1 CPU), 4.0 GiB, kernel 6.18, go1.26.8, GOMAXPROCS 1", m.String())
	here := ThisMachine()
	require.NotEmpty(t, here.Processor)
	require.Positive(t, here.GOMAXPROCS)
	require.Contains(t, here.String(), here.Go)
}
