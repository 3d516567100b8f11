package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain lets the test program be the proxy, as the program itself is.
func TestMain(m *testing.M) {
	if settings, ok := os.LookupEnv(proxyVariable); ok {
		exit(runProxy(settings))
	}
	os.Exit(m.Run())
}

func TestWhereNginxIsMissingItSaysHowToGetIt(t *testing.T) {
	t.Setenv("PATH", filepath.Join(t.TempDir(), "bin"))
	var out strings.Builder
	err := run(t.Context(), []string{"-quick"}, &out, io.Discard)
	require.ErrorContains(t, err, "nginx is missing")
	require.ErrorContains(t, err, "apt-get install nginx-light")
	require.Empty(t, out.String())
}

func TestNginxIsFoundBesideThePath(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sbin"), 0o755))
	program := filepath.Join(dir, "sbin", "nginx")
	require.NoError(t, os.WriteFile(program, []byte("#!"), 0o755))
	found, err := findNginx(filepath.Join(dir, "bin"))
	require.NoError(t, err)
	require.Equal(t, program, found)

	require.NoError(t, os.Chmod(program, 0o644))
	_, err = findNginx(filepath.Join(dir, "bin"))
	require.Error(t, err, "it can't be run")
}

// requireNginx skips the test where nginx is missing, unless nothing may be.
func requireNginx(t *testing.T) string {
	t.Helper()
	program, err := findNginx(os.Getenv("PATH"))
	if err != nil && os.Getenv("SHAPER_REQUIRE_ALL") != "1" {
		t.Skip(err)
	}
	require.NoError(t, err)
	return program
}

// Everything, with a handful of requests. No figure decides but those that do
// not depend on the machine.
func TestTheWholeComparison(t *testing.T) {
	program := requireNginx(t)
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	p := plan{rounds: 1, rates: []int{1000}, requests: 20, window: 50 * time.Millisecond}
	found, err := compare(t.Context(), p, program, io.Discard)
	require.NoError(t, err)
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, left, "its folder is removed")

	require.Regexp(t, `^nginx/\d`, found.Nginx)
	require.Len(t, found.Spacings, 2)
	for _, row := range found.Spacings {
		require.Equal(t, 20, row.Requests, row.Proxy)
		require.Zero(t, row.Median.Refused, row.Proxy)
		require.Positive(t, row.Median.RateReached, row.Proxy)
		require.Positive(t, row.Median.ErrorP50, row.Proxy)
		require.Equal(t, row.Proxy == ours, row.Median.OvertakenQueue != nil, "only ours tells of its line")
	}
	require.Len(t, found.Ceilings, 4)
	for _, row := range found.Ceilings {
		require.Positive(t, row.Median.PerSecond, row.Proxy)
		require.Equal(t, row.Proxy != direct, row.Median.CPUPer100k > 0, row.Proxy)
	}
	require.Len(t, found.Goals, 1)

	var out strings.Builder
	found.print(&out)
	for _, want := range []string{found.Nginx, theirs, ours, bare, direct, "1000/s", "median spacing error at 1000/s"} {
		require.Contains(t, out.String(), want)
	}
	file := filepath.Join(folder, "found.json")
	require.NoError(t, found.write(file))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var again comparison
	require.NoError(t, json.Unmarshal(text, &again))
	require.Equal(t, found, again)
}

func TestAnInterruptionLeavesNothingBehind(t *testing.T) {
	program := requireNginx(t)
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	u, err := startUpstream()
	require.NoError(t, err)
	defer u.close()
	var started []*process
	for _, c := range contenders(program, folder) {
		p, _, err := c.start(ctx, u.address, 100, false)
		require.NoError(t, err)
		started = append(started, p)
	}
	cancel()
	for _, p := range started {
		<-p.done
		require.Positive(t, p.stop(), "it has run")
	}

	// Wherever it is by then: the last part would take hours.
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	time.AfterFunc(300*time.Millisecond, cancel)
	p := plan{rounds: 1, rates: []int{1000}, requests: 20, window: time.Hour}
	_, err = compare(ctx, p, program, io.Discard)
	require.ErrorIs(t, err, context.Canceled)
	left, err := filepath.Glob(filepath.Join(folder, "bench-nginx*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestAProxyThatCannotStartSaysWhy(t *testing.T) {
	program := requireNginx(t)
	_, err := startNginx(t.Context(), program, t.TempDir(), "127.0.0.1:1", "nowhere at all", 100)
	require.ErrorContains(t, err, "nginx.conf")
	_, _, err = startGo(t.Context(), proxySettings{Limits: "nonsense"})
	require.ErrorContains(t, err, "nonsense")
}
