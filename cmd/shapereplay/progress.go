package main

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"
)

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
