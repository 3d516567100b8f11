// Package run takes measurements: each in a child process of its own, in rounds
// in which all that is compared takes turns, with a line that tells how far it
// has come.
package run

import (
	"context"
	"time"

	"example.com/leakybucket/bench/internal/report"
)

// An Experiment measures one thing. Its name is what -only takes.
type Experiment struct {
	Name string
	What string // one line for -list
	// Estimate returns about how long it takes, from which the time left is
	// computed while the experiments before it run.
	Estimate func(Options) time.Duration
	// Needs returns an error if something is missing that the experiment needs
	// beyond what every system has. It is called before anything is measured.
	// nil: it needs nothing.
	Needs func(Options) error
	// Measure returns with an error what it has found nevertheless, if anything.
	Measure func(context.Context, Options) (report.Report, error)
}

// Options are what an experiment needs to know of the command line.
type Options struct {
	Quick  bool // a taste of everything, in a minute and a half
	Rounds int  // how often to measure what is compared; 0: as often as the experiment does by itself

	// Progress is told what is being done. It may be nil.
	Progress *Progress
	// Machine is the line below the pictures.
	Machine string
}

// Times returns the number of rounds: what -rounds asks for, otherwise quick with
// -quick, and byItself without.
func (o Options) Times(byItself, quick int) int {
	switch {
	case o.Rounds > 0:
		return o.Rounds
	case o.Quick:
		return quick
	}
	return byItself
}
