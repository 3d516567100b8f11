package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// A screen keeps apart what is found, on stdout, and what is being done, on
// stderr. It is for one goroutine.
type screen struct {
	stdout, stderr io.Writer
	rewrites       bool // stderr is a terminal: a line takes the place of the one before
	pending        bool // such a line stands there
}

func newScreen(stdout, stderr io.Writer) *screen {
	s := &screen{stdout: stdout, stderr: stderr}
	if f, is := stderr.(*os.File); is {
		about, err := f.Stat()
		s.rewrites = err == nil && about.Mode()&os.ModeCharDevice != 0
	}
	return s
}

// sayer makes the function that parts say what they do with.
func (s *screen) sayer(who string) func(format string, args ...any) {
	return func(format string, args ...any) {
		line := who + ": " + fmt.Sprintf(format, args...)
		text, stays := strings.CutSuffix(line, "\n")
		s.clear()
		fmt.Fprint(s.stderr, text)
		if stays || !s.rewrites {
			fmt.Fprintln(s.stderr)
		} else {
			s.pending = true
		}
	}
}

// clear takes away the line that tells what is being done.
func (s *screen) clear() {
	if s.pending {
		fmt.Fprint(s.stderr, "\r\x1b[K")
		s.pending = false
	}
}

func (s *screen) print(format string, args ...any) {
	s.clear()
	fmt.Fprintf(s.stdout, format, args...)
}
