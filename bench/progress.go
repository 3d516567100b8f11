package main

import (
	"fmt"
	"time"
)

// A progress tells how far a part has come and how long the rest may take, with
// the parts that follow.
type progress struct {
	o       options
	steps   int
	planned time.Duration // what the steps are thought to take together

	step   int           // the one that runs
	behind time.Duration // what those before it were thought to take
	began  time.Time
}

func newProgress(o options, steps int, planned time.Duration) *progress {
	return &progress{o: o, steps: steps, planned: planned, began: time.Now()}
}

// next says that a step begins, which is thought to take so long.
func (p *progress) next(takes time.Duration, format string, args ...any) {
	left := p.planned - p.behind
	if p.behind > 0 {
		left = time.Duration(float64(left) * float64(time.Since(p.began)) / float64(p.behind))
	}
	p.step++
	p.behind += takes
	p.o.say("%d of %d, %s left: %s", p.step, p.steps, roughly(left+p.o.later), fmt.Sprintf(format, args...))
}
