package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper"
)

func TestMain(m *testing.M) {
	// The tests of the whole program mostly wait, so more of them may run at once than
	// there are processors. A flag -parallel comes later, and counts.
	if err := flag.Set("test.parallel", strconv.Itoa(max(16, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// limitsOf parses limits that a test relies on.
func limitsOf(t *testing.T, text string) shaper.Limits {
	t.Helper()
	l, err := shaper.ParseLimits(text)
	require.NoError(t, err)
	return l
}

// undisturbed runs a function that depends on real time and reports whether it went well. If it did
// not, it has another try, up to eight in all, but only if this process was late by more than most
// meanwhile: other work of the machine delays all goroutines of the process, and one goroutine does
// nothing but look at the clock.
func undisturbed(most time.Duration, run func() (well bool)) {
	for range 8 {
		well := false
		if late := realtime.LongestStall(func() { well = run() }); well || late <= most {
			return
		}
	}
}

// A program is a run of the whole program.
type program struct {
	signals        chan os.Signal
	stdout, stderr servers.Output
	status         chan int // has room for the one status
}

// start starts the program. The test must wait for its end.
func start(args ...string) *program { return startOn(nil, args...) }

// startOn is start with another standard output.
func startOn(stdout io.Writer, args ...string) *program {
	p := &program{signals: make(chan os.Signal, 2), status: make(chan int, 1)}
	if stdout == nil {
		stdout = &p.stdout
	}
	go func() { p.status <- run(p.signals, args, stdout, &p.stderr) }()
	return p
}

// awaits waits until the program prints a match of pattern, and returns the first one.
func (p *program) awaits(t *testing.T, pattern string) (found string) {
	t.Helper()
	realtime.Until(t, func() bool {
		found = regexp.MustCompile(pattern).FindString(p.stdout.String())
		return found != ""
	}, pattern+" in what is shown")
	return found
}

// ends waits for the end of the program, and returns its exit status.
func (p *program) ends(t *testing.T) int {
	t.Helper()
	return realtime.Next(t, p.status)
}

// Half of the impatient clients are uploading while they wait, so the run with -vanish
// fails without ConnContext.
func TestOnceShowsAndJudges(t *testing.T) {
	t.Parallel()
	svg := filepath.Join(t.TempDir(), "burst.svg")
	for name, c := range map[string]struct {
		args   []string
		status int
		shows  []string // patterns
	}{
		"vanish": {[]string{"-limits", "60/s depth 20", "-burst", "120", "-vanish", "50%", "-svg", svg}, exitOK, []string{
			"20 may wait, the last for 333 ms", "request 22 of a simultaneous burst is refused",
			"direct: 120 reach the upstream", "shaped: 120 arrive at the proxy", `(?m)^  sent +120 +120$`,
			`(?m)^  refused with 429 +0 +[1-9]\d*$`, `(?m)^  failed \(5xx\) +[1-9]\d* +0$`,
			"Sending 120 requests through the shaper, 60 impatient", `shaped: \d+ disconnect while waiting`,
			`(?m)^  by impatient clients +- +60$`, `(?m)^  disconnected while waiting +- +[1-9]\d*$`, `(?m)^  slots wasted on these +- +[01]$`,
			`disconnected while they waited and cost (no|1) slot;\n  \d+ were served, and the other \d+ were refused`,
		}},
		"the burst fits": {[]string{"-limits", "100/s depth 10", "-burst", "3"}, exitFailed, []string{"nothing to show: try a larger -burst"}},
		"outbound": {[]string{"-outbound", "-limits", "5/s depth 20 slack 10ms", "-callers", "20"}, exitOK, []string{
			"within 50 ms", "20 callers call the API directly",
			`(?m)^  refused by the API, with 429 +[1-9]\d* +0$`, `(?m)^  served per second +[0-3](\.\d+)? +\d(\.\d+)?$`,
			`✓ Direct: \d+ calls were refused by the API, \d served\.\n  Through the Transport: none refused, \d+ served\.\n$`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p *program
			var status int
			undisturbed(50*time.Millisecond, func() bool {
				p = start(append(c.args, "-once")...)
				status = p.ends(t)
				return status == c.status
			})
			require.Equal(t, c.status, status, "%s%s", &p.stdout, &p.stderr)
			require.Empty(t, p.stderr.String())
			for _, pattern := range c.shows {
				require.Regexp(t, pattern, p.stdout.String())
			}
			require.NotContains(t, p.stdout.String(), "\x1b", "colour without a terminal")
			require.NotContains(t, p.stdout.String(), "Serving")
			if name == "vanish" {
				text, err := os.ReadFile(svg)
				require.NoError(t, err)
				require.Equal(t, 120, strings.Count(string(text), "h5"), "a dot for each")
			}
		})
	}
}

func TestOutboundGoesOnUntilCtrlC(t *testing.T) {
	t.Parallel()
	var p *program
	ended := regexp.MustCompile(`\nStopped after \S+ m?s: [1-9]\d* served, 0 refused by the API\.\n$`)
	undisturbed(50*time.Millisecond, func() bool {
		p = start("-outbound", "-limits", "10/s depth 20 slack 10ms", "-callers", "20")
		p.awaits(t, `The callers go on through the Transport until Ctrl-C\.`)
		time.Sleep(250 * time.Millisecond) // Two or three calls.
		p.signals <- os.Interrupt
		require.Equal(t, exitOK, p.ends(t))
		return ended.MatchString(p.stdout.String())
	})
	require.Regexp(t, ended, p.stdout.String())
}

func TestInterruptEndsTheBurstPromptly(t *testing.T) {
	t.Parallel()
	p := start("-once", "-limits", "1 per 10s depth 100", "-burst", "30")
	p.awaits(t, `through the shaper; takes about 4\.\d+ min`)
	p.signals <- syscall.SIGTERM
	require.Equal(t, exitInterrupted, p.ends(t))
	require.Equal(t, "shapedemo: interrupted\n", p.stderr.String())
}

// A brokenPipe fails after that many writes.
type brokenPipe struct{ writes int }

func (b *brokenPipe) Write(p []byte) (int, error) {
	if b.writes--; b.writes < 0 {
		return 0, errors.New("broken pipe")
	}
	return len(p), nil
}

func TestABrokenPipeEndsTheProgram(t *testing.T) {
	t.Parallel()
	for writes, args := range map[int][]string{
		0: {"-once", "-limits", "1 per 10s depth 100", "-burst", "30"},
		4: {"-once", "-limits", "1 per 10s depth 100", "-burst", "30"},
		1: {"-addr", "127.0.0.1:0", "-burst", "0"},
	} {
		p := startOn(&brokenPipe{writes}, args...)
		require.Equal(t, exitFailed, p.ends(t))
		require.Equal(t, "shapedemo: broken pipe\n", p.stderr.String())
	}
}

func TestWhatCannotBeFollowedIsToldInOneLine(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()

	for name, c := range map[string]struct {
		args []string
		says []string // the flag and its value
	}{
		"unknown flag":      {[]string{"-frobnicate"}, []string{"-frobnicate"}},
		"missing value":     {[]string{"-burst"}, []string{"-burst"}},
		"argument":          {[]string{"50/s"}, []string{`"50/s"`}},
		"bad limits":        {[]string{"-limits", "50 apples"}, []string{"-limits", `"50 apples"`}},
		"newline in limits": {[]string{"-limits", "50/s\ndepht 3"}, []string{"-limits"}},
		"burst no number":   {[]string{"-burst", "many"}, []string{"-burst", `"many"`}},
		"negative burst":    {[]string{"-burst", "-1"}, []string{"-burst", `"-1"`, "from 0"}},
		"huge burst":        {[]string{"-burst", "10001"}, []string{"-burst", `"10001"`, "10000"}},
		"vanish no share":   {[]string{"-vanish", "0.5"}, []string{"-vanish", `"0.5"`, "0% to 100%"}},
		"vanish no sign":    {[]string{"-vanish", "50"}, []string{"-vanish", `"50"`, "sign"}},
		"vanish above all":  {[]string{"-vanish", "101%"}, []string{"-vanish", `"101%"`, "100%"}},
		"vanish fraction":   {[]string{"-vanish", "12.5%"}, []string{"-vanish", `"12.5%"`, "whole"}},
		"vanish of nobody":  {[]string{"-vanish", "50%", "-burst", "0"}, []string{`-vanish "50%"`, `-burst "0"`}},
		"vanish, upstream":  {[]string{"-vanish", "50%", "-upstream", "http://x"}, []string{`-vanish "50%"`, `-upstream "http://x"`}},
		"url without http":  {[]string{"-upstream", "localhost:3000"}, []string{"-upstream", `"localhost:3000"`, "http://"}},
		"url without host":  {[]string{"-upstream", "http://"}, []string{"-upstream", `"http://"`, "host"}},
		"url unparsable":    {[]string{"-upstream", "http://[::1"}, []string{"-upstream", `"http://[::1"`}},
		"url with a query":  {[]string{"-upstream", "http://x/?q=1"}, []string{"-upstream", `"http://x/?q=1"`, "query"}},
		"once and upstream": {[]string{"-once", "-upstream", "http://x"}, []string{"-once", `-upstream "http://x"`}},
		"svg and upstream":  {[]string{"-svg", "x.svg", "-upstream", "http://x"}, []string{`-svg "x.svg"`, `-upstream "http://x"`}},
		"once of nothing":   {[]string{"-once", "-burst", "0"}, []string{"-once", `-burst "0"`}},
		"svg without place": {[]string{"-svg", "no/such/folder/x.svg"}, []string{"-svg", `"no/such/folder/x.svg"`}},
		"svg below a file":  {[]string{"-svg", "main.go/x.svg"}, []string{"-svg", "main.go is no folder"}},
		"svg is a folder":   {[]string{"-svg", "."}, []string{"-svg", `"."`, "a file"}},
		"one caller":        {[]string{"-outbound", "-callers", "1"}, []string{"-callers", `"1"`, "from 2"}},
		"huge callers":      {[]string{"-outbound", "-callers", "10001"}, []string{"-callers", `"10001"`, "10000"}},
		"callers of nobody": {[]string{"-callers", "9"}, []string{"-callers", "-outbound"}},
		"outbound, addr":    {[]string{"-outbound", "-addr", "127.0.0.1:0"}, []string{"-outbound", "-addr"}},
		"outbound, svg":     {[]string{"-outbound", "-svg", "x.svg"}, []string{"-outbound", "-svg"}},
		"fair, no rate":     {[]string{"-fair", "-limits", "inf depth 9"}, []string{"-fair", `"inf depth 9"`}},
		"tokens, no rate":   {[]string{"-tokens", "-limits", "inf depth 9"}, []string{"-tokens", `"inf depth 9"`}},
		"fair, too fast":    {[]string{"-fair", "-limits", "200000001/s"}, []string{"-fair", `"200000001/s depth 0"`, "200000000/s"}},
		"tokens, too fast":  {[]string{"-tokens", "-limits", "40000000/s"}, []string{"-tokens", `"40000000/s depth 0"`, "33333333/s"}},
		"cap on a burst":    {[]string{"-limits", "50/s depth 9 inflight 2"}, []string{"-limits", `"50/s depth 9 inflight 2"`, "-upstream"}},
		"inspect, once":     {[]string{"-once", "-inspect", "127.0.0.1:0"}, []string{`-inspect "127.0.0.1:0"`, "-once"}},
		"inspect, outbound": {[]string{"-outbound", "-inspect", ""}, []string{"-outbound", "-inspect"}},
		"inspect for all":   {[]string{"-inspect", ":9000"}, []string{"-inspect", `":9000"`, "this machine only", "127.0.0.1:9000"}},
		"inspect taken":     {[]string{"-inspect", taken.Addr().String()}, []string{"-inspect", taken.Addr().String(), "in use"}},
		"addr taken":        {[]string{"-addr", taken.Addr().String()}, []string{"-addr", taken.Addr().String(), "in use"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(c.args...)
			require.Equal(t, exitUsage, p.ends(t))
			require.Empty(t, p.stdout.String())
			said := p.stderr.String()
			require.Equal(t, 1, strings.Count(said, "\n"), said)
			require.True(t, strings.HasPrefix(said, "shapedemo: "), said)
			for _, says := range c.says {
				require.Contains(t, said, says)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	for args, want := range map[string]string{
		"":                      "50/s depth 100, 150 sent to 127.0.0.1:8080 and a page at 127.0.0.1:0",
		"-outbound":             "50/s depth 100 slack 5ms, 100 callers",
		"-outbound -limits 9/s": "9/s depth 0, 100 callers",
	} {
		c, err := parseFlags(strings.Fields(args))
		require.NoError(t, err)
		got := fmt.Sprintf("%s, %d sent to %s and a page at %s", c.limits, c.burst, c.addr, c.inspect)
		if c.scene.flag == "outbound" {
			got = fmt.Sprintf("%s, %d callers", c.limits, c.callers)
		}
		require.Equal(t, want, got)
	}
}

func TestACapGoesWithWhateverSendsNoBurst(t *testing.T) {
	for _, args := range [][]string{{"-burst", "0"}, {"-upstream", "http://x"}, {"-outbound"}} {
		_, err := parseFlags(append(args, "-limits", "50/s depth 9 inflight 2"))
		require.NoError(t, err, args)
	}
}

func TestOnlyTheUsualPortMayMove(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	front, err := listenFront(config{addr: taken.Addr().String()})
	require.NoError(t, err)
	defer front.close()
	require.True(t, front.moved)
	require.NotEqual(t, taken.Addr().String(), front.listener.Addr().String())
}

func TestHelpShowsExamples(t *testing.T) {
	p := start("-h")
	require.Equal(t, exitOK, p.ends(t))
	require.Contains(t, p.stdout.String(), "Examples:")
	require.Empty(t, p.stderr.String())
	for line := range strings.Lines(p.stdout.String()) {
		require.LessOrEqual(t, len(line), 81, line)
	}
}
