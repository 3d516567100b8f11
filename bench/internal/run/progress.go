package run

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"example.com/leakybucket/bench/internal/report"
)

// Progress keeps apart what is found, on stdout, and what is being done, on
// stderr, and estimates how long the rest may take. [NewProgress] makes one. It
// is for one goroutine; a nil one says nothing.
type Progress struct {
	stdout, stderr io.Writer
	rewrites       bool // stderr is a terminal: a line takes the place of the one before
	pending        bool // such a line stands there

	who     string        // the experiment that runs
	planned time.Duration // the estimate of everything
	behind  time.Duration // of which so much is done
	began   time.Time
}

// NewProgress begins a run that is estimated to take so long.
func NewProgress(stdout, stderr io.Writer, planned time.Duration) *Progress {
	p := &Progress{stdout: stdout, stderr: stderr, planned: planned, began: time.Now()}
	if f, is := stderr.(*os.File); is {
		about, err := f.Stat()
		p.rewrites = err == nil && about.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// Begin names the experiment that runs from now on. Those before it were
// estimated to take so long.
func (p *Progress) Begin(who string, behind time.Duration) {
	if p != nil {
		p.who, p.behind = who, behind
	}
}

// Step tells what begins now and is estimated to take so long.
func (p *Progress) Step(estimate time.Duration, format string, args ...any) {
	if p == nil {
		return
	}
	left := p.planned - p.behind
	if p.behind > 0 { // The machine may be slower, or faster, than was thought.
		left = time.Duration(float64(left) * float64(time.Since(p.began)) / float64(p.behind))
	}
	p.behind += estimate
	p.Logf("%s left: %s", report.Roughly(left), fmt.Sprintf(format, args...))
}

// Logf tells what is being done. On a terminal the line takes the place of the
// one before, unless that one ended with a newline.
func (p *Progress) Logf(format string, args ...any) {
	if p == nil {
		return
	}
	text, stays := strings.CutSuffix(p.who+": "+fmt.Sprintf(format, args...), "\n")
	p.clear()
	fmt.Fprint(p.stderr, text)
	if stays || !p.rewrites {
		fmt.Fprintln(p.stderr)
	} else {
		p.pending = true
	}
}

// Printf tells what was found.
func (p *Progress) Printf(format string, args ...any) {
	p.clear()
	fmt.Fprintf(p.stdout, format, args...)
}

// Errorf tells what went wrong.
func (p *Progress) Errorf(format string, args ...any) {
	p.clear()
	fmt.Fprintf(p.stderr, format+"\n", args...)
}

// clear removes the line that tells what is being done.
func (p *Progress) clear() {
	if p.pending {
		fmt.Fprint(p.stderr, "\r\x1b[K")
		p.pending = false
	}
}
