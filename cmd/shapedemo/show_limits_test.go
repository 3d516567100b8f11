package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// limitsOf parses limits that a test relies on.
func limitsOf(t *testing.T, text string) shaper.Limits {
	t.Helper()
	l, err := shaper.ParseLimits(text)
	require.NoError(t, err)
	return l
}

func TestLimitsInWords(t *testing.T) {
	for text, want := range map[string][]string{
		"50/s depth 100":                 {"one request leaves every 20 ms", "up to 100 may wait, the last one for 2 s", "request 102 of a simultaneous burst is refused"},
		"50/s":                           {"one request leaves every 20 ms", "none may wait", "request 2 of a simultaneous burst is refused"},
		"50/s burst 10":                  {"10 requests leave at once, then one every 20 ms", "none may wait", "request 11 of a simultaneous burst is refused"},
		"50/s burst 10 depth 100":        {"10 requests leave at once, then one every 20 ms", "up to 100 may wait, the last one for 2 s", "request 111 of a simultaneous burst is refused"},
		"50/s depth 1":                   {"one request leaves every 20 ms", "one may wait, for 20 ms", "request 3 of a simultaneous burst is refused"},
		"50/s depth 100 wait 1s":         {"one request leaves every 20 ms", "up to 100 may wait, none longer than 1 s: 50 of a simultaneous burst", "request 52 of a simultaneous burst is refused"},
		"50/s depth 100 wait 2s":         {"one request leaves every 20 ms", "up to 100 may wait, the last one for 2 s", "request 102 of a simultaneous burst is refused"},
		"50/s burst 3 depth 9 wait 19ms": {"3 requests leave at once, then one every 20 ms", "up to 9 may wait, none longer than 19 ms: 0 of a simultaneous burst", "request 4 of a simultaneous burst is refused"},
		"20/min depth 2 wait 3s":         {"one request leaves every 3 s", "up to 2 may wait, none longer than 3 s: 1 of a simultaneous burst", "request 3 of a simultaneous burst is refused"},
		"100/s depth 50 wait 290ms":      {"one request leaves every 10 ms", "up to 50 may wait, none longer than 290 ms: 29 of a simultaneous burst", "request 31 of a simultaneous burst is refused"},
		"7/s depth 7 wait 1s":            {"one request leaves every 143 ms", "up to 7 may wait, the last one for 1 s", "request 9 of a simultaneous burst is refused"},
		"3/s depth 30000":                {"one request leaves every 333 ms", "up to 30000 may wait, the last one for 2.78 h", "request 30002 of a simultaneous burst is refused"},
		"1 per 365d depth 2":             {"one request leaves every 365 days", "up to 2 may wait, the last one for 730 days", "request 4 of a simultaneous burst is refused"},
		"1000000/s depth 1":              {"one request leaves every 1 µs", "one may wait, for 1 µs", "request 3 of a simultaneous burst is refused"},
		"50/s depth 9 inflight 4":        {"at most 4 are in flight at the same time", "one request leaves every 20 ms", "up to 9 may wait, the last one for at least 180 ms", "request 11 of a simultaneous burst is refused"},
		"50/s burst 8 inflight 4":        {"at most 4 are in flight at the same time", "4 requests leave at once, then one every 20 ms", "none may wait", "request 5 of a simultaneous burst is refused"},
		"inf depth 3 inflight 4":         {"at most 4 are in flight at the same time", "up to 3 may wait for one of these to end"},
		"inf depth 3":                    {"every request leaves at once; none waits and none is refused"},
	} {
		t.Run(text, func(t *testing.T) {
			require.Equal(t, want, limitsInWords(limitsOf(t, text)))
		})
	}
}

func TestFormatSeconds(t *testing.T) {
	for want, seconds := range map[string]float64{
		"0 s": 0, "1 ns": 1e-9, "999 ns": 999e-9, "1 µs": 1e-6, "20 ms": 0.02, "333 ms": 1.0 / 3, "1 s": 0.9999999,
		"17.8 ms": 0.01778, "2.26 s": 2.264, "90 s": 90, "2 min": 120, "100 min": 6000,
		"47 h": 47 * 3600, "2 days": 48 * 3600,
	} {
		require.Equal(t, want, formatSeconds(seconds))
	}
}
