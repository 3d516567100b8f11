package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
)

// A terminal prints the output of the program: plain text, and colours on a real
// terminal. It is safe for concurrent use.
type terminal struct {
	colour bool
	failed func(error) // told once, of the first write that fails

	mu  sync.Mutex
	out io.Writer
	err error // of the first write that failed; nothing is written after it
}

// newTerminal returns a terminal that writes to w, and calls failed when a write
// fails. It has colours if w is a character device and the environment variable
// NO_COLOR is not set.
func newTerminal(w io.Writer, failed func(error)) *terminal {
	t := &terminal{out: w, failed: failed}
	if file, ok := w.(*os.File); ok && os.Getenv("TERM") != "dumb" && os.Getenv("NO_COLOR") == "" {
		at, err := file.Stat()
		t.colour = err == nil && at.Mode()&os.ModeCharDevice != 0
	}
	return t
}

// say prints a line of text.
func (t *terminal) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return
	}
	if _, t.err = fmt.Fprintf(t.out, format+"\n", args...); t.err != nil {
		t.failed(t.err)
	}
}

// A colour is the code of a text colour. Text distinguishes too whatever a colour
// distinguishes, as not every terminal or reader sees colours.
type colour string

const (
	bold   colour = "1"
	faint  colour = "2"
	red    colour = "31"
	green  colour = "32"
	yellow colour = "33"
	blue   colour = "36"
)

// coloured returns text in a colour, if the terminal has colours.
func (t *terminal) coloured(c colour, text string) string {
	if !t.colour || text == "" {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

// A table compares requests that were sent directly with requests that were sent
// through a shaper.
type table struct{ strings.Builder }

func newTable(t *terminal) *table {
	b := &table{}
	fmt.Fprintln(b, t.coloured(bold, fmt.Sprintf("  %-30s %10s %10s", "", "direct", "shaped")))
	return b
}

func (b *table) row(name string, direct, shaped any) {
	fmt.Fprintf(b, "  %-30s %10v %10v\n", name, direct, shaped)
}

// formatDecimal formats a number with two decimals, or fewer if they are zero.
func formatDecimal(n float64) string {
	return strings.TrimRight(strings.TrimRight(strconv.FormatFloat(n, 'f', 2, 64), "0"), ".")
}

// countOf returns a number with its noun, in the plural unless the number is 1.
func countOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
