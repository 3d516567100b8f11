package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shapereplay runs the program and returns its status and its output.
func shapereplay(t *testing.T, stdin string, args ...string) (status int, printed, problems string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), args, streams{in: strings.NewReader(stdin), out: &out, err: &errs})
	return status, out.String(), errs.String()
}

// file writes a file and returns its name.
func file(t *testing.T, name, text string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// Of five requests at once one leaves, two wait, and two are refused.
const (
	fiveAtOnce = `192.0.2.1 - - [21/Nov/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "-"
192.0.2.1 - - [21/Nov/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "-"
192.0.2.1 - - [21/Nov/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "-"
192.0.2.1 - - [21/Nov/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "-"
192.0.2.1 - - [21/Nov/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "-"
`
	twoMayWait = "default: 2/s depth 2\n"
)

func TestTheWindowCutsTheLog(t *testing.T) {
	rules := file(t, "shaper.yaml", twoMayWait)
	log := fiveAtOnce + strings.ReplaceAll(fiveAtOnce, "08:00:00", "09:00:00") + strings.ReplaceAll(fiveAtOnce, "08:00:00", "10:00:00")
	_, printed, _ := shapereplay(t, log, "-rules", rules, "-from", "2026-11-21 08:30", "-to", "2026-11-21T11:00:00+01:00")
	require.Contains(t, printed, "5 requests of 1 key (client_ip), 2026-11-21 09:00:00Z to 2026-11-21 09:00:00Z\n")
	for _, window := range [][]string{{"-from", "2026-12-01"}, {"-to", "2026-11-01"}} {
		status, printed, _ := shapereplay(t, log, append(window, "-rules", rules)...)
		require.Equal(t, exitOK, status)
		require.Contains(t, printed, "No requests\n\nNote: no request of the log is within -from and -to\n")
	}
}

func TestTheExportHasAddressesForAFirewall(t *testing.T) {
	log := strings.ReplaceAll(fiveAtOnce, "192.0.2.1", "2001:db8::1") + strings.ReplaceAll(fiveAtOnce, "192.0.2.1", "pc.example") + fiveAtOnce + fiveAtOnce
	to := filepath.Join(t.TempDir(), "block.txt")
	status, _, problems := shapereplay(t, log, "-rules", file(t, "shaper.yaml", twoMayWait), "-export", to)
	require.Equal(t, exitOK, status, problems)
	text, err := os.ReadFile(to)
	require.NoError(t, err)
	require.Equal(t, "192.0.2.1\n2001:db8::/64\n", string(text))
	status, _, problems = shapereplay(t, log, "-rules", file(t, "shaper.yaml", twoMayWait), "-ipv6-bits", "48", "-export", to)
	require.Equal(t, exitOK, status, problems)
	text, err = os.ReadFile(to)
	require.NoError(t, err)
	require.Equal(t, "192.0.2.1\n2001:db8::/48\n", string(text))
}

func TestEveryMistakeGetsOneClearError(t *testing.T) {
	rules := file(t, "shaper.yaml", twoMayWait)
	routes := file(t, "routes.yaml", "default: 1/s\nlimits:\n  \"%2F{\": 1/s\n")
	caddy := file(t, "caddy.log", `{"ts":1795248000.5,"request":{"remote_ip":"192.0.2.1","method":"GET","uri":"/a"},"duration":0.1}`+"\n")
	log := file(t, "access.log", fiveAtOnce)
	for _, test := range []struct {
		args   string
		status int
		want   string
	}{
		{log, exitUsage, "-rules is missing: which limits are to be replayed? (-h shows examples)"},
		{"-rules RULES -find p99=1s LOG", exitUsage, `invalid value "p99=1s" for flag -find: "p99=1s": the names are wait, refused and burst (-h shows examples)`},
		{"-rules RULES -find wait=1s -svg x.svg LOG", exitUsage, "-svg shows a replay, and -find searches: use one of them (-h shows examples)"},
		{"-rules RULES -find wait=1s -candidate LOG", exitUsage, "-candidate shows a replay, and -find searches: use one of them (-h shows examples)"},
		{"-rules RULES -key ip LOG", exitUsage, `-key: "ip": the parts are route, client_ip, host, header:NAME and all (-h shows examples)`},
		{"-rules RULES -key= LOG", exitUsage, `-key "": must name parts, or be all (-h shows examples)`},
		{"-rules RULES -routes /a LOG", exitUsage, `-routes is for the part route, and -key is "client_ip" (-h shows examples)`},
		{"-rules RULES -key route -routes /a,/{ LOG", exitUsage, `invalid value "/a,/{" for flag -routes: "/{" cannot be a route: parsing "/{": at offset 1: bad wildcard segment (must end with '}') (-h shows examples)`},
		{"-rules RULES -key route -routes /a,,/b LOG", exitUsage, `invalid value "/a,,/b" for flag -routes: "" is not the name of a route (-h shows examples)`},
		{"-rules ROUTES -key route LOG", exitFailed, `ROUTES:3: "%2F{": "/{" cannot be a route: parsing "/{": at offset 1: bad wildcard segment (must end with '}')`},
		{"-rules RULES -from noon LOG", exitUsage, `invalid value "noon" for flag -from: must be a time such as 2026-11-22T13:00:00Z, or "2026-11-22 13:00" in UTC (-h shows examples)`},
		{"-rules RULES -from 2026-11-22 -to 2026-11-21 LOG", exitUsage, "-from 2026-11-22T00:00:00Z is not before -to 2026-11-21T00:00:00Z (-h shows examples)"},
		{"-rules RULES -format xml LOG", exitUsage, `-format: "xml": must be auto, alb, caddy, cloudfront, combined, elb, envoy, haproxy, json, traefik, usage or w3c, or a log_format of nginx such as '$remote_addr [$time_local] "$request" $status' (-h shows examples)`},
		{"-rules RULES -format caddy -fields time=ts LOG", exitUsage, "-fields: of the format json, and the format is caddy (-h shows examples)"},
		{"-rules RULES -format json -trailing time LOG", exitUsage, "-trailing: of the format combined, and the format is json (-h shows examples)"},
		{"-rules RULES -fields time=nope CADDY", exitFailed, "none of the 1 lines of CADDY could be used, as CADDY:1 (no time that can be read): "},
		{"-rules RULES -fields when=ts LOG", exitUsage, `invalid value "when=ts" for flag -fields: "when=ts": the names are time, method, uri, host, client, status, duration, header:NAME and unit (-h shows examples)`},
		{"-rules RULES -fields unit=min LOG", exitUsage, `invalid value "unit=min" for flag -fields: "unit=min": the units are s, ms, us and ns (-h shows examples)`},
		{"-rules RULES -status 42 LOG", exitUsage, `invalid value "42" for flag -status: "42": must be statuses such as 429, 5xx or 300-399, and a ! before all of them leaves them out (-h shows examples)`},
		{"-rules RULES -path api LOG", exitUsage, `invalid value "api" for flag -path: "api": must begin with / or *, as /login, /api/ and *.php do, and a ! before all of them leaves them out (-h shows examples)`},
		{"-rules RULES -json -nginx LOG", exitUsage, "-json and -nginx both say what is printed: use one of them (-h shows examples)"},
		{"-rules RULES -stamp now LOG", exitUsage, `-stamp: "now", must be arrival or end (-h shows examples)`},
		{"-rules RULES -ipv6-bits 0 LOG", exitUsage, "-ipv6-bits 0: must be from 1 to 128 (-h shows examples)"},
		{"-rules RULES -ipv6-bits 129 LOG", exitUsage, "-ipv6-bits 129: must be from 1 to 128 (-h shows examples)"},
		{"-rules RULES -top -1 LOG", exitUsage, "-top -1: must not be negative (-h shows examples)"},
		{"-rules RULES -svg /nowhere/x.svg LOG", exitUsage, `invalid value "/nowhere/x.svg" for flag -svg: stat /nowhere: no such file or directory (-h shows examples)`},
		{"-rules RULES -export LOG LOG", exitUsage, "-export LOG would write over what is read (-h shows examples)"},
		{"-rules RULES -svg RULES LOG", exitUsage, "-svg RULES would write over what is read (-h shows examples)"},
		{"-rules RULES -svg new.svg -export ./new.svg LOG", exitUsage, "-svg and -export would write the same file (-h shows examples)"},
		{"-rules RULES, LOG", exitUsage, `invalid value "RULES," for flag -rules: "" is not the name of a file (-h shows examples)`},
		{"-rules RULES -frob LOG", exitUsage, "flag provided but not defined: -frob (-h shows examples)"},
		{"-rules none.yaml LOG", exitFailed, "none.yaml: cannot be read: no such file or directory"},
		{"-rules RULES none.log", exitFailed, "open none.log: no such file or directory"},
		{"-rules RULES LOG LOG", exitFailed, "LOG and LOG are the same, so its requests would count twice"},
		{"-rules RULES RULES", exitFailed, "RULES: the format is none of alb, caddy, cloudfront, combined, elb, envoy, haproxy, json, traefik, usage or w3c; it begins with default: 2/s depth 2\nSay what its lines look like, in the words of a log_format of nginx: -format '$remote_addr [$time_local] \"$request\" $status'\n"},
		{"-rules RULES -format caddy LOG", exitFailed, "none of the 5 lines of LOG could be used, as LOG:1 (not in the format of the file): "},
	} {
		args := strings.NewReplacer("RULES", rules, "ROUTES", routes, "CADDY", caddy, "LOG", log).Replace(test.args)
		want := strings.NewReplacer("RULES", rules, "ROUTES", routes, "CADDY", caddy, "LOG", log).Replace(test.want)
		status, printed, problems := shapereplay(t, "", strings.Fields(args)...)
		require.Equal(t, test.status, status, "%s: %s", test.args, problems)
		require.Empty(t, printed)
		require.Truef(t, strings.HasPrefix(problems, "shapereplay: "+want), "%s\nprints %s\nwant   shapereplay: %s", test.args, problems, want)
	}
	_, _, problems := shapereplay(t, "", "-rules", rules, "-format", "caddy", log)
	require.Contains(t, problems, "Try another -format: alb, caddy, cloudfront, combined, elb, envoy, haproxy, json, traefik, usage or w3c. Say what its lines look like")
}

func TestTheUsageIsPrintedOnDemand(t *testing.T) {
	status, printed, problems := shapereplay(t, "", "-h")
	require.Equal(t, exitOK, status)
	require.Empty(t, problems)
	require.Equal(t, usage, printed)
	for line := range strings.Lines(usage) {
		require.LessOrEqual(t, len([]rune(line)), 81, line)
	}
}

// Ctrl-C while standard input waits for more must show the counts so far, not throw them away.
func TestAnInterruptShowsWhatWasCounted(t *testing.T) {
	for _, test := range []struct{ goal, want string }{
		{"", "  2 (40%)"},
		{"wait=1s", "4/s depth 4 wait 1s"},
	} {
		ctx, interrupt := context.WithCancel(t.Context())
		in, lines := io.Pipe()
		var out, problems bytes.Buffer
		args := []string{"-rules", file(t, "shaper.yaml", twoMayWait)}
		if test.goal != "" {
			args = append(args, "-find", test.goal)
		}
		done := make(chan int)
		go func() { done <- run(ctx, args, streams{in: in, out: &out, err: &problems}) }()
		_, err := io.WriteString(lines, fiveAtOnce)
		require.NoError(t, err)
		_, err = io.WriteString(lines, "\n") // By now the five lines have been read.
		require.NoError(t, err)
		interrupt()
		require.Equal(t, exitInterrupted, <-done)
		require.NoError(t, lines.Close())
		require.Empty(t, problems.String())
		require.Contains(t, out.String(), "5 requests of 1 key (client_ip), 2026-11-21 08:00:00Z to 2026-11-21 08:00:00Z, interrupted\n")
		require.Contains(t, out.String(), test.want)
	}
}

// Of files so much is left that nobody who has pressed Ctrl-C would wait for it.
func TestAnInterruptEndsTheReadingOfFiles(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	log := file(t, "access.log", strings.Repeat(fiveAtOnce, 10_000))
	var out, problems bytes.Buffer
	status := run(ctx, []string{"-rules", file(t, "shaper.yaml", twoMayWait), "-json", log}, streams{out: &out, err: &problems})
	require.Equal(t, exitInterrupted, status)
	require.Empty(t, problems.String())
	require.Contains(t, out.String(), `"requests": 1023,`)
	require.Contains(t, out.String(), `"interrupted": true,`)
}

const docs = "../../docs"

// The output in docs/replay.md is the program's own for the rules that are shown there, and so is
// the picture. If SHAPER_UPDATE_DOCS is 1, both are written there.
func TestTheGuideShowsWhatIsPrinted(t *testing.T) {
	folder, err := filepath.Abs(docs)
	require.NoError(t, err)
	guide, picture := filepath.Join(folder, "replay.md"), filepath.Join(folder, "replay.svg")
	text, err := os.ReadFile(guide)
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	rules := regexp.MustCompile("(?s)```yaml\n(# shaper.yaml\n.*?)```").FindSubmatch(text)
	require.NotNil(t, rules)
	require.NoError(t, os.WriteFile("shaper.yaml", rules[1], 0o600))
	hits := shopTraffic(30_000, 400, 30*time.Minute)
	here, err := os.Getwd()
	require.NoError(t, err)
	writeLog(t, filepath.Join(here, "access.log"), hits, caddyLine, "2026/11/21 08:30:01 [notice] signal process started")
	writeLog(t, filepath.Join(here, "combined.log"), hits, combinedLine)

	commands := 0
	want := regexp.MustCompile("(?s)```\n(\\$ .*?)```").ReplaceAllFunc(text, func(block []byte) []byte {
		shown := "```\n"
		for line := range strings.Lines(string(block)) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				commands++
				shown += line + printed(t, strings.TrimSuffix(command, "\n"))
			}
		}
		return []byte(shown + "```")
	})
	require.Equal(t, 9, commands)
	drawn, err := os.ReadFile("replay.svg")
	require.NoError(t, err)
	if os.Getenv("SHAPER_UPDATE_DOCS") == "1" {
		require.NoError(t, os.WriteFile(guide, want, 0o644))
		require.NoError(t, os.WriteFile(picture, drawn, 0o644))
		return
	}
	require.Equal(t, string(want), string(text))
	before, err := os.ReadFile(picture)
	require.NoError(t, err)
	require.Equal(t, string(drawn), string(before))
}

// printed returns the output of a command, which may get its standard input from grep.
func printed(t *testing.T, command string) string {
	t.Helper()
	if name, ok := strings.CutPrefix(command, "cat "); ok {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(text)
	}
	m := regexp.MustCompile(`^(?:grep -vF (\S+) (\S+) \| )?shapereplay (.*?)( >/dev/null)?$`).FindStringSubmatch(command)
	require.NotNil(t, m, command)
	var in, out, problems bytes.Buffer
	if m[1] != "" {
		text, err := os.ReadFile(m[2])
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if !strings.Contains(line, m[1]) {
				in.WriteString(line)
			}
		}
	}
	var args []string
	for _, word := range regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(m[3], -1) {
		args = append(args, strings.Trim(word, `"`))
	}
	status := run(t.Context(), args, streams{in: &in, out: &out, err: &problems})
	require.Equal(t, exitOK, status, problems.String())
	if m[4] != "" {
		out.Reset()
	}
	return out.String() + problems.String()
}

// A hit is one request of a made-up shop.
type hit struct {
	at           time.Duration
	client       string
	method, path string
	took         time.Duration
}

// opening is when the shop's log begins.
var opening = time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)

// shopTraffic returns requests in the order of their arrival, always the same: visitors
// who load pages with all that belongs to them, some who log in, and a crawler that asks 25
// times a second for a tenth of the time.
func shopTraffic(requests, clients int, span time.Duration) []hit {
	chance := rand.New(rand.NewPCG(16, 8))
	within := func(d time.Duration) time.Duration { return time.Duration(chance.Int64N(int64(d))) }
	var all []hit
	add := func(at time.Duration, client, method, path string) {
		all = append(all, hit{at, client, method, path, time.Millisecond + within(40*time.Millisecond)})
	}
	for at := span * 2 / 5; at < span/2 && len(all) < requests/4; at += 20*time.Millisecond + within(40*time.Millisecond) {
		add(at, "203.0.113.9", "GET", fmt.Sprintf("/items/%d", len(all)))
	}
	for len(all) < requests {
		at := within(span)
		n := chance.IntN(clients)
		client := fmt.Sprintf("198.51.%d.%d", n/250, 1+n%250)
		if n%5 == 0 {
			client = fmt.Sprintf("2001:db8:%x::%x", n, 1+chance.IntN(0xffff))
		}
		if chance.IntN(12) == 0 {
			for range 1 + chance.IntN(5) {
				add(at, client, "POST", "/login")
				at += time.Second + within(5*time.Second)
			}
			continue
		}
		add(at, client, "GET", fmt.Sprintf("/items/%d", chance.IntN(1000)))
		for asset := range chance.IntN(14) {
			add(at+50*time.Millisecond+within(300*time.Millisecond), client, "GET", fmt.Sprintf("/assets/%d.js", asset))
		}
	}
	all = slices.DeleteFunc(all, func(h hit) bool { return h.at >= span })
	slices.SortStableFunc(all, func(a, b hit) int { return cmp.Compare(a.at, b.at) })
	return all[:min(requests, len(all))]
}

// caddyLine returns a line of the access log of Caddy, which writes it at the end.
func caddyLine(h hit) string {
	return fmt.Sprintf(`{"level":"info","ts":%.7f,"logger":"http.log.access.log0","msg":"handled request","request":{"remote_ip":"%[2]s","remote_port":"40123","client_ip":"%[2]s","proto":"HTTP/2.0","method":"%s","host":"shop.example","uri":"%s","headers":{"User-Agent":["Mozilla/5.0"]}},"bytes_read":0,"user_id":"","duration":%.9f,"size":5120,"status":200,"resp_headers":{"Server":["Caddy"]}}`,
		float64(opening.Add(h.at+h.took).UnixMicro())/1e6, h.client, h.method, h.path, h.took.Seconds())
}

// combinedLine returns a line of the combined format.
func combinedLine(h hit) string {
	return fmt.Sprintf(`%s - - [%s] "%s %s HTTP/1.1" 200 5120 "https://shop.example/" "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"`,
		h.client, opening.Add(h.at).Format("02/Jan/2006:15:04:05 -0700"), h.method, h.path)
}

// writeLog writes a log, with the lines in more behind the lines of the hits.
func writeLog(t testing.TB, name string, hits []hit, line func(hit) string, more ...string) string {
	t.Helper()
	if !filepath.IsAbs(name) && filepath.Base(name) == name {
		name = filepath.Join(t.TempDir(), name)
	}
	f, err := os.Create(name)
	require.NoError(t, err)
	w := bufio.NewWriter(f)
	for _, h := range hits {
		_, err := io.WriteString(w, line(h)+"\n")
		require.NoError(t, err)
	}
	for _, text := range more {
		_, err := io.WriteString(w, text+"\n")
		require.NoError(t, err)
	}
	require.NoError(t, w.Flush())
	require.NoError(t, f.Close())
	return name
}

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
// replayed on one core within 4 s:
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
