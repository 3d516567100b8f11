// Package run takes measurements: each in a child process of its own, in rounds in which all
// that is compared takes turns.
package run

import (
	"context"
	"log"

	"example.com/leakybucket/bench/internal/report"
)

// An Experiment measures one thing. Its name is the one that -only takes.
type Experiment struct {
	Name  string
	What  string // one line for -list
	Note  string // how it measures, and its pitfalls
	Goals []report.Goal
	// Needs is a program that the experiment can't do without, and how to get it. It is looked
	// for before anything is measured. "": it needs none.
	Needs, GetIt string
	// Measure returns lines and pictures, and with an error those that it has nevertheless.
	Measure func(context.Context, Options) (report.Report, error)
}

// Options are the parts of the command line that an experiment needs.
type Options struct {
	Quick  bool // a taste of everything, in a minute and a half
	Rounds int  // how often to measure; 0: as often as the experiment does by itself

	Log     *log.Logger // gets a line for each step; it may be nil
	Machine string      // the line below the pictures
}

// Logf reports the step that is being done.
func (o Options) Logf(format string, args ...any) {
	if o.Log != nil {
		o.Log.Printf(format, args...)
	}
}

// Times returns the number of rounds: what -rounds asks for, otherwise quick with -quick,
// and byItself without.
func (o Options) Times(byItself, quick int) int {
	switch {
	case o.Rounds > 0:
		return o.Rounds
	case o.Quick:
		return quick
	}
	return byItself
}
