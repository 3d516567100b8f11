package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// trials returns a straight and a shaped trial at 20/s: two clumps, of 12 and
// of 6, at the instants 0 and 100 ms; 15 leave, one every 50 ms, and of these two
// in three reach the upstream 8 ms too early or too late.
func trials() (straight, shaped trial) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	for i := range 18 {
		p := &passage{arrived: at(i / 12 * 100)}
		switch {
		case i == 0:
			p.left = at(1)
		case i < 15:
			p.queued, p.left = p.arrived, at(1+50*i)
		default:
			p.refused = p.arrived
		}
		shaped.passages = append(shaped.passages, p)
		shaped.arrived = append(shaped.arrived, p.arrived)
		if p.refused.IsZero() {
			shaped.reached = append(shaped.reached, p.left.Add([]time.Duration{0, -8, 8}[i%3]*time.Millisecond))
		}
	}
	shaped.tally = tally{sent: 18, served: 15, refused: 3, longest: 701 * time.Millisecond}
	straight.arrived, straight.reached = shaped.arrived, shaped.arrived
	straight.tally = tally{sent: 18, served: 4, failed: 14}
	return straight, shaped
}

func plain() *terminal { return newTerminal(&bytes.Buffer{}, func(error) {}) }

// The two clumps stand out, and the comb is even, though its teeth are not quite:
// a departure in every second column.
func TestPictureShowsRaggedAgainstEven(t *testing.T) {
	straight, shaped := trials()
	got := picture(plain(), meaningOf(limitsOf(t, "20/s depth 14")), straight, shaped)
	require.Equal(t, strings.TrimPrefix(`
  straight: 18 reach the upstream within 100 ms
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
  one column is 25 ms; the numbers are the highest bars
`, "\n"), got)
}

// vanishing is trials with four of those who wait gone, which leaves the comb as
// even, and shorter.
func vanishing() (straight, shaped trial) {
	straight, shaped = trials()
	for i, p := range shaped.passages[11:15] {
		p.left, p.abandoned = time.Time{}, p.arrived.Add(time.Duration(100+50*i)*time.Millisecond)
		p.vanished = p.abandoned
		shaped.gone = append(shaped.gone, p.vanished)
	}
	shaped.reached = shaped.reached[:11]
	shaped.tally = tally{sent: 18, served: 11, refused: 3, vanished: 4, longest: 501 * time.Millisecond}
	shaped.impatient = 7
	return straight, shaped
}

func TestPictureShowsThoseWhoVanish(t *testing.T) {
	straight, shaped := vanishing()
	got := picture(plain(), meaningOf(limitsOf(t, "20/s depth 14")), straight, shaped)
	require.Contains(t, got, strings.TrimPrefix(`
  shaped: 4 vanish from the line within 250 ms
     1             ▃                 ▃     ▃     ▃
  shaped: 11 reach the upstream within 492 ms
     1 ▃     ▃     ▃     ▃     ▃     ▃     ▃     ▃     ▃     ▃     ▃
`, "\n"), got)
}

func TestPictureOfNothing(t *testing.T) {
	m := meaningOf(limitsOf(t, "20/s depth 14"))
	require.Contains(t, picture(plain(), m, trial{}, trial{}), "nothing to draw")
	straight, shaped := trials()
	shaped.reached = nil
	require.Contains(t, picture(plain(), m, straight, shaped), "0 reach the upstream")
}

func TestPictureFitsTheScreen(t *testing.T) {
	for _, limits := range []string{"20/s depth 14", "7/s depth 9", "1/s depth 1", "1000000/s depth 3", "1 per 365d depth 4", "49.99/s depth 5", "inf"} {
		straight, shaped := trials()
		shown := picture(plain(), meaningOf(limitsOf(t, limits)), straight, shaped)
		for line := range strings.Lines(shown) {
			require.LessOrEqual(t, len([]rune(line)), 81, "%s\n%s", limits, shown)
		}
	}
}

func TestTable(t *testing.T) {
	straight, shaped := trials()
	require.Equal(t, strings.TrimPrefix(`
                                   straight     shaped
  sent                                   18         18
  served                                  4         15
  refused with 429                        0          3
  failed (5xx)                           14          0
  smallest gap at the upstream          0 s      42 ms
  median gap at the upstream            0 s      42 ms
  longest wait                            -     701 ms
`, "\n"), table(plain(), meaningOf(limitsOf(t, "20/s depth 14")), straight, shaped))
}

func TestTableOfVanishers(t *testing.T) {
	straight, shaped := vanishing()
	require.Contains(t, table(plain(), meaningOf(limitsOf(t, "20/s depth 14")), straight, shaped), strings.TrimPrefix(`
  sent                                   18         18
  of these impatient                      -          7
  served                                  4         11
  refused with 429                        0          3
  left while waiting                      -          4
  slots spent on them                     -          0
  failed (5xx)                           14          0
`, "\n"))
}

func TestColourOnlyWhereWanted(t *testing.T) {
	require.Equal(t, "x", plain().in(red, "x"))
	require.Equal(t, "\x1b[31mx\x1b[0m", (&terminal{colour: true}).in(red, "x"))
}

// The line at the bottom leaves nothing of itself behind, and only where there
// is a terminal.
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
	var m meter
	for i, c := range []struct {
		departed uint64
		rate     float64
	}{{10, 0}, {20, 40}, {20, 20}, {20, 40.0 / 3}, {60, 50}, {60, 40}, {60, 40}} {
		require.InDelta(t, c.rate, m.rate(begin.Add(time.Duration(i)*statusEvery), c.departed), 1e-9, "look %d", i)
	}
}
