package report

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var when = time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)

// A document with what is hard to print.
func document() *Document {
	return &Document{
		Requests: 1_234_567, From: &when, To: &when, Key: "route client_ip", Keys: 2,
		Rules: []Rule{
			{
				Rule: "%2Fapi%2F", Limits: "12.5/s burst 100 depth 1000 wait 2s", Keys: 10_000,
				Count:   Count{Requests: 1_234_000, AtOnce: 1_000_000, Waited: 200_000, Refused: 34_000, QueueFull: 30_000, TooLate: 4_000, WaitMax: 2},
				WaitP50: 0, WaitP95: 0.25, WaitP99: 1.5, LineMax: 25,
			},
			{Rule: "", Limits: "", Keys: 1, Count: Count{Requests: 567, AtOnce: 567}},
		},
		RefusedMost: []Key{{"%2Fapi%2F/\x1b[2Jx", "%2Fapi%2F", Count{Requests: 1000, AtOnce: 1, Refused: 999}}},
		Notes:       []string{strings.Repeat("word ", 50)},
	}
}

func printed(t *testing.T, terminal Terminal) string {
	t.Helper()
	var b strings.Builder
	terminal.Out = &b
	require.NoError(t, terminal.Print(document()))
	return b.String()
}

func TestATableIsAsWideAsItMayBe(t *testing.T) {
	all := printed(t, Terminal{})
	require.Contains(t, all, `
RULE       LIMITS                                 KEYS   REQUESTS    AT ONCE   WAITED        REFUSED  QUEUE-FULL  TOO-LATE  P50     P95    P99  LONGEST  LINE
%2Fapi%2F  12.5/s burst 100 depth 1000 wait 2s  10,000  1,234,000  1,000,000  200,000  34,000 (2.8%)      30,000     4,000    0  250 ms  1.5 s      2 s    25
(default)  no candidate                              1        567        567        0              0           0         0    0       0      0        0     0
`)
	narrow := printed(t, Terminal{Width: 80})
	for _, width := range []int{60, 80, 100, 120, 200} {
		for line := range strings.Lines(printed(t, Terminal{Width: width})) {
			require.LessOrEqual(t, len([]rune(strings.TrimRight(line, "\n"))), width)
		}
		require.Contains(t, printed(t, Terminal{Width: width}), "34,000 (2.8%)")
	}
	require.Contains(t, narrow, "12.5/s burst 100 …")
}

func TestColourIsOnlyForTerminals(t *testing.T) {
	require.NotContains(t, printed(t, Terminal{Width: 80}), "\x1b")
	coloured := printed(t, Terminal{Width: 80, Colour: true})
	require.Contains(t, coloured, "\x1b[31m34,000 (2.8%)\x1b[0m")
	plain := coloured
	for _, s := range []style{bold, faint, red, "0"} {
		plain = strings.ReplaceAll(plain, "\x1b["+string(s)+"m", "")
	}
	require.Equal(t, printed(t, Terminal{Width: 80}), plain)
}

// Whoever sends requests could otherwise clear the operator's terminal.
func TestAKeyCannotControlTheTerminal(t *testing.T) {
	require.Contains(t, printed(t, Terminal{}), `"%2Fapi%2F/\x1b[2Jx"`)
}

func TestNumbersAreRounded(t *testing.T) {
	for n, want := range map[int]string{0: "0", 12: "12", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		require.Equal(t, want, number(n))
	}
	for _, test := range []struct {
		n, of int
		want  string
	}{{1, 1, "100%"}, {999, 1000, ">99%"}, {99, 100, "99%"}, {1, 3, "33%"}, {1, 10, "10%"}, {99, 1000, "9.9%"}, {1, 1000, "0.1%"}, {1, 7000, "0.014%"}, {1, 100_000, "<0.01%"}} {
		require.Equal(t, test.want, share(test.n, test.of))
	}
}
