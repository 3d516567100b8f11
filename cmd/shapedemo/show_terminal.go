package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode/utf8"
)

// A terminal is where the program speaks: plain text, and, on a real terminal,
// colour and one line at the bottom that is written over and over. It is safe
// for concurrent use.
type terminal struct {
	live   bool // the last line may be written over
	colour bool
	broken func(error) // told once, of the first write that fails

	mu    sync.Mutex
	w     io.Writer
	width int   // of the line at the bottom now; 0: there is none
	err   error // of the first write that failed; nothing is written after it
}

// newTerminal returns a terminal on w, which is live only if it is a character
// device; NO_COLOR, unless empty, takes the colour away.
func newTerminal(w io.Writer, broken func(error)) *terminal {
	t := &terminal{w: w, broken: broken}
	if file, ok := w.(*os.File); ok && os.Getenv("TERM") != "dumb" {
		at, err := file.Stat()
		t.live = err == nil && at.Mode()&os.ModeCharDevice != 0
	}
	t.colour = t.live && os.Getenv("NO_COLOR") == ""
	return t
}

// say writes text above the line at the bottom, which is gone after it.
func (t *terminal) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writeLocked(t.eraserLocked() + fmt.Sprintf(format, args...) + "\n")
}

// status writes the line at the bottom; "" takes it away. Only a live terminal
// has one.
func (t *terminal) status(line string) {
	if !t.live {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	erased := t.eraserLocked()
	t.width = utf8.RuneCountInString(line)
	t.writeLocked(erased + line)
}

// eraserLocked takes the line at the bottom away, with blanks, which every
// terminal understands.
func (t *terminal) eraserLocked() string {
	if t.width == 0 {
		return ""
	}
	blanks := strings.Repeat(" ", t.width)
	t.width = 0
	return "\r" + blanks + "\r"
}

func (t *terminal) writeLocked(text string) {
	if t.err != nil || text == "" {
		return
	}
	if _, t.err = io.WriteString(t.w, text); t.err != nil {
		t.broken(t.err)
	}
}

// A tint is the code of a colour. All are told apart without it, too.
type tint string

const (
	bold   tint = "1"
	faint  tint = "2"
	red    tint = "31"
	green  tint = "32"
	yellow tint = "33"
	blue   tint = "36"
)

// in returns text in a colour, if there is colour.
func (t *terminal) in(c tint, text string) string {
	if !t.colour || text == "" {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}
