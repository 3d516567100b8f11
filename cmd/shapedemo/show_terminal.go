package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode/utf8"
)

// A terminal prints the output of the program: plain text, and, on a real
// terminal, colours and one status line at the bottom that is overwritten again
// and again. It is safe for concurrent use.
type terminal struct {
	live   bool // the last line may be written over
	colour bool
	failed func(error) // told once, of the first write that fails

	mu          sync.Mutex
	out         io.Writer
	statusWidth int   // of the line at the bottom now; 0: there is none
	err         error // of the first write that failed; nothing is written after it
}

// newTerminal returns a terminal that writes to w, and calls failed when a write
// fails. It is live only if w is a character device. If the environment variable
// NO_COLOR is set and not empty, there is no colour.
func newTerminal(w io.Writer, broken func(error)) *terminal {
	t := &terminal{out: w, failed: broken}
	if file, ok := w.(*os.File); ok && os.Getenv("TERM") != "dumb" {
		at, err := file.Stat()
		t.live = err == nil && at.Mode()&os.ModeCharDevice != 0
	}
	t.colour = t.live && os.Getenv("NO_COLOR") == ""
	return t
}

// say prints a line of text in place of the status line, if there is one.
func (t *terminal) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writeLocked(t.eraseStatusLocked() + fmt.Sprintf(format, args...) + "\n")
}

// status replaces the status line; "" removes it. Only a live terminal has one.
func (t *terminal) status(line string) {
	if !t.live {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	erased := t.eraseStatusLocked()
	t.statusWidth = utf8.RuneCountInString(line)
	t.writeLocked(erased + line)
}

// eraseStatusLocked returns what erases the status line. It uses blanks, which
// every terminal understands.
func (t *terminal) eraseStatusLocked() string {
	if t.statusWidth == 0 {
		return ""
	}
	blanks := strings.Repeat(" ", t.statusWidth)
	t.statusWidth = 0
	return "\r" + blanks + "\r"
}

func (t *terminal) writeLocked(text string) {
	if t.err != nil || text == "" {
		return
	}
	if _, t.err = io.WriteString(t.out, text); t.err != nil {
		t.failed(t.err)
	}
}

// A colour is the code of a text colour. What it distinguishes is also
// distinguished by text, as not every terminal or reader sees colours.
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
