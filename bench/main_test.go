package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The binary of the tests is its own child too, as the program is.
func TestMain(m *testing.M) {
	if kind := os.Getenv(cellVariable); kind != "" {
		os.Exit(runCell(kind, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// fakeParts are quick to measure: the first finds something, the second fails.
func fakeParts() []part {
	return []part{
		{name: "pace", what: "how fast", measure: func(_ context.Context, o options) (report, error) {
			o.say("1 of 1")
			return report{
				Tables: []table{{Title: "Pace", Columns: []string{"who", "rate"}, Rows: [][]string{{"ours", "12"}}}},
				Data:   []spacingResult{{Contestant: "ours"}},
				Goals:  []goal{{What: "evenness", Want: "≥ 8×", Got: "9×", Reached: true}},
			}, nil
		}},
		{name: "broken", what: "nothing", measure: func(context.Context, options) (report, error) {
			return report{}, errors.New("the machine is on fire")
		}},
	}
}

// running returns what a run of the fake parts said and how it ended.
func running(ctx context.Context, args ...string) (status int, stdout, stderr string) {
	var out, complaints bytes.Buffer
	status = run(ctx, fakeParts(), args, &out, &complaints)
	return status, out.String(), complaints.String()
}

func TestRunPrintsTablesAndGoalsAndWritesFiles(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "made", "if missing")
	status, stdout, stderr := running(t.Context(), "-only", "pace", "-out", folder)
	require.Equal(t, exitOK, status)
	require.Contains(t, stdout, "\nPace\n  who   rate\n  ours    12\n")
	require.Contains(t, stdout, "\nGoals\n  goal      wanted  found  reached\n  evenness  ≥ 8×       9×  yes\n")
	require.Contains(t, stdout, "results.json, results.md and 1 picture.\n")
	require.Equal(t, "pace (part 1 of 1): begins\npace (part 1 of 1): 1 of 1\n", stderr)

	files, err := os.ReadDir(folder)
	require.NoError(t, err)
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	require.Equal(t, []string{"rate.svg", "results.json", "results.md"}, names)
}

func TestOnePartThatFailsDoesNotLoseTheOthers(t *testing.T) {
	folder := t.TempDir()
	status, stdout, stderr := running(t.Context(), "-out", folder)
	require.Equal(t, exitFailed, status)
	require.Contains(t, stdout, "ours    12\n")
	require.Contains(t, stderr, "bench: broken: the machine is on fire\n")
	require.FileExists(t, filepath.Join(folder, "results.json"))
}

func TestWhatAPartFoundBeforeItFailedIsKept(t *testing.T) {
	all := fakeParts()[:1]
	whole := all[0].measure
	all[0].measure = func(ctx context.Context, o options) (report, error) {
		r, _ := whole(ctx, o)
		return r, errors.New("one cell was lost")
	}
	var stdout, stderr bytes.Buffer
	folder := t.TempDir()
	require.Equal(t, exitFailed, run(t.Context(), all, []string{"-out", folder}, &stdout, &stderr))
	require.Contains(t, stdout.String(), "ours    12\n")
	require.Contains(t, stderr.String(), "bench: pace: one cell was lost\n")
	require.FileExists(t, filepath.Join(folder, "results.json"))
}

func TestWhatIsMissingIsSaidBeforeAnythingIsMeasured(t *testing.T) {
	all := fakeParts()
	all[1].needs = func(o options) error {
		o.say("needs a lot\n")
		return errors.New("there is little")
	}
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitUsage, run(t.Context(), all, []string{"-out", ""}, &stdout, &stderr))
	require.Equal(t, "broken: needs a lot\nbench: broken: there is little\n", stderr.String())
	require.NotContains(t, stdout.String(), "Pace")
}

func TestNoFolderNoFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	status, stdout, _ := running(t.Context(), "-only", "pace", "-out", "")
	require.Equal(t, exitOK, status)
	require.NotContains(t, stdout, "Written")
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	require.Empty(t, files)
}

func TestInterruptEndsTheRunAndWritesNothing(t *testing.T) {
	folder := t.TempDir()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	status, _, stderr := running(ctx, "-only", "pace", "-out", folder)
	require.Equal(t, exitInterrupted, status)
	require.Contains(t, stderr, "bench: interrupted, nothing written\n")
	require.NoFileExists(t, filepath.Join(folder, "results.json"))
}

func TestNothingIsMeasuredWhereTheFolderCannotBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	status, stdout, stderr := running(t.Context(), "-out", filepath.Join(file, "folder"))
	require.Equal(t, exitUsage, status)
	require.Empty(t, stdout)
	require.Contains(t, stderr, `bench: -out "`+filepath.Join(file, "folder")+`": `)
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
