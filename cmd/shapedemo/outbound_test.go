package main

import (
	"context"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// So slow that a busy machine does not make a burst of two departures.
var slowOutbound = []string{"-outbound", "-limits", "10/s depth 20 slack 10ms", "-callers", "20"}

func TestOutboundOnceShowsWhatEachSawAndSucceeds(t *testing.T) {
	t.Parallel()
	p := start(append(slowOutbound, "-once")...)
	require.Equal(t, exitOK, p.ends(t), "%s%s", &p.stdout, &p.stderr)
	require.Empty(t, p.stderr.String())
	shown := p.stdout.String()
	require.Contains(t, shown, "  limits     10/s depth 20 slack 10ms:\n"+
		"             one leaves every 100 ms, 20 may wait, the last for 2 s\n")
	require.Contains(t, shown, "within 25 ms")
	require.Contains(t, shown, "20 callers straight at the API")
	require.Regexp(t, `(?m)^  calls answered +\d+ +[23]\d$`, shown)
	require.Regexp(t, `(?m)^  served +[1-9] +[23]\d$`, shown)
	require.Regexp(t, `(?m)^  refused by the API, with 429 +[1-9]\d +0$`, shown)
	require.Regexp(t, `(?m)^  served per second +[0-3](\.\d+)? +(\d|10)(\.\d+)?$`, shown)
	require.Regexp(t, `(?m)^  longest +\S+ \S+ +\S+ m?s$`, shown)
	require.Regexp(t, `✓ Straight, \d+ calls were refused by the API and \d served\. Through the\n  Transport none was refused and [23]\d were served\.\n$`, shown)
	require.NotContains(t, shown, "refused by the shaper")
	require.NotContains(t, shown, "\x1b", "colour without a terminal")
	require.NotContains(t, shown, "Ctrl-C")
}

func TestOutboundFailsIfTheShaperLetsBurstsThrough(t *testing.T) {
	t.Parallel()
	p := start("-outbound", "-once", "-limits", "5/s burst 5 depth 20", "-callers", "20")
	require.Equal(t, exitFailed, p.ends(t))
	require.Regexp(t, `✗ \d+ calls? (was|were) refused by the API behind the shaper, as two came within 50 ms: "5/s burst 5 depth 20" lets\s+requests leave together`, p.stdout.String())
}

func TestOutboundGoesOnUntilCtrlC(t *testing.T) {
	for name, sig := range map[string]os.Signal{"Ctrl-C": os.Interrupt, "SIGTERM": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(slowOutbound...)
			p.stdout.awaits(t, `They go on through the Transport until Ctrl-C\.`)
			time.Sleep(250 * time.Millisecond) // Two or three calls.
			p.signals <- sig
			require.Equal(t, exitOK, p.ends(t))
			require.Regexp(t, `\nStopped after \S+ m?s: [1-9]\d* served, 0 refused by the API\.\n$`, p.stdout.String())
			require.Empty(t, p.stderr.String())
		})
	}
}

func TestInterruptEndsOutboundPromptly(t *testing.T) {
	for _, during := range []string{"straight", "through one"} {
		t.Run(during, func(t *testing.T) {
			t.Parallel()
			p := start(append(slowOutbound, "-once")...)
			p.stdout.awaits(t, `20 callers `+during)
			p.signals <- os.Interrupt
			asked := time.Now()
			require.Equal(t, exitInterrupted, p.ends(t))
			require.Less(t, time.Since(asked), outboundTime/2)
			require.Equal(t, "shapedemo: interrupted\n", p.stderr.String())
		})
	}
}

func TestJudgeOutbound(t *testing.T) {
	m := meaningOf(limitsOf(t, "10/s depth 20 slack 10ms"))
	good := func() (straight, shaped outing) {
		return outing{experience: experience{served: 3, refused: 60, span: outboundTime}},
			outing{experience: experience{served: 31, span: outboundTime}}
	}
	straight, shaped := good()
	require.Empty(t, judgeOutbound(m, time.Millisecond, straight, shaped))
	for says, spoil := range map[string]func(straight, shaped *outing){
		"nothing to show":                      func(straight, _ *outing) { straight.refused = 0 },
		"2 calls were refused by the API":      func(_, shaped *outing) { shaped.refused = 2 },
		"1 call was refused by the API":        func(_, shaped *outing) { shaped.refused = 1 },
		"1 call got no answer":                 func(straight, _ *outing) { straight.failed = 1 },
		"2 calls got no answer":                func(_, shaped *outing) { shaped.failed = 2 },
		"the shaper served 3, without it 3":    func(_, shaped *outing) { shaped.served = 3 },
		"32 were served in 3 s, but only 31 m": func(_, shaped *outing) { shaped.served = 32 },
	} {
		t.Run(says, func(t *testing.T) {
			straight, shaped := good()
			spoil(&straight, &shaped)
			faults := judgeOutbound(m, time.Millisecond, straight, shaped)
			require.Len(t, faults, 1)
			text := outboundVerdict(plain(), straight, shaped, faults)
			require.Contains(t, text, "✗ ")
			require.Contains(t, text, says)
		})
	}
}

// Calls that left apart and came together are the machine's doing, and are let
// try again, once. What left together is the shaper's, and is not.
func TestOutboundTriesAgainIfTheMachineWasLate(t *testing.T) {
	at := func(ms ...int) (instants []time.Time) {
		for _, n := range ms {
			instants = append(instants, time.UnixMilli(int64(n)))
		}
		return instants
	}
	crowded := outing{experience: experience{served: 9, refused: 2, span: outboundTime}, left: at(0, 95, 195)}
	burst := outing{experience: experience{served: 9, refused: 2, span: outboundTime}, left: at(0, 100, 101)}
	lone := outing{experience: experience{refused: 1}, left: at(0)}
	good := outing{experience: experience{served: 9, span: outboundTime}, left: at(0, 1)}
	for name, row := range map[string]struct {
		outings []outing
		err     error
		calls   int
		refused int
	}{
		"nobody is refused":  {[]outing{good}, nil, 1, 0},
		"the machine, once":  {[]outing{crowded, good}, nil, 2, 0},
		"the machine, twice": {[]outing{crowded, crowded, good}, nil, 2, 2},
		"the shaper":         {[]outing{burst, good}, nil, 1, 2},
		"only one has left":  {[]outing{lone, good}, nil, 1, 1},
		"an interrupt":       {[]outing{crowded, good}, context.Canceled, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			got, err := onceMoreIfCrowded(plain(), 25*time.Millisecond, func() (outing, error) {
				calls++
				return row.outings[calls-1], row.err
			})
			require.Equal(t, row.err, err)
			require.Equal(t, row.calls, calls)
			require.Equal(t, row.refused, got.refused)
		})
	}

	m := meaningOf(limitsOf(t, "10/s depth 20 slack 10ms"))
	straight := outing{experience: experience{served: 3, refused: 60, span: outboundTime}}
	faults := judgeOutbound(m, 25*time.Millisecond, straight, crowded)
	require.Equal(t, []string{"2 calls were refused by the API behind the shaper, as two came within 25 ms that had left it at least 95 ms apart, twice: this machine is too busy; a slower -limits bears more"}, faults)
	require.Equal(t, []string{"2 calls were refused by the API behind the shaper, as two came within 25 ms"},
		judgeOutbound(m, 25*time.Millisecond, straight, burst))
}

// What README prints is what the program does.
func TestReadmeShowsTheTableOfOutbound(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	for line := range strings.Lines(outboundTable(plain(), outing{}, outing{})) {
		label := strings.TrimRight(line, " -0123456789\n")
		row := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(label) + `( .*\d.*\d.*)?$`)
		require.True(t, row.Match(readme), "README has no row %q", label)
	}
}

func TestOutboundTableTellsOfWhatIsNotUsual(t *testing.T) {
	straight := outing{experience: experience{refused: 1, failed: 2, span: time.Second}}
	shaped := outing{experience: experience{
		served: 3, turned: 4, span: 2 * time.Second,
		times: []time.Duration{time.Millisecond, 2 * time.Millisecond, 4 * time.Millisecond},
	}}
	text := outboundTable(plain(), straight, shaped)
	require.Regexp(t, `(?m)^  calls answered +3 +7$`, text)
	require.Regexp(t, `(?m)^  refused by the shaper +- +4$`, text)
	require.Regexp(t, `(?m)^  no answer, or another +2 +0$`, text)
	require.Regexp(t, `(?m)^  served per second +0 +1\.5$`, text)
	require.Regexp(t, `(?m)^  median time of a call served +- +2 ms$`, text)
	require.Regexp(t, `(?m)^  longest +- +4 ms$`, text)
}

func TestOutboundTakesNoPort(t *testing.T) {
	front, err := newDoor(config{addr: "127.0.0.1:0", outbound: true})
	require.NoError(t, err)
	defer front.close()
	require.Nil(t, front.listener)
}
