package run

import (
	"fmt"
	"log"
	"time"
)

// Progress tells what is being done, and about how long the rest may take.
// [NewProgress] makes one. A nil one says nothing.
type Progress struct {
	log     *log.Logger
	planned time.Duration // the estimate of everything
	behind  time.Duration // so much of it is done
	began   time.Time
}

// NewProgress begins a run that is estimated to take so long.
func NewProgress(to *log.Logger, planned time.Duration) *Progress {
	return &Progress{log: to, planned: planned, began: time.Now()}
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
	p.Logf("%v left: %s", max(0, left).Round(10*time.Second), fmt.Sprintf(format, args...))
}

// Logf tells what is being done.
func (p *Progress) Logf(format string, args ...any) {
	if p != nil {
		p.log.Printf(format, args...)
	}
}
