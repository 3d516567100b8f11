package main

import (
	"context"
	"time"
)

// A part measures one thing. Its name is what -only takes.
type part struct {
	name string
	what string // one line for -list
	// takes is about how long it takes, which the time left is reckoned from
	// while the parts before it are measured. nil means not known.
	takes func(o options) time.Duration
	// needs says what the part needs beyond what everybody has, and returns an
	// error if that is missing, before anything is measured. nil: nothing.
	needs func(o options) error
	// measure returns with an error what it has found nevertheless, if anything.
	measure func(ctx context.Context, o options) (report, error)
}

// options are what a part needs to know of the command line.
type options struct {
	quick  bool          // a taste of it all, under 60 s together
	full   bool          // what takes more memory than most can spare, too
	rounds int           // how often to measure what is compared; 0: as often as the part does by itself
	later  time.Duration // about how long the parts after this one take
	// say tells what is being done. On a terminal a line takes the place of the
	// one before, unless that one ended with a newline.
	say func(format string, args ...any)
}

// times is how often to measure what a part by itself measures so often.
func (o options) times(byItself int) int {
	if o.rounds > 0 {
		return o.rounds
	}
	return byItself
}

// A report is what a part has found: the tables that are printed, the data
// that go into the JSON and the pictures, and how the goals of the project fare.
type report struct {
	Tables []table
	Data   any
	Goals  []goal
}

// A table is printed with its columns aligned.
type table struct {
	Title   string
	Note    string // how it was measured, and what to beware of
	Columns []string
	Rows    [][]string
}

// A plot is a picture that is written as SVG under its name.
type plot struct {
	Name string // of the file, without .svg
	SVG  []byte
}

// A goal is a figure that the project has set itself.
type goal struct {
	What    string `json:"what"`
	Want    string `json:"want"`
	Got     string `json:"got"`
	Reached bool   `json:"reached"`
}
