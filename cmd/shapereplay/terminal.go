package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// system returns the streams of the process.
func system() streams {
	return streams{
		in: os.Stdin, typed: term.IsTerminal(int(os.Stdin.Fd())), out: os.Stdout,
		err: os.Stderr, progress: term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb",
	}
}

// A progress shows on a terminal how much of the logs has been read.
type progress struct {
	streams streams
	began   time.Time

	last  time.Time // when it was shown last
	shown int       // how many characters
}

// show shows how many requests have been read, ten times a second at most, and of how many
// bytes of the logs; of a pipe nobody knows that.
func (p *progress) show(now time.Time, requests int, read func() (bytes, total int64)) {
	if !p.streams.progress || now.Sub(p.last) < 100*time.Millisecond {
		return
	}
	p.last = now
	line := fmt.Sprintf("%d requests read", requests)
	if bytes, total := read(); total > 0 {
		const length = 30
		share := min(1, float64(bytes)/float64(total))
		full := int(share * length)
		line = fmt.Sprintf("[%s%s] %3.0f%%  %s", strings.Repeat("#", full), strings.Repeat(".", length-full), 100*share, line)
		if share > 0.05 {
			left := time.Duration(float64(now.Sub(p.began)) / share * (1 - share))
			line += fmt.Sprintf("  %s left", left.Round(time.Second))
		}
	}
	fmt.Fprintf(p.streams.err, "\r%-*s", p.shown, line)
	p.shown = len(line)
}

// end removes the text shown. Blanks are understood by every terminal.
func (p *progress) end() {
	if p.shown > 0 {
		fmt.Fprintf(p.streams.err, "\r%s\r", strings.Repeat(" ", p.shown))
	}
}

// interruptible returns standard input that ends when a context does, so that Ctrl-C shows
// the counts so far even while nothing comes. The goroutine that reads it may wait in a
// reading for as long as the program runs.
func interruptible(ctx context.Context, from io.Reader) io.Reader {
	out, in := io.Pipe()
	go func() {
		_, err := io.Copy(in, from)
		in.CloseWithError(err) // nil is the end
	}()
	context.AfterFunc(ctx, func() { in.Close() })
	return out
}
