package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// trials returns a direct and a shaped trial at 20/s. 12 requests arrive at 0 ms
// and 6 at 100 ms; 15 of them leave, one every 50 ms. Of these, two in three reach
// the upstream 8 ms early or late.
func trials() (direct, shaped trial) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	for i := range 18 {
		r := &requestLog{arrived: at(i / 12 * 100)}
		switch {
		case i == 0:
			r.departed = at(1)
		case i < 15:
			r.enqueued, r.departed = r.arrived, at(1+50*i)
		default:
			r.refused = r.arrived
		}
		shaped.requests = append(shaped.requests, r)
		shaped.arrived = append(shaped.arrived, r.arrived)
		if r.refused.IsZero() {
			shaped.reached = append(shaped.reached, r.departed.Add([]time.Duration{0, -8, 8}[i%3]*time.Millisecond))
		}
	}
	shaped.tally = tally{sent: 18, served: 15, refused: 3, longestWait: 701 * time.Millisecond}
	direct.arrived, direct.reached = shaped.arrived, shaped.arrived
	direct.tally = tally{sent: 18, served: 4, failed: 14}
	return direct, shaped
}

func plain() *terminal { return newTerminal(&bytes.Buffer{}, func(error) {}) }

// The two clumps of arrivals stand out. The departures look even, one in every
// second column, although each is up to 8 ms early or late.
func TestChartShowsABurstAndEvenDepartures(t *testing.T) {
	direct, shaped := trials()
	got := burstChart(plain(), newLimitsInfo(limitsOf(t, "20/s depth 14")), direct, shaped)
	require.Equal(t, strings.TrimPrefix(`
  direct: 18 reach the upstream within 100 ms
    12 █
       █
       █       ▄
       █       █
       █       █
  shaped: 18 arrive at the proxy within 100 ms
    12 █
       █
       █       ▄
       █       █
       █       █
  shaped: 15 reach the upstream within 708 ms
     1 ▃   ▃   ▃   ▃   ▃   ▃   ▃   ▃   ▃   ▃   ▃   ▃   ▃   ▃   ▃
       ┴───────────────┴───────────────┴───────────────┴────────
       0 ms            200 ms          400 ms          600 ms
  one column is 25 ms; the number is how many requests the highest bar counts
`, "\n"), got)
}

// disconnecting returns the trials with four waiting clients disconnected. The
// departures are as even, and fewer.
func disconnecting() (direct, shaped trial) {
	direct, shaped = trials()
	for i, r := range shaped.requests[11:15] {
		r.departed, r.abandoned = time.Time{}, r.arrived.Add(time.Duration(100+50*i)*time.Millisecond)
		r.disconnected = r.abandoned
		shaped.disconnects = append(shaped.disconnects, r.disconnected)
	}
	shaped.reached = shaped.reached[:11]
	shaped.tally = tally{sent: 18, served: 11, refused: 3, disconnected: 4, longestWait: 501 * time.Millisecond}
	shaped.impatient = 7
	return direct, shaped
}

func TestChartShowsClientsThatDisconnect(t *testing.T) {
	direct, shaped := disconnecting()
	got := burstChart(plain(), newLimitsInfo(limitsOf(t, "20/s depth 14")), direct, shaped)
	require.Contains(t, got, strings.TrimPrefix(`
  shaped: 4 disconnect while waiting within 250 ms
     1             ▃                 ▃     ▃     ▃
  shaped: 11 reach the upstream within 492 ms
     1 ▃     ▃     ▃     ▃     ▃     ▃     ▃     ▃     ▃     ▃     ▃
`, "\n"), got)
}

func TestChartOfNothing(t *testing.T) {
	info := newLimitsInfo(limitsOf(t, "20/s depth 14"))
	require.Contains(t, burstChart(plain(), info, trial{}, trial{}), "nothing to draw")
	direct, shaped := trials()
	shaped.reached = nil
	require.Contains(t, burstChart(plain(), info, direct, shaped), "0 reach the upstream")
}

func TestChartFitsTheScreen(t *testing.T) {
	for _, limits := range []string{"20/s depth 14", "7/s depth 9", "1/s depth 1", "1000000/s depth 3", "1 per 365d depth 4", "49.99/s depth 5", "inf"} {
		direct, shaped := trials()
		shown := burstChart(plain(), newLimitsInfo(limitsOf(t, limits)), direct, shaped)
		for line := range strings.Lines(shown) {
			require.LessOrEqual(t, len([]rune(line)), 81, "%s\n%s", limits, shown)
		}
	}
}

func TestTable(t *testing.T) {
	direct, shaped := trials()
	require.Equal(t, strings.TrimPrefix(`
                                     direct     shaped
  sent                                   18         18
  served                                  4         15
  refused with 429                        0          3
  failed (5xx)                           14          0
  smallest gap at the upstream          0 s      42 ms
  median gap at the upstream            0 s      42 ms
  longest wait                            -     701 ms
`, "\n"), burstTable(plain(), newLimitsInfo(limitsOf(t, "20/s depth 14")), direct, shaped))
}

func TestTableOfImpatientClients(t *testing.T) {
	direct, shaped := disconnecting()
	require.Contains(t, burstTable(plain(), newLimitsInfo(limitsOf(t, "20/s depth 14")), direct, shaped), strings.TrimPrefix(`
  sent                                   18         18
  by impatient clients                    -          7
  served                                  4         11
  refused with 429                        0          3
  disconnected while waiting              -          4
  slots wasted on these                   -          0
  failed (5xx)                           14          0
`, "\n"))
}

func TestColourOnlyWhereWanted(t *testing.T) {
	require.Equal(t, "x", plain().coloured(red, "x"))
	require.Equal(t, "\x1b[31mx\x1b[0m", (&terminal{colour: true}).coloured(red, "x"))
}

// The status line is only shown on a terminal, and leaves nothing behind.
func TestStatusIsWrittenOver(t *testing.T) {
	var b bytes.Buffer
	screen := newTerminal(&b, func(error) {})
	screen.status("unseen")
	require.Empty(t, b.String())

	screen.live = true
	screen.status("abc")
	screen.status("d")
	screen.say("e")
	require.Equal(t, "abc"+"\r   \r"+"d"+"\r \r"+"e\n", b.String())
}

func TestMeterLooksBackOneSecond(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var m rateMeter
	for i, c := range []struct {
		departed uint64
		rate     float64
	}{{10, 0}, {20, 40}, {20, 20}, {20, 40.0 / 3}, {60, 50}, {60, 40}, {60, 40}} {
		require.InDelta(t, c.rate, m.rate(begin.Add(time.Duration(i)*statusEvery), c.departed), 1e-9, "look %d", i)
	}
}
