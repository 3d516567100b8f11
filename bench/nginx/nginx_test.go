package nginx

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/run"
)

// TestMain lets the test program be the proxy, as the program itself is.
func TestMain(m *testing.M) {
	run.Child()
	os.Exit(m.Run())
}

func TestWhereNginxIsMissingTheReportSaysHowToGetIt(t *testing.T) {
	t.Setenv("PATH", filepath.Join(t.TempDir(), "bin"))
	r, err := Experiment.Measure(t.Context(), run.Options{Quick: true})
	require.NoError(t, err, "the other experiments are worth their time")
	require.Len(t, r.Tables, 1)
	require.Equal(t, "nginx is missing; to get it, on Debian: apt-get install nginx-light.", r.Tables[0].Note)
	require.Empty(t, r.Goals)
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

// handful are measurements of so few requests that only figures which do not
// depend on the machine can be judged.
func handful(window time.Duration) (bursts []run.Case[burst], ceilings []run.Case[ceilingInput]) {
	for _, proxy := range []string{theirs, ours} {
		b := burst{proxy, 1000, 20, 300 * time.Microsecond}
		bursts = append(bursts, run.Case[burst]{Name: "NginxSpacing/proxy=" + proxy, Input: b, Rounds: 1})
	}
	for _, proxy := range []string{theirs, ours, bare, direct} {
		ceilings = append(ceilings, run.Case[ceilingInput]{Name: "NginxCeiling/proxy=" + proxy, Input: ceilingInput{proxy, window}, Rounds: 1})
	}
	return bursts, ceilings
}

func TestTheWholeComparison(t *testing.T) {
	program := requireNginx(t)
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	bursts, ceilings := handful(50 * time.Millisecond)
	r, err := compare(t.Context(), run.Options{}, program, bursts, ceilings)
	require.NoError(t, err)
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, left, "its folder is removed")

	require.Len(t, r.Tables, 2)
	require.Regexp(t, `^nginx/\d`, r.Tables[0].Note)
	require.Len(t, r.Tables[0].Rows, 2)
	for i, proxy := range []string{theirs, ours} {
		row := r.Tables[0].Rows[i]
		require.Equal(t, []string{"1,000/s", proxy, "20"}, row[:3])
		require.Equal(t, proxy == theirs, row[8] == "-", "only ours tells the order of its line")
		require.Equal(t, "0", row[9])
	}
	require.Len(t, r.Tables[1].Rows, 4)
	for _, row := range r.Tables[1].Rows {
		require.NotEqual(t, "0", row[1], row[0])
		require.Equal(t, row[0] == direct, row[2] == "-", row[0])
	}
	require.Len(t, r.Goals, 1)
	require.Len(t, r.Lines, 6)
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
	for _, c := range proxies(program, folder) {
		p, _, err := c.start(ctx, u.address, 100, false)
		require.NoError(t, err)
		started = append(started, p)
	}
	cancel()
	for _, p := range started {
		<-p.done
		require.Positive(t, p.stop(), "it has run")
	}

	// Wherever it is by then: the last measurement would take an hour.
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	time.AfterFunc(300*time.Millisecond, cancel)
	bursts, ceilings := handful(time.Hour)
	_, err = compare(ctx, run.Options{}, program, bursts, ceilings)
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

func TestBurstsKeepTheLineFromRunningDry(t *testing.T) {
	require.Equal(t, burst{ours, 100, 200, 500 * time.Microsecond}, burstOf(ours, 100))
	require.Equal(t, burst{ours, 1000, 900, 300 * time.Microsecond}, burstOf(ours, 1000))
	require.Equal(t, burst{ours, 1, 20, 500 * time.Microsecond}, burstOf(ours, 1))
	require.Len(t, bursts(run.Options{}), 4)
	require.Equal(t, 5, bursts(run.Options{})[0].Rounds)
	require.Len(t, bursts(run.Options{Quick: true}), 2)
	require.Equal(t, 1, ceilings(run.Options{})[3].Rounds)
}

func TestGoalsHoldOursAgainstNginx(t *testing.T) {
	at := func(proxy string, rate int, p50 float64) run.Result[burst, spacing] {
		s := spacing{Spacing: measure.Spacing{ErrorP50: p50}}
		return run.Result[burst, spacing]{Case: run.Case[burst]{Input: burst{Proxy: proxy, Rate: rate}}, Found: []spacing{s}, Median: s}
	}
	all := goals([]run.Result[burst, spacing]{at(theirs, 100, 500_000), at(ours, 100, 125_000), at(theirs, 1000, 399_000), at(ours, 1000, 100_000), at(ours, 7, 1)})
	require.Len(t, all, 2, "at 7/s there is none to compare with")
	require.Equal(t, "4.00× (125 against 500 µs)", all[0].Got)
	require.True(t, all[0].Reached)
	require.False(t, all[1].Reached)
}

func TestVersion(t *testing.T) {
	version, err := parseVersion("nginx version: nginx/1.22.1 (Ubuntu)\n")
	require.NoError(t, err)
	require.Equal(t, "nginx/1.22.1", version)
	_, err = parseVersion("command not found")
	require.ErrorContains(t, err, "command not found")
}

func TestNginxIsConfiguredWithWhatIsMeasured(t *testing.T) {
	config := configureNginx("127.0.0.1:1", "127.0.0.1:2", 100)
	for _, want := range []string{"listen 127.0.0.1:1 ", "server 127.0.0.1:2;", "rate=100r/s;", "worker_processes 1;", "daemon off;", "access_log off;"} {
		require.Contains(t, config, want)
	}
	require.NotRegexp(t, `\{(listen|upstream|rate)\}`, config)
}
