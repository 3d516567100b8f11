package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// replayed returns the JSON object that the program prints.
func replayed(t *testing.T, stdin string, args ...string) map[string]any {
	t.Helper()
	status, printed, problems := shapereplay(t, stdin, append(args, "-json")...)
	require.Equal(t, exitOK, status, problems)
	require.Empty(t, problems)
	var d map[string]any
	require.NoError(t, json.Unmarshal([]byte(printed), &d))
	return d
}

func names(object any) []string { return slices.Sorted(maps.Keys(object.(map[string]any))) }

// Programs read these names.
func TestTheNamesOfTheJSONStay(t *testing.T) {
	rules := file(t, "shaper.yaml", twoMayWait)
	count := []string{"at_once", "queue_full", "refused", "requests", "too_late", "total_wait_s", "wait_max_s", "waited"}
	with := func(more ...string) []string { return slices.Sorted(slices.Values(append(more, count...))) }
	d := replayed(t, fiveAtOnce+"broken\n", "-rules", rules)
	document := []string{"candidates", "found", "from", "goal", "interrupted", "key", "keys", "log", "no_rule", "notes", "refused_most", "requests", "rules", "to", "waited_longest"}
	require.Equal(t, document, names(d))
	require.Equal(t, with("rule", "file", "line", "limits", "keys", "wait_p50_s", "wait_p95_s", "wait_p99_s", "line_max"), names(d["rules"].([]any)[0]))
	require.Equal(t, with("key", "rule"), names(d["refused_most"].([]any)[0]))
	require.Equal(t, []string{"broken", "examples", "lines", "reasons", "requests"}, names(d["log"]))
	require.Equal(t, []string{"file", "line", "reason", "text"}, names(d["log"].(map[string]any)["examples"].([]any)[0]))
	rule := d["rules"].([]any)[0].(map[string]any)
	require.Equal(t, 1.0, rule["line"])
	require.Equal(t, rules, rule["file"])
	require.Equal(t, 0.5, rule["wait_p50_s"])
	require.Equal(t, "2026-11-21T08:00:00Z", d["from"])

	d = replayed(t, fiveAtOnce, "-rules", rules, "-find", "wait=1s")
	require.Equal(t, document, names(d))
	require.Equal(t, []any{}, d["rules"])
	require.Equal(t, "wait=1s", d["goal"])
	found := d["found"].([]any)[0]
	require.Equal(t, []string{"file", "found", "keys", "line", "now", "requests", "rule"}, names(found))
	require.Equal(t, map[string]any{"limits": "4/s depth 4 wait 1s", "refused": 0.0, "wait_max_s": 1.0, "line_max": 4.0}, found.(map[string]any)["found"])

	d = replayed(t, "", "-rules", rules)
	require.Equal(t, document, names(d))
	require.Nil(t, d["from"])
	require.Equal(t, []any{}, d["refused_most"])
}

func TestCandidatesAreReplayedOnDemand(t *testing.T) {
	rules := file(t, "shaper.yaml", "default: {rate: 1/d, candidate: 10/s depth 9}\n")
	require.Equal(t, 4.0, replayed(t, fiveAtOnce, "-rules", rules)["rules"].([]any)[0].(map[string]any)["refused"])
	rule := replayed(t, fiveAtOnce, "-rules", rules, "-candidate")["rules"].([]any)[0].(map[string]any)
	require.Equal(t, 0.0, rule["refused"])
	require.Equal(t, "10/s depth 9", rule["limits"])
}

func TestRulesComeInLayers(t *testing.T) {
	here := file(t, "here.yaml", "default: inf\n")
	_, printed, _ := shapereplay(t, fiveAtOnce, "-rules", file(t, "all.yaml", twoMayWait)+","+here)
	require.Contains(t, printed, "(default)  inf depth 0     1         5        5")
}

// What is not simulated must be said, or the number would be trusted too much.
func TestWhatIsNotSimulatedIsSaid(t *testing.T) {
	rules := file(t, "shaper.yaml", "limits:\n  192.0.2.1: 10/s depth 9 inflight 3\n")
	log := fiveAtOnce + `198.51.100.1 - - [21/Nov/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "-"` + "\n"
	notes := replayed(t, log, "-rules", rules)["notes"]
	require.Contains(t, notes, "no rule matches the key of 1 request, and there is no default: a Group fails such calls")
	require.Contains(t, notes, "192.0.2.1: inflight 3 is not simulated, as a log does not tell how long a request takes that leaves at another instant: there may be more waiting")
	require.Equal(t, notes, replayed(t, log, "-rules", rules, "-find", "wait=1s")["notes"])
}

// The guide says how logs of other forms are described.
func TestOtherLogsCanBeDescribed(t *testing.T) {
	rules := file(t, "shaper.yaml", "default: 10/s depth 5\n")
	for _, test := range []struct {
		log  string
		args []string
	}{
		// Both arrive 50 ms apart, in the reverse order of their ends.
		{
			`192.0.2.1 - - [21/Nov/2026:08:00:01 +0000] "GET / HTTP/1.1" 200 1 "-" "-" 1795248000.900 0.850` + "\n" +
				`192.0.2.1 - - [21/Nov/2026:08:00:01 +0000] "GET / HTTP/1.1" 200 1 "-" "-" 1795248001.000 1.000` + "\n",
			[]string{"-trailing", "time duration:s", "-stamp", "end"},
		},
		{
			`{"ts":"2026-11-21T08:00:00.900Z","request":{"path":"/","verb":"GET"},"ip":"192.0.2.1","ms":850}` + "\n" +
				`{"ts":"2026-11-21T08:00:01.000Z","request":{"path":"/","verb":"GET"},"ip":"192.0.2.1","ms":1000}` + "\n",
			[]string{"-format", "json", "-fields", "time=ts,method=request.verb,uri=request.path,client=ip,duration=ms,unit=ms"},
		},
	} {
		d := replayed(t, test.log, append(test.args, "-rules", rules)...)
		require.Equal(t, "2026-11-21T08:00:00Z", d["from"])
		require.Equal(t, "2026-11-21T08:00:00.05Z", d["to"])
		require.Equal(t, 0.05, d["rules"].([]any)[0].(map[string]any)["wait_max_s"])
		require.Empty(t, d["notes"])
		require.Equal(t, "192.0.2.1", d["waited_longest"].([]any)[0].(map[string]any)["key"])
	}
	status, _, problems := shapereplay(t, fiveAtOnce, "-rules", rules, "-trailing", "duration:s", "-format", "combined")
	require.Equal(t, exitUsage, status)
	require.Equal(t, "shapereplay: -trailing: \"duration:s\", so -stamp must say what the time is: arrival (Apache) or end (nginx) (-h shows examples)\n", problems)
}

// All requests would have one key, and nobody would know why.
func TestPartsThatTheLogDoesNotTellAreNamed(t *testing.T) {
	rules := file(t, "shaper.yaml", twoMayWait)
	notes := replayed(t, fiveAtOnce, "-rules", rules, "-key", "route client_ip header:X-Api-Key")["notes"]
	require.Contains(t, notes, "no request fits a pattern of a route: these are the ones in the keys of the rules, and those of -routes")
	require.Contains(t, notes, "no line of the log has what the part header:X-Api-Key is made of, so it is empty in all keys")
	require.Len(t, replayed(t, fiveAtOnce, "-rules", rules, "-key", "route", "-routes", "GET /")["notes"], 1)
}

func TestNoRateIsFoundForSimultaneousRequestsThatMayNotWait(t *testing.T) {
	rules := file(t, "shaper.yaml", twoMayWait)
	_, printed, _ := shapereplay(t, fiveAtOnce, "-rules", rules, "-find", "wait=0s")
	require.Contains(t, printed, "  none\n")
	require.Contains(t, printed, "Note: (default): no rate keeps to it")
	require.Contains(t, replayed(t, fiveAtOnce, "-rules", rules, "-find", "wait=0s", "-spread")["found"].([]any)[0].(map[string]any)["found"], "limits")
}

func TestThePictureIsWritten(t *testing.T) {
	to := filepath.Join(t.TempDir(), "replay.svg")
	status, _, problems := shapereplay(t, fiveAtOnce, "-rules", file(t, "shaper.yaml", twoMayWait), "-svg", to)
	require.Equal(t, exitOK, status, problems)
	text, err := os.ReadFile(to)
	require.NoError(t, err)
	require.Contains(t, string(text), `aria-label="(default): of 5 requests 2 waited, 2 were refused, the longest wait was 1 s"`)
}
