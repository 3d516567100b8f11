package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
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

// What the program prints for the commands in the files testdata/*.md stands there, below the commands, with the
// status if it is not 0. If SHAPER_UPDATE_GOLDEN is 1, it is written there.
func TestCommandsPrintWhatTheirTranscriptsShow(t *testing.T) {
	transcripts, err := filepath.Glob("testdata/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, transcripts)
	for _, name := range transcripts {
		t.Run(filepath.Base(name), func(t *testing.T) {
			name, err := filepath.Abs(name)
			require.NoError(t, err)
			text := read(t, name)
			t.Chdir(t.TempDir())
			for _, file := range regexp.MustCompile("(?ms)^```text (\\S+)\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
				require.NoError(t, os.WriteFile(file[1], []byte(file[2]), 0o600))
			}
			played, commands := playedAgain(t, text)
			require.Positive(t, commands)
			if os.Getenv("SHAPER_UPDATE_GOLDEN") == "1" {
				require.NoError(t, os.WriteFile(name, []byte(played), 0o644))
				return
			}
			require.Equal(t, text, played)
		})
	}
}

// The output in docs/replay.md is the program's own for the rules that are shown there. If
// SHAPER_UPDATE_DOCS is 1, it is written there.
func TestTheGuideShowsWhatIsPrinted(t *testing.T) {
	guide, err := filepath.Abs("../../docs/replay.md")
	require.NoError(t, err)
	text := read(t, guide)
	t.Chdir(t.TempDir())
	rules := regexp.MustCompile("(?s)```yaml\n(# shaper.yaml\n.*?)```").FindStringSubmatch(text)
	require.NotNil(t, rules)
	require.NoError(t, os.WriteFile("shaper.yaml", []byte(rules[1]), 0o600))
	writeLog(t, "access.log", shopTraffic(30_000, 400, 30*time.Minute), caddyLine, "2026/11/21 08:30:01 [notice] signal process started")

	want, commands := playedAgain(t, text)
	require.Equal(t, 2, commands)
	if os.Getenv("SHAPER_UPDATE_DOCS") == "1" {
		require.NoError(t, os.WriteFile(guide, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, text)
}

// playedAgain returns a text with the output of the commands that are shown in it, and how many they are.
func playedAgain(t *testing.T, text string) (played string, commands int) {
	t.Helper()
	played = regexp.MustCompile("(?s)```\n(\\$ .*?)```").ReplaceAllStringFunc(text, func(block string) string {
		shown := "```\n"
		for line := range strings.Lines(block) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				commands++
				shown += line + printed(t, strings.TrimSuffix(command, "\n"))
			}
		}
		return shown + "```"
	})
	return played, commands
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// printed returns what a shell would show for a command.
func printed(t *testing.T, command string) (text string) {
	t.Helper()
	problems := ""
	command, isDropped := strings.CutSuffix(command, " >/dev/null")
	for part := range strings.SplitSeq(command, " | ") {
		var words []string
		for _, word := range regexp.MustCompile(`"[^"]*"|'[^']*'|\S+`).FindAllString(part, -1) {
			words = append(words, strings.Trim(word, word[:1][:strings.Count(`"'`, word[:1])]))
		}
		switch words[0] {
		case "cat":
			text = read(t, words[1])
		case "head": // -1
			text, _, _ = strings.Cut(text, "\n")
			text += "\n"
		case "shapereplay":
			var status int
			if status, text, problems = shapereplay(t, text, words[1:]...); status != exitOK {
				problems += fmt.Sprintf("(status %d)\n", status)
			}
		default:
			require.Fail(t, "a command that is not known", part)
		}
	}
	if isDropped {
		text = ""
	}
	return text + problems
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

// writeLog writes a log, with the lines in more behind the lines of the hits.
func writeLog(t *testing.T, name string, hits []hit, line func(hit) string, more ...string) {
	t.Helper()
	var text bytes.Buffer
	for _, h := range hits {
		text.WriteString(line(h) + "\n")
	}
	for _, line := range more {
		text.WriteString(line + "\n")
	}
	require.NoError(t, os.WriteFile(name, text.Bytes(), 0o600))
}

// Each of them is shown, as a transcript has it, but a table has a place for some.
func TestRulesThatNoRequestMetAreListed(t *testing.T) {
	many := "limits:\n  192.0.2.1: 2/s depth 2\n"
	for i := range 100 {
		many += fmt.Sprintf("  10.0.0.%d: 1/s\n", i)
	}
	_, printed, _ := shapereplay(t, fiveAtOnce, "-rules", file(t, "many.yaml", many))
	require.Equal(t, 20, strings.Count(printed, "\n10.0.0."))
	require.Contains(t, printed, "\n192.0.2.1  2/s depth 2")
	require.Contains(t, printed, "\n80 more rules were met by no request (-json has all)\n")
}

// A pipe that nobody reads ends the program at the first write, as of | head -1, so files come before the table. And a
// disk that is full must not throw an hour of counting away, so the table is written all the same.
func TestTheFileComesBeforeTheTableAndMayFail(t *testing.T) {
	for _, fails := range []bool{false, true} {
		folder := filepath.Join(t.TempDir(), "folder")
		require.NoError(t, os.Mkdir(folder, 0o700))
		to := filepath.Join(folder, "out")
		var printed, problems strings.Builder
		log, out := io.Reader(strings.NewReader(fiveAtOnce)), written(func(p []byte) {
			require.Equal(t, !fails, isThere(to))
			printed.Write(p)
		})
		want, says := exitOK, ""
		if fails {
			log = &removing{Reader: log, folder: folder}
			want, says = exitFailed, "shapereplay: open "+to+": no such file or directory\n"
		}
		status := run(t.Context(), []string{"-rules", file(t, "shaper.yaml", twoMayWait), "-export", to}, streams{in: log, out: out, err: &problems})
		require.Equal(t, want, status)
		require.Contains(t, printed.String(), "  2 (40%)")
		require.Equal(t, says, problems.String())
	}
}

func isThere(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// A written is called with what is written to it.
type written func(p []byte)

func (w written) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
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

// A client that sends a name of 20 kB, as of X-Forwarded-For, would fill the operator's terminal, and whatever reads the JSON.
func TestNoOutputCarriesMoreOfANameThanAFewDozenBytes(t *testing.T) {
	const line = `%s - - [21/Nov/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" %q` + "\n"
	const call = `{"time":"2026-11-21T08:00:00Z","team":%q,"status":200,"estimate":{"input":900,"output":1},"waited":0,"duration":1}` + "\n"
	rules := file(t, "shaper.yaml", twoMayWait)
	for _, unit := range []string{"x", "\x01", "ä", "\xff", "\u202e", "\\", `"`, "x,", "<", "\u00a0"} {
		long := strings.Repeat(unit, 20_000)
		quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(long)
		for name, test := range map[string]struct {
			log  string
			args []string
		}{
			"client":  {strings.Repeat(fmt.Sprintf(line, "a"+long+"1", "-"), 4) + strings.Repeat(fmt.Sprintf(line, "a"+long+"2", "-"), 4), []string{"-rules", rules}},
			"field":   {strings.Repeat(fmt.Sprintf(line, "192.0.2.1", long), 8), []string{"-rules", rules, "-key", "header:User-Agent client_ip"}},
			"goal":    {strings.Repeat(fmt.Sprintf(line, "a"+long, "-"), 4), []string{"-rules", rules, "-find", "wait=1s"}},
			"broken":  {fmt.Sprintf(line, "192.0.2.1", "") + long + "\n", []string{"-rules", rules}},
			"nothing": {long + "\n", []string{"-rules", rules}},
			"unread":  {fmt.Sprintf(line, long, ""), []string{"-rules", rules, "-format", "caddy"}},
			"team":    {strings.Repeat(fmt.Sprintf(call, "a"+strings.ToValidUTF8(long, "?")), 4), []string{"-format", "usage", "-provider", "bedrock", "-tokens", "1000"}},
			"JSON":    {`{"time":1795348800,"method":"GET","path":"/","client":"` + quoted + `"}` + "\n", []string{"-rules", rules}},
		} {
			forms := []string{"", "-json"}
			if name != "team" {
				forms = append(forms, "-export="+filepath.Join(t.TempDir(), "list"))
			}
			for _, form := range forms {
				_, printed, problems := shapereplay(t, test.log, append(test.args, strings.Fields(form)...)...)
				all := printed + problems
				if list, isList := strings.CutPrefix(form, "-export="); isList && problems == "" {
					all += read(t, list)
				}
				require.Less(t, len(all), 8000, "%s of %q %s", name, unit, form)
			}
		}
	}
}

func TestNULsThatAreSkippedAreSaid(t *testing.T) {
	status, printed, _ := shapereplay(t, strings.Repeat("\x00", 1_234_567)+fiveAtOnce, "-rules", file(t, "shaper.yaml", twoMayWait))
	require.Equal(t, exitOK, status)
	require.Contains(t, printed, "\n192.0.2.1  (default)         5 ")
	require.Contains(t, printed, "\nNote: 1,234,567 NUL bytes before the lines are skipped, as a rotation that copies")
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
