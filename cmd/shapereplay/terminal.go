package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

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

// A progress shows on a terminal how much of the logs has been read.
type progress struct {
	out      io.Writer // nil: nothing is shown
	width    int
	read     func() (bytes, total int64)
	requests atomic.Int64

	done, gone chan struct{} // closed by stop, and when the goroutine has ended
}

// startProgress shows how far the reading is until stop is called.
func (s *streams) startProgress(read func() (bytes, total int64)) *progress {
	p := &progress{width: s.progressWidth, read: read}
	if !s.progress {
		return p
	}
	p.out, p.done, p.gone = s.err, make(chan struct{}), make(chan struct{})
	go p.run()
	return p
}

// run shows the progress ten times a second.
func (p *progress) run() {
	defer close(p.gone)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	began, shown := time.Now(), 0
	for {
		select {
		case <-p.done:
			// Blanks are understood by every terminal.
			fmt.Fprintf(p.out, "\r%s\r", strings.Repeat(" ", shown))
			return
		case <-tick.C:
			line := []rune(p.line(time.Since(began)))
			line = line[:min(len(line), p.width-1)]
			fmt.Fprintf(p.out, "\r%s%s", string(line), strings.Repeat(" ", max(0, shown-len(line))))
			shown = len(line)
		}
	}
}

// line returns what is shown after some time.
func (p *progress) line(since time.Duration) string {
	requests := fmt.Sprintf("%d requests", p.requests.Load())
	read, total := p.read()
	if total <= 0 {
		return requests + " read"
	}
	const length = 30
	share := min(1, float64(read)/float64(total))
	full := int(share * length)
	line := fmt.Sprintf("[%s%s] %3.0f%%  %s", strings.Repeat("#", full), strings.Repeat(".", length-full), 100*share, requests)
	if share > 0.05 {
		left := time.Duration(float64(since) / share * (1 - share))
		line += fmt.Sprintf("  %s left", left.Round(time.Second))
	}
	return line
}

// stop removes what is shown.
func (p *progress) stop() {
	if p.out != nil {
		close(p.done)
		<-p.gone
	}
}

// An interruptible is standard input that ends when a context does, so that Ctrl-C shows
// what was counted so far even while nothing comes.
type interruptible struct {
	ctx    context.Context
	from   io.Reader
	chunks chan chunk // nil: nothing has been read yet
	free   chan []byte
	rest   []byte // of the chunk that was read last
	last   chunk
}

// A chunk is what one reading gave.
type chunk struct {
	buffer []byte
	n      int
	err    error
}

func newInterruptible(ctx context.Context, from io.Reader) *interruptible {
	return &interruptible{ctx: ctx, from: from}
}

// begin starts the goroutine that reads. It ends with the input; if the context ends
// before, it may wait in a reading for as long as the program runs.
func (r *interruptible) begin() {
	const size = 64 << 10
	// Two buffers: one is read into while the other is used.
	r.chunks, r.free = make(chan chunk), make(chan []byte, 2)
	r.free <- make([]byte, size)
	r.free <- make([]byte, size)
	go func() {
		for {
			var buffer []byte
			select {
			case buffer = <-r.free:
			case <-r.ctx.Done():
				return
			}
			n, err := r.from.Read(buffer)
			select {
			case r.chunks <- chunk{buffer, n, err}:
			case <-r.ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
}

// Read implements [io.Reader].
func (r *interruptible) Read(p []byte) (int, error) {
	if r.chunks == nil {
		r.begin()
	}
	for len(r.rest) == 0 {
		if r.last.err != nil {
			return 0, r.last.err
		}
		if r.last.buffer != nil {
			r.free <- r.last.buffer // There is room for both buffers.
			r.last.buffer = nil
		}
		select {
		case r.last = <-r.chunks:
			r.rest = r.last.buffer[:r.last.n]
		case <-r.ctx.Done():
			r.last.err = io.EOF
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
