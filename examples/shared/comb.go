package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

const (
	margin  = "          " // left of the comb, for the time at which a line begins
	width   = 64           // the longest line of the comb, in columns
	letters = "abcdef"     // the names of the processes
)

// colours are the codes of the colours of the processes, as terminals know them.
var colours = [len(letters)]int{36, 33, 35, 32, 34, 31}

// A departure is a call that has left.
type departure struct {
	process int
	at      time.Duration // since the comb begins
}

// A comb draws departures on lines of text. A line is a whole number of slots, and a slot a
// whole number of columns: otherwise even departures would look uneven.
type comb struct {
	line    time.Duration
	columns int
	colour  bool
}

// newComb returns the comb for a rate, with lines of a second, or less where that would
// not leave two columns to a slot.
func newComb(rate float64, colour bool) comb {
	slots := 1
	for _, seconds := range []float64{1, 0.5, 0.2, 0.1} {
		slots = max(1, int(rate*seconds+1e-9))
		if 2*slots <= width {
			break
		}
	}
	return comb{
		line:    time.Duration(math.Round(float64(slots) / rate * 1e9)),
		columns: width / slots * slots,
		colour:  colour,
	}
}

// lead is how long before the first departure the comb begins, so that slots are in the
// middle of their columns, and one that is used a little late stays in its own.
func (c comb) lead() time.Duration { return c.line / time.Duration(2*c.columns) }

// place returns the line and column of an instant.
func (c comb) place(at time.Duration) (line, column int) {
	n := int(int64(max(0, at)) * int64(c.columns) / int64(c.line))
	return n / c.columns, n % c.columns
}

// row returns one line of the comb: a tick for each departure, or, where several are in one
// column, their number.
func (c comb) row(line int, log []departure) string {
	counts, last := make([]int, c.columns), make([]int, c.columns)
	for _, d := range log {
		if l, column := c.place(d.at); l == line {
			counts[column]++
			last[column] = d.process
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%7.4g s ", (time.Duration(line) * c.line).Round(time.Millisecond).Seconds())
	for column, n := range counts {
		switch {
		case n == 0:
			b.WriteByte(' ')
		case n == 1:
			b.WriteString(c.tick(last[column]))
		default:
			b.WriteString(c.painted(last[column], fmt.Sprint(min(n, 9))))
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// tick stands for a departure of a process.
func (c comb) tick(process int) string {
	if c.colour {
		return c.painted(process, "│")
	}
	return letters[process : process+1]
}

// painted returns text in the colour of a process, if there are colours.
func (c comb) painted(process int, text string) string {
	if !c.colour {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", colours[process], text)
}

// axis returns the head of the comb: how long after the beginning of a line its columns are.
func (c comb) axis() string {
	line := []byte(margin + strings.Repeat(" ", width+8))
	for i := range 4 {
		at := c.line * time.Duration(i) / 4
		copy(line[len(margin)+c.columns*i/4:], fmt.Sprintf("|+%.3g s", at.Round(time.Millisecond).Seconds()))
	}
	return strings.TrimRight(string(line), " ")
}

// note returns a line that points at an instant in the line of the comb above it.
func (c comb) note(at time.Duration, text string) string {
	_, column := c.place(at)
	if left := column - len(text) - 1; column+2+len(text) > width && left >= 0 {
		return margin + strings.Repeat(" ", left) + text + " ^"
	}
	return margin + strings.Repeat(" ", column) + "^ " + text
}
