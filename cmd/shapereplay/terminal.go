package main

import (
	"os"

	"golang.org/x/term"
)

// system returns the streams of the process.
func system() streams {
	s := streams{in: os.Stdin, typed: term.IsTerminal(int(os.Stdin.Fd())), out: os.Stdout, err: os.Stderr}
	if s.width = widthOf(os.Stdout); s.width > 0 {
		s.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	}
	s.progressWidth = widthOf(os.Stderr)
	s.progress = s.progressWidth > 0 && os.Getenv("TERM") != "dumb"
	return s
}

// widthOf returns how many characters a line of a terminal has, or 0 if a file is none.
func widthOf(f *os.File) int {
	const usual = 80
	if !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		return usual // As in some editors, which do not tell.
	}
	return width
}
