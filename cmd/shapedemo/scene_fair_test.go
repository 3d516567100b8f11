package main

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// In virtual time the scene shows what it is there for, and its picture is well-formed.
func TestPeopleGetTheirTurnBesideABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limitsOf(t, fairLimits)
		start := time.Now()
		plain, fair, err := callBesideABurst(t.Context(), l)
		require.NoError(t, err)
		require.Empty(t, judgeFair(plain, fair))
		require.Equal(t, plain.end(), fair.end(), "no slot is lost")
		require.Equal(t, plain.end(), time.Since(start)*fairSpeed)

		const slot = time.Second / 50
		inOneLine, longestInOneLine := waits(plain.of(true))
		byTurns, longestByTurns := waits(fair.of(true))
		t.Log(inOneLine, longestInOneLine, byTurns, longestByTurns, plain.end())
		require.InDelta(t, 10, inOneLine.Seconds(), 1)
		require.Greater(t, longestInOneLine, 19*time.Second)
		require.LessOrEqual(t, byTurns, 2*slot)
		require.LessOrEqual(t, longestByTurns, 2*slot, "the second departure at the latest: no two people come within a slot")
		_, alone := waits(plain.of(false))
		_, shared := waits(fair.of(false))
		require.Equal(t, (fairBurst-1)*slot, alone)
		require.Equal(t, (fairBurst-1+fairPeople*fairCalls)*slot, shared)

		picture := fairSVG(l, plain, fair)
		d := xml.NewDecoder(strings.NewReader(picture))
		for err == nil {
			_, err = d.Token()
		}
		require.Equal(t, io.EOF, err)
		require.NotContains(t, picture, "NaN")
		require.Contains(t, fairChart(newTerminal(io.Discard, nil), fairSpan(l), plain, fair), "they leave one line")
		require.Regexp(t, `longest wait of the burst +20 s +21 s`, fairTable(newTerminal(io.Discard, nil), plain, fair))
	})
}

func TestJudgeFair(t *testing.T) {
	begin := time.Now()
	for says, spoil := range map[string]func(plain, fair *fairRun){
		"":                       func(_, _ *fairRun) {},
		"1 call was refused":     func(_, fair *fairRun) { fair.refused = 1 },
		"2 calls were refused":   func(plain, _ *fairRun) { plain.refused = 2 },
		"on average":             func(_, fair *fairRun) { fair.left[1].at = begin.Add(200 * time.Millisecond) },
		"more than the mean of ": func(_, fair *fairRun) { fair.left[1].at = begin.Add(2 * time.Second) },
	} {
		plain := fairRun{begin: begin, left: []departure{{burstKey, begin, begin}, {1, begin, begin.Add(time.Second)}}}
		fair := fairRun{begin: begin, left: []departure{{burstKey, begin, begin}, {1, begin, begin.Add(100 * time.Millisecond)}}}
		spoil(&plain, &fair)
		faults := judgeFair(plain, fair)
		if says == "" {
			require.Empty(t, faults)
			continue
		}
		require.Contains(t, strings.Join(faults, "\n"), says)
	}
}

func TestFairNeedsARate(t *testing.T) {
	p := start("-fair", "-limits", "inf depth 9")
	require.Equal(t, exitFailed, p.ends(t))
	require.Contains(t, p.stderr.String(), "-fair needs a rate")
}
