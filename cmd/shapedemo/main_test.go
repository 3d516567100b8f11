package main

import (
	"errors"
	"flag"
	"io"
	"os"
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
)

func TestMain(m *testing.M) {
	// The tests of the whole program mostly wait, so more of them may run at once than
	// there are processors. A flag -parallel comes later, and counts.
	if err := flag.Set("test.parallel", strconv.Itoa(max(6, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// patience is for how long a test waits for what must happen, because the machine may be
// busy. A test that fails is all that waits for so long.
const patience = time.Minute

// undisturbed runs what depends on real time and which reports whether it went well. If it
// did not, it has another try, up to eight in all, but only if this process was late by more than most
// meanwhile: whatever else the machine does delays all of its goroutines, of which one does
// nothing but look at the clock. It returns false if it was late in all of them.
func undisturbed(most time.Duration, run func() (well bool)) bool {
	for range 8 {
		well := false
		if late := realtime.LongestStall(func() { well = run() }); well || late <= most {
			return true
		}
	}
	return false
}

// An output is what the program under test prints.
type output struct{ servers.Output }

// awaits waits for a match of pattern, and returns the first one.
func (s *output) awaits(t *testing.T, pattern string) string {
	t.Helper()
	var found string
	realtime.Until(t, func() bool {
		found = regexp.MustCompile(pattern).FindString(s.String())
		return found != ""
	}, pattern+" in what is shown")
	return found
}

// A program is a run of the whole program.
type program struct {
	signals        chan os.Signal
	stdout, stderr output
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

// ends waits for the end of the program, and returns its exit status.
func (p *program) ends(t *testing.T) int {
	t.Helper()
	select {
	case status := <-p.status:
		return status
	case <-time.After(patience):
		require.FailNow(t, "the program does not end", p.stdout.String())
		return 0
	}
}

func TestOnceShowsTheBurstAndSucceeds(t *testing.T) {
	p := start("-once", "-limits", "60/s depth 20", "-burst", "120")
	require.Equal(t, exitOK, p.ends(t), "%s%s", &p.stdout, &p.stderr)
	require.Empty(t, p.stderr.String())
	shown := p.stdout.String()
	require.Contains(t, shown, "20 may wait, the last for 333 ms")
	require.Contains(t, shown, "request 22 of a simultaneous burst is refused")
	require.Contains(t, shown, "direct: 120 reach the upstream")
	require.Contains(t, shown, "shaped: 120 arrive at the proxy")
	require.Regexp(t, `(?m)^  sent +120 +120$`, shown)
	require.Regexp(t, `(?m)^  refused with 429 +0 +[1-9]\d*$`, shown)
	require.Regexp(t, `(?m)^  failed \(5xx\) +[1-9]\d* +0$`, shown)
	require.NotContains(t, shown, "\x1b", "colour without a terminal")
	require.NotContains(t, shown, "\r", "a live line without a terminal")
	require.NotContains(t, shown, "Serving")
}

// Half of the impatient clients are uploading while they wait, so this test fails
// without ConnContext.
func TestOnceShowsThatImpatientClientsCostNoSlot(t *testing.T) {
	p := start("-once", "-limits", "60/s depth 20", "-burst", "120", "-vanish", "50%")
	require.Equal(t, exitOK, p.ends(t), "%s%s", &p.stdout, &p.stderr)
	require.Empty(t, p.stderr.String())
	shown := p.stdout.String()
	require.Contains(t, shown, "Sending 120 requests through the shaper, 60 impatient")
	require.Regexp(t, `shaped: \d+ disconnect while waiting`, shown)
	require.Regexp(t, `(?m)^  by impatient clients +- +60$`, shown)
	require.Regexp(t, `(?m)^  disconnected while waiting +- +[1-9]\d*$`, shown)
	require.Regexp(t, `(?m)^  slots wasted on these +- +[01]$`, shown)
	require.Regexp(t, `disconnected while they waited and cost (no|1) slot;\n  \d+ were served, and the other \d+ were refused`, shown)
}

func TestOnceFailsIfNoImpatientClientHasToWait(t *testing.T) {
	p := start("-once", "-limits", "60/s burst 5", "-burst", "60", "-vanish", "50%")
	require.Equal(t, exitFailed, p.ends(t))
	require.Contains(t, p.stdout.String(), "none of 30 impatient clients had to wait")
}

func TestOnceFailsIfTheUpstreamServesTheBurst(t *testing.T) {
	p := start("-once", "-limits", "100/s depth 10", "-burst", "3")
	require.Equal(t, exitFailed, p.ends(t))
	require.Contains(t, p.stdout.String(), "nothing to show: try a larger -burst")
}

func TestOnceFailsIfTheShaperLetsTheUpstreamFail(t *testing.T) {
	p := start("-once", "-limits", "inf", "-burst", "60")
	require.Equal(t, exitFailed, p.ends(t))
	require.Contains(t, p.stdout.String(), "failed behind the shaper")
}

func TestInterruptEndsTheBurstPromptly(t *testing.T) {
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		p := start("-once", "-limits", "1 per 10s depth 100", "-burst", "30")
		p.stdout.awaits(t, `through the shaper; takes about 4\.\d+ min`)
		p.signals <- sig
		require.Equal(t, exitInterrupted, p.ends(t))
		require.Equal(t, "shapedemo: interrupted\n", p.stderr.String())
	}
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
	for _, c := range []struct {
		writes int
		args   []string
	}{
		{0, []string{"-once", "-limits", "1 per 10s depth 100", "-burst", "30"}},
		{4, []string{"-once", "-limits", "1 per 10s depth 100", "-burst", "30"}},
		{1, []string{"-addr", "127.0.0.1:0", "-burst", "0"}},
	} {
		p := startOn(&brokenPipe{c.writes}, c.args...)
		require.Equal(t, exitFailed, p.ends(t))
		require.Equal(t, "shapedemo: broken pipe\n", p.stderr.String())
	}
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
