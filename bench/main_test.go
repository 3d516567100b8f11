package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// The binary of the tests is its own child too, as the program is.
func TestMain(m *testing.M) { run.Tests(m, fakes()...) }

// fakes are quick to measure: the first finds something, the second fails.
func fakes() []run.Experiment {
	type found struct {
		Rate float64       `unit:"rate"`
		Took time.Duration `unit:"took-ns"`
	}
	return []run.Experiment{
		{
			Name: "pace", What: "how fast", Goals: []report.Goal{{What: "evenness", Ours: "Pace/who=ours rate", Least: 8}},
			Groups: func(run.Options) []run.Group {
				return []run.Group{{Cases: []run.Case{run.One("Pace/who=ours", 1, func(*testing.T) found { return found{12, 4300} })}}}
			},
			Conclude: func(r *report.Report, _ run.Options) error {
				r.Pictures = []report.Picture{{Name: "rate", SVG: []byte("<svg/>")}}
				return nil
			},
		},
		{
			Name: "broken", What: "nothing",
			Groups:   func(run.Options) []run.Group { return nil },
			Conclude: func(*report.Report, run.Options) error { return errors.New("the machine is on fire") },
		},
	}
}

// running returns the output of a run of the fakes and how it ended.
func running(ctx context.Context, args ...string) (status int, stdout, stderr string) {
	var out, complaints bytes.Buffer
	status = measureAll(ctx, fakes(), args, &out, &complaints)
	return status, out.String(), complaints.String()
}

func TestRunPrintsTablesAndGoalsAndWritesFiles(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "made", "if missing")
	status, stdout, stderr := running(t.Context(), "-only", "pace", "-out", folder)
	require.Equal(t, exitOK, status)
	require.Contains(t, stdout, "results.md, results.bench.txt, rate.svg.\n")
	require.Equal(t, "bench: Pace/who=ours, round 1 of 1\n", stderr)

	tables, err := os.ReadFile(filepath.Join(folder, "results.md"))
	require.NoError(t, err)
	require.Contains(t, string(tables), "# Results of `go run ./bench -only pace -out "+folder+"`\n")
	for _, shown := range []string{stdout, string(tables)} {
		require.Contains(t, shown, "\n### Pace\n\n| who  | rate | took-sec | rounds |\n| ---  | ---  | ---      | ---    |\n| ours | 12   | 4.300µs  | 1      |\n")
		require.Contains(t, shown, "\n## Goals\n\n| goal     | wanted     | found | reached |\n| ---      | ---        | ---   | ---     |\n| evenness | at least 8 | 12    | yes     |\n")
	}
	lines, err := os.ReadFile(filepath.Join(folder, "results.bench.txt"))
	require.NoError(t, err)
	require.Contains(t, string(lines), "\nBenchmarkPace/who=ours 1 12 rate 4300 took-ns\n", "as benchstat reads it")
	files, err := os.ReadDir(folder)
	require.NoError(t, err)
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	require.Equal(t, []string{"rate.svg", "results.bench.txt", "results.md"}, names)
}

func TestOneExperimentThatFailsDoesNotLoseTheOthers(t *testing.T) {
	folder := t.TempDir()
	status, stdout, stderr := running(t.Context(), "-out", folder)
	require.Equal(t, exitFailed, status)
	require.Contains(t, stdout, "| ours | 12   | 4.300µs  | 1      |\n")
	require.Equal(t, 2, strings.Count(stderr, "bench: broken: the machine is on fire\n"), "at once, and at the end")
	require.FileExists(t, filepath.Join(folder, "results.md"))
}

func TestWhatIsMissingIsSaidBeforeAnythingIsMeasured(t *testing.T) {
	all := fakes()
	all[1].Needs = []run.Program{run.Go, {Name: "no-such-program", GetIt: "Debian: apt-get install it"}}
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitUsage, measureAll(t.Context(), all, []string{"-out", ""}, &stdout, &stderr))
	require.Contains(t, stderr.String(), "bench: broken: no-such-program is missing (Debian: apt-get install it)")
	require.NotContains(t, stdout.String(), "### Pace")
}

func TestAFolderThatCannotBeWrittenToIsSaidBeforeAnythingIsMeasured(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("this system may have no folder in which nobody can make a file")
	}
	status, stdout, stderr := running(t.Context(), "-only", "pace", "-out", "/proc/self")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, `bench: -out "/proc/self": `)
	require.Empty(t, stdout)
}

func TestInterruptEndsTheRunAndWritesNothing(t *testing.T) {
	folder := t.TempDir()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	status, _, stderr := running(ctx, "-only", "pace", "-out", folder)
	require.Equal(t, exitInterrupted, status)
	require.Contains(t, stderr, "bench: interrupted, nothing written\n")
	require.NoFileExists(t, filepath.Join(folder, "results.md"))
}

func TestTheRunEndsIfNothingReadsIt(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	require.NoError(t, r.Close())
	ctx, end := context.WithCancel(t.Context())
	var stderr bytes.Buffer
	require.Equal(t, exitInterrupted, measureAll(ctx, fakes(), []string{"-out", ""}, output{w, end}, &stderr))
	require.Equal(t, "bench: interrupted, nothing written\n", stderr.String())
}

func TestHelpAndListMeasureNothing(t *testing.T) {
	status, stdout, stderr := running(t.Context(), "-h")
	require.Equal(t, exitOK, status)
	require.Equal(t, usage, stdout)
	require.Empty(t, stderr)

	status, stdout, stderr = running(t.Context(), "-list")
	require.Equal(t, exitOK, status)
	require.Equal(t, "pace       how fast\nbroken     nothing\n", stdout)
	require.Empty(t, stderr)
}

func TestTheExperiments(t *testing.T) {
	all := experiments()
	require.Equal(t, "spacing, busy, admission, goodput, hole, adapt, scale, keys, fair, fair-busy, llm, shared, proxies", names(all))
	measured := map[string]bool{}
	for _, e := range all {
		require.NotZero(t, e.What, e.Name)
		for _, g := range e.Groups(run.Options{}) {
			for _, c := range g.Cases {
				require.False(t, measured[c.Name], "two cases have the name %s", c.Name)
				measured[c.Name] = true
			}
		}
	}
	// Documents, and files with which benchstat compares, have such names.
	for _, name := range []string{
		"Spacing/limiter=x-time/rate=1000/waiters=100/load=idle", "Busy/limiter=shaper/rate=10000/waiters=1000/load=loops",
		"FairBusy/limiter=shaper-fair/rate=1000/waiters=100/load=loops",
	} {
		require.True(t, measured[name], name)
	}
}

func TestFlags(t *testing.T) {
	for _, test := range []struct {
		args    []string
		options run.Options
		names   string
		out     string
	}{
		{nil, run.Options{}, "pace, broken", "docs/bench"},
		{[]string{"-quick", "-out", ""}, run.Options{Quick: true}, "pace, broken", ""},
		{[]string{"-rounds", "100"}, run.Options{Rounds: 100}, "pace, broken", "docs/bench"},
		{[]string{"-only", "broken"}, run.Options{}, "broken", "docs/bench"},
		// The order is the order of measuring, and twice is once.
		{[]string{"-only", "broken, pace,pace"}, run.Options{}, "pace, broken", "docs/bench"},
	} {
		c, err := parseFlags(test.args, fakes())
		require.NoError(t, err, "%q", test.args)
		require.Equal(t, test.options, c.options, "%q", test.args)
		require.Equal(t, test.names, names(c.experiments), "%q", test.args)
		require.Equal(t, test.out, c.out, "%q", test.args)
	}
}

func TestFlagsThatCannotBeFollowed(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-only", "pase"}, `invalid value "pase" for flag -only: no experiment is named "pase"; there are pace, broken`},
		{[]string{"-only", ""}, `invalid value "" for flag -only: no experiment is named ""; there are pace, broken`},
		{[]string{"-only", "pace,"}, `invalid value "pace," for flag -only: no experiment is named ""; there are pace, broken`},
		{[]string{"-rounds", "0"}, `invalid value "0" for flag -rounds: must be a whole number from 1 to 100`},
		{[]string{"-rounds", "101"}, `invalid value "101" for flag -rounds: must be a whole number from 1 to 100`},
		{[]string{"-rounds", "few"}, `invalid value "few" for flag -rounds: must be a whole number from 1 to 100`},
		{[]string{"-quick=maybe"}, `invalid boolean value "maybe" for -quick: parse error`},
		{[]string{"spacing"}, `unexpected argument "spacing"`},
		{[]string{"-fast"}, `flag provided but not defined: -fast`},
	} {
		_, err := parseFlags(test.args, fakes())
		require.EqualError(t, err, test.want)
	}
}
