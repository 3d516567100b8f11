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

func TestMeaningOfLimits(t *testing.T) {
	for text, want := range map[string]string{
		"50/s depth 100":                 "one leaves every 20 ms, 100 may wait, the last for 2 s; request 102 of a simultaneous burst is refused with 429",
		"50/s":                           "one leaves every 20 ms, none may wait; request 2 of a simultaneous burst is refused with 429",
		"50/s burst 10":                  "10 leave at once, then one every 20 ms; none may wait; request 11 of a simultaneous burst is refused with 429",
		"50/s burst 10 depth 100":        "10 leave at once, then one every 20 ms; 100 may wait, the last for 2 s; request 111 of a simultaneous burst is refused with 429",
		"50/s depth 1":                   "one leaves every 20 ms, 1 may wait, for 20 ms; request 3 of a simultaneous burst is refused with 429",
		"50/s depth 100 wait 1s":         "one leaves every 20 ms, 100 may wait, but none longer than 1 s, so 50 of a simultaneous burst; request 52 of a simultaneous burst is refused with 429",
		"50/s depth 100 wait 2s":         "one leaves every 20 ms, 100 may wait, the last for 2 s; request 102 of a simultaneous burst is refused with 429",
		"50/s burst 3 depth 9 wait 19ms": "3 leave at once, then one every 20 ms; 9 may wait, but none longer than 19 ms, so 0 of a simultaneous burst; request 4 of a simultaneous burst is refused with 429",
		"20/min depth 2 wait 3s":         "one leaves every 3 s, 2 may wait, but none longer than 3 s, so 1 of a simultaneous burst; request 3 of a simultaneous burst is refused with 429",
		"100/s depth 50 wait 290ms":      "one leaves every 10 ms, 50 may wait, but none longer than 290 ms, so 29 of a simultaneous burst; request 31 of a simultaneous burst is refused with 429",
		"7/s depth 7 wait 1s":            "one leaves every 143 ms, 7 may wait, the last for 1 s; request 9 of a simultaneous burst is refused with 429",
		"3/s depth 30000":                "one leaves every 333 ms, 30000 may wait, the last for 2.78 h; request 30002 of a simultaneous burst is refused with 429",
		"1 per 365d depth 2":             "one leaves every 365 days, 2 may wait, the last for 730 days; request 4 of a simultaneous burst is refused with 429",
		"1000000/s depth 1":              "one leaves every 1 µs, 1 may wait, for 1 µs; request 3 of a simultaneous burst is refused with 429",
		"50/s depth 9 inflight 4":        "4 at most are upstream at once; one leaves every 20 ms, 9 may wait, the last for 180 ms; request 11 of a simultaneous burst is refused with 429",
		"50/s burst 8 inflight 4":        "4 at most are upstream at once; 4 leave at once, then one every 20 ms; none may wait; request 5 of a simultaneous burst is refused with 429",
		"inf depth 3 inflight 4":         "4 at most are upstream at once; 3 may wait",
		"inf depth 3":                    "everything leaves at once; nobody waits and nobody is refused",
	} {
		t.Run(text, func(t *testing.T) {
			require.Equal(t, want, meaningOf(limitsOf(t, text)).String())
		})
	}
}

func TestHumane(t *testing.T) {
	for want, seconds := range map[string]float64{
		"0 s": 0, "1 ns": 1e-9, "999 ns": 999e-9, "1 µs": 1e-6, "20 ms": 0.02, "333 ms": 1.0 / 3, "1 s": 0.9999999,
		"17.8 ms": 0.01778, "2.26 s": 2.264, "90 s": 90, "2 min": 120, "100 min": 6000,
		"47 h": 47 * 3600, "2 days": 48 * 3600,
	} {
		require.Equal(t, want, humane(seconds))
	}
}
