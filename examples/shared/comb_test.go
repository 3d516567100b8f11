package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// even returns a log of departures, one at each slot, by processes in turn.
func even(c comb, interval time.Duration, count, processes int) (log []departure) {
	for i := range count {
		log = append(log, departure{process: i % processes, at: c.lead() + time.Duration(i)*interval})
	}
	return log
}

func TestEvenDeparturesAreAnEvenComb(t *testing.T) {
	for _, row := range []struct {
		rate float64
		axis string
		rows []string
	}{
		{20, "          |+0 s          |+0.25 s       |+0.5 s        |+0.75 s", []string{
			"      0 s a  b  c  a  b  c  a  b  c  a  b  c  a  b  c  a  b  c  a  b",
			"      1 s c  a  b  c  a  b  c  a  b  c  a  b  c  a  b  c  a  b  c  a",
		}},
		{10, "          |+0 s          |+0.25 s       |+0.5 s        |+0.75 s", []string{
			"      0 s a     b     c     a     b     c     a     b     c     a",
			"      1 s b     c     a     b     c     a     b     c     a     b",
		}},
		{100, "          |+0 s          |+0.05 s       |+0.1 s        |+0.15 s", []string{
			"      0 s a  b  c  a  b  c  a  b  c  a  b  c  a  b  c  a  b  c  a  b",
			"    0.2 s c  a  b  c  a  b  c  a  b  c  a  b  c  a  b  c  a  b  c  a",
		}},
		{2.5, "          |+0 s           |+0.2 s         |+0.4 s         |+0.6 s", []string{
			"      0 s a                               b",
			"    0.8 s c                               a",
		}},
	} {
		c := newComb(row.rate, false)
		interval := time.Duration(1e9 / row.rate)
		log := even(c, interval, 50, 3)
		require.Equal(t, row.axis, c.axis())
		for i, want := range row.rows {
			require.Equal(t, want, c.row(i, log))
		}
		// Half a column too late or too early is still the same picture.
		for i := range log {
			log[i].at += c.lead() - 1
		}
		require.Equal(t, row.rows[1], c.row(1, log))
		for i := range log {
			log[i].at -= 2*c.lead() - 1
		}
		require.Equal(t, row.rows[1], c.row(1, log))
	}
}

// At every rate a line has room for two columns to a slot, and fits a terminal of 80.
func TestEveryRateFits(t *testing.T) {
	for rate := 1.0; rate <= 300; rate += 0.25 {
		c := newComb(rate, false)
		slots := c.line.Seconds() * rate
		require.InDelta(t, float64(int(slots+0.5)), slots, 1e-6)
		require.GreaterOrEqual(t, c.columns, 2*int(slots+0.5))
		require.LessOrEqual(t, len(c.row(599, even(c, time.Duration(1e9/rate), 3, 3)))+c.columns, 80)
		require.LessOrEqual(t, len(c.axis()), 80)
	}
}

func TestGapsAndBunchesShow(t *testing.T) {
	c := newComb(20, false)
	log := []departure{{0, 0}, {1, 150 * ms}, {1, 155 * ms}, {2, 160 * ms}, {0, 170 * ms}, {2, 999 * ms}, {1, 1001 * ms}, {0, -ms}}
	require.Equal(t, "      0 s 2        3a"+strings.Repeat(" ", 48)+"c", c.row(0, log))
	require.Equal(t, "      1 s b", c.row(1, log))
	require.Equal(t, "      2 s", c.row(2, log))
	for range 20 {
		log = append(log, departure{at: 2500 * ms})
	}
	require.Equal(t, "      2 s"+strings.Repeat(" ", 31)+"9", c.row(2, log))
}

func TestColoursStandForLetters(t *testing.T) {
	c := newComb(20, true)
	log := []departure{{0, 0}, {1, 50 * ms}, {2, 100 * ms}, {1, 150 * ms}, {2, 151 * ms}}
	require.Equal(t, "      0 s \x1b[36m│\x1b[0m  \x1b[33m│\x1b[0m  \x1b[35m│\x1b[0m  \x1b[35m2\x1b[0m", c.row(0, log))
}

func TestNotePointsAtItsInstant(t *testing.T) {
	c := newComb(20, false)
	log := []departure{{2, 300 * ms}, {2, 3950 * ms}}
	require.Equal(t, "      0 s"+strings.Repeat(" ", 19)+"c", c.row(0, log))
	require.Equal(t, "          "+strings.Repeat(" ", 18)+"^ c is killed", c.note(300*ms, "c is killed"))
	require.Equal(t, "      3 s"+strings.Repeat(" ", 58)+"c", c.row(3, log))
	require.Equal(t, "          "+strings.Repeat(" ", 45)+"c is killed ^", c.note(3950*ms, "c is killed"))
}
