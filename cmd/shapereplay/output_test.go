package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
	log := `192.0.2.1 [1795248000.900] 0.850 shop.example/a "GET"` + "\n"
	for _, format := range []string{`$remote_addr [$msec] $request_time $host$request_uri "$request_method"`, "log_format timed '$remote_addr [$msec] ' '$request_time $host$request_uri \"$request_method\"';"} {
		require.Equal(t, "2026-11-21T08:00:00.05Z", replayed(t, log, "-rules", rules, "-format", format)["from"])
	}
	status, _, problems := shapereplay(t, fiveAtOnce, "-rules", rules, "-trailing", "duration:s", "-format", "combined")
	require.Equal(t, exitUsage, status)
	require.Equal(t, "shapereplay: -trailing: \"duration:s\", so stamp must say what the time is: arrival (Apache) or end (nginx) (-h shows examples)\n", problems)
}

func TestOnlyStatusesAndPathsThatAreWantedAreReplayed(t *testing.T) {
	rules := file(t, "shaper.yaml", twoMayWait)
	log := ""
	for path, statuses := range map[string][]int{"/": {200, 429}, "/login": {200, 503}, "/api/a.php": {304}, "/api/b": {500}, "/health": {200}} {
		for _, status := range statuses {
			log += fmt.Sprintf("192.0.2.1 - - [21/Nov/2026:08:00:00 +0000] \"GET %s HTTP/1.1\" %d 1\n", path, status)
		}
	}
	for flags, want := range map[string]float64{
		"": 7, "-status 200": 3, "-status 200,5xx": 5, "-status 300-399": 1, "-status !429,503": 5, "-status 1xx": 0,
		"-path /": 7, "-path /login": 2, "-path /api/,/health": 3, "-path *.php": 1, "-path /*/a*p": 1, "-path /log": 0, "-path !/health,/api/": 4, "-path *": 7,
		"-path /login -status 5xx": 1,
	} {
		d := replayed(t, log, append(strings.Fields(flags), "-rules", rules)...)
		require.Equal(t, want, d["requests"], flags)
		left := fmt.Sprintf("%v requests of other statuses or paths are left out (-status, -path)", 7-want)
		require.Equal(t, want < 6, slices.Contains(d["notes"].([]any), any(left)), flags)
	}
}

// What is printed for nginx and for Caddy is tested in package report.
func TestLimitsArePrintedAsConfiguration(t *testing.T) {
	rules := file(t, "shaper.yaml", twoMayWait)
	for flags, want := range map[string]string{
		"-nginx":               "limit_req_zone \"$binary_remote_addr\" zone=shape_1:10m rate=2r/s;\n\n# These may stand in a block server or location instead.\nlimit_req_status 429;\nlimit_req zone=shape_1 burst=2;\n",
		"-caddy":               "\n\nshape {\n\trules " + rules + "\n\tkey client_ip\n}\n",
		"-caddy -find wait=1s": "\n\nshape {\n\tlimits 4/s depth 4 wait 1s\n\tkey client_ip\n}\n",
	} {
		status, printed, problems := shapereplay(t, fiveAtOnce, append(strings.Fields(flags), "-rules", rules)...)
		require.Equal(t, exitOK, status, problems)
		require.True(t, strings.HasPrefix(printed, "# 5 requests of 1 key (client_ip), "), printed)
		require.True(t, strings.HasSuffix(printed, want), printed)
	}
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

// What is left out would be taken for what holds nobody up, or for a misspelling.
func TestRulesThatNoRequestMetAreListed(t *testing.T) {
	rules := file(t, "shaper.yaml", "default: 2/s depth 2\nlimits:\n  192.0.2.99: 9/s\n  api: {rate: 1/s, candidate: 5/s inflight 3}\n")
	_, printed, _ := shapereplay(t, fiveAtOnce, "-rules", rules)
	require.Contains(t, printed, `
RULE        LIMITS       KEYS  REQUESTS  AT ONCE  WAITED  REFUSED  QUEUE-FULL  TOO-LATE     P50  P95  P99  LONGEST  LINE
(default)   2/s depth 2     1         5        1       2  2 (40%)           2         0  500 ms  1 s  1 s      1 s     2
192.0.2.99  9/s depth 0     0         0        0       0        0           0         0       0    0    0        0     0
api         1/s depth 0     0         0        0       0        0           0         0       0    0    0        0     0
`)
	_, printed, _ = shapereplay(t, fiveAtOnce, "-rules", rules, "-find", "wait=200ms refused=20%")
	require.Contains(t, printed, `
RULE        KEYS  REQUESTS  NOW          REFUSED  LONGEST  FOUND                    REFUSED  LONGEST
(default)      1         5  2/s depth 2  2 (40%)      1 s  15/s depth 3 wait 200ms  1 (20%)   200 ms
192.0.2.99     0         0  9/s depth 0        0        0  no request
api            0         0  1/s depth 0        0        0  no request
`)
	require.NotContains(t, printed, "no rate keeps to it")
	d := replayed(t, fiveAtOnce, "-rules", rules, "-candidate")
	require.Len(t, d["rules"], 3)
	require.Equal(t, 0.0, d["rules"].([]any)[2].(map[string]any)["requests"])
	require.NotContains(t, fmt.Sprint(d["notes"]), "inflight")

	to := filepath.Join(t.TempDir(), "replay.svg")
	status, _, problems := shapereplay(t, fiveAtOnce, "-rules", rules, "-svg", to)
	require.Equal(t, exitOK, status, problems)

	many := "default: 2/s depth 2\nlimits:\n"
	for i := range 100 {
		many += fmt.Sprintf("  k%d: 1/s\n", i)
	}
	_, printed, _ = shapereplay(t, fiveAtOnce, "-rules", file(t, "many.yaml", many))
	require.Contains(t, printed, "\n80 more rules were met by no request (-json has all)\n")
}

// A disk that is full must not throw an hour of counting away.
func TestTheTableIsPrintedThoughAFileCannotBeWritten(t *testing.T) {
	rules, folder := file(t, "shaper.yaml", twoMayWait), filepath.Join(t.TempDir(), "folder")
	for _, flag := range []string{"-svg", "-export"} {
		to := filepath.Join(folder, "out")
		require.NoError(t, os.MkdirAll(folder, 0o700))
		var printed, problems strings.Builder
		log := &removing{Reader: strings.NewReader(fiveAtOnce), folder: folder}
		status := run(t.Context(), []string{"-rules", rules, flag, to}, streams{in: log, out: &printed, err: &problems})
		require.Equal(t, exitFailed, status)
		require.Contains(t, printed.String(), "  2 (40%)")
		require.Equal(t, "shapereplay: open "+to+": no such file or directory\n", problems.String())
	}
}

// A removing removes a folder while a log is read.
type removing struct {
	io.Reader
	folder string
}

func (r *removing) Read(p []byte) (int, error) {
	_ = os.RemoveAll(r.folder)
	return r.Reader.Read(p)
}

func TestHeadsAndClientsThatAreNoAddressesAreSaid(t *testing.T) {
	rules := file(t, "shaper.yaml", twoMayWait)
	headed := ""
	for line := range strings.Lines(fiveAtOnce) {
		headed += "Nov 21 08:00:00 web1 nginx[815]: " + line
	}
	d := replayed(t, headed, "-rules", rules)
	require.Contains(t, d["notes"], "the lines of 5 requests have a head of a collector before them, which is skipped: syslog or journald")
	require.Equal(t, "192.0.2.1", d["refused_most"].([]any)[0].(map[string]any)["key"])

	unknown := strings.ReplaceAll(fiveAtOnce, "192.0.2.1", "app-17>")
	require.Contains(t, replayed(t, unknown+fiveAtOnce, "-rules", rules)["notes"], `the client of 5 requests is no address, such as "app-17>"`)
	require.Contains(t, replayed(t, strings.ReplaceAll(fiveAtOnce, "192.0.2.1", "192.0.2.1, 10.0.0.1"), "-rules", rules)["notes"],
		"the log tells a list of addresses for 5 requests, as of X-Forwarded-For: the client is taken to be the last that is not private")
}

// The number would be right for a client that does not exist.
func TestNothingIsFoundForClientsThatAreNoAddresses(t *testing.T) {
	rules := file(t, "shaper.yaml", twoMayWait)
	unknown := strings.ReplaceAll(fiveAtOnce, "192.0.2.1", "app-17>")
	status, printed, problems := shapereplay(t, unknown+fiveAtOnce+unknown, "-rules", rules, "-find", "wait=1s")
	require.Equal(t, exitFailed, status)
	require.Empty(t, printed)
	require.Equal(t, `shapereplay: the client of 10 requests, which are most, is no address, such as "app-17>": -find would look for limits of these. `+
		"Is there a head before the lines that is not known? With another -key than client_ip it does not matter\n", problems)
	for _, args := range [][]string{{"-find", "wait=1s", "-key", "all"}, {"-key", "client_ip"}} {
		status, _, problems := shapereplay(t, unknown, append(args, "-rules", rules)...)
		require.Equal(t, exitOK, status, problems)
	}
	status, _, problems = shapereplay(t, unknown+fiveAtOnce, "-rules", rules, "-find", "wait=1s")
	require.Equal(t, exitOK, status, problems)
}

// Somebody who has forgotten the name of the log must not wait for what never comes.
func TestATerminalIsToldThatItIsRead(t *testing.T) {
	rules := file(t, "shaper.yaml", twoMayWait)
	var printed, problems strings.Builder
	status := run(t.Context(), []string{"-rules", rules}, streams{in: strings.NewReader(fiveAtOnce), typed: true, out: &printed, err: &problems})
	require.Equal(t, exitOK, status)
	require.Equal(t, "shapereplay: the log is read from this terminal, until Ctrl-D (-h shows how to name a file)\n", problems.String())
	problems.Reset()
	run(t.Context(), []string{"-rules", rules, file(t, "access.log", fiveAtOnce)}, streams{typed: true, out: &printed, err: &problems})
	require.Empty(t, problems.String())
}

func TestProgressIsShownAndRemoved(t *testing.T) {
	began, shown := time.Now(), strings.Builder{}
	p := progress{streams: streams{err: &shown, progress: true}, began: began}
	half := func() (int64, int64) { return 250, 1000 }
	p.show(began.Add(time.Second), 1234, half)
	p.show(began.Add(time.Second+99*time.Millisecond), 1235, half) // too soon
	p.show(began.Add(2*time.Second), 1236, func() (int64, int64) { return 250, 0 })
	p.end()
	const line = "[#######.......................]  25%  1234 requests read  3s left"
	require.Equal(t, "\r"+line+"\r"+fmt.Sprintf("%-*s", len(line), "1236 requests read")+"\r"+strings.Repeat(" ", len("1236 requests read"))+"\r", shown.String())

	shown.Reset()
	p = progress{streams: streams{err: &shown}}
	p.show(began, 1, half)
	p.end()
	require.Empty(t, shown.String(), "without a terminal")
}

// A million lines of the combined format, of 10,000 clients and with bursts, are to be
// replayed on one core within 10 s:
//
//	GOMAXPROCS=1 go test -run='^$' -bench=AMillion -benchtime=1x ./cmd/shapereplay
func BenchmarkAMillionLines(b *testing.B) {
	log := writeLog(b, "access.log", shopTraffic(1_000_000, 10_000, 24*time.Hour), combinedLine)
	rules := filepath.Join(b.TempDir(), "shaper.yaml")
	require.NoError(b, os.WriteFile(rules, []byte("default: 10/s burst 5 depth 20 wait 2s\nlimits:\n  \"POST %2Flogin\": 5/min burst 3\n"), 0o600))
	for name, args := range map[string][]string{
		"replay":           {},
		"route_and_client": {"-key", "route client_ip"},
		"picture":          {"-svg", filepath.Join(b.TempDir(), "r.svg"), "-spread"},
		"find":             {"-find", "wait=200ms refused=0.1%"},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				status := run(b.Context(), append([]string{"-rules", rules, log}, args...), streams{out: io.Discard, err: os.Stderr})
				require.Equal(b, exitOK, status)
			}
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/million")
		})
	}
}
