// Package run takes measurements: each in a child process of its own, in rounds in which all
// that is compared takes turns.
package run

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
)

// An Experiment measures one thing. Its name is the one that -only takes.
type Experiment struct {
	Name  string
	What  string // one line for -list
	Note  string // how it measures, and its pitfalls
	Goals []report.Goal
	Needs []Program // It can't do without them. They are looked for before anything is measured.

	// Prepare makes the files that children need, in a folder that is removed afterwards, and returns more to note. nil: there is
	// nothing to prepare.
	Prepare func(ctx context.Context, o Options, folder string) (note string, err error)
	// Groups returns the cases, each measured in a child process.
	Groups func(Options) []Group
	// Conclude adds the figures that follow from several of the measured lines, and pictures. nil: nothing.
	Conclude func(*report.Report, Options) error
}

// Run measures the experiment. Beside an error it returns the results that it has.
func (e Experiment) Run(ctx context.Context, o Options) (r report.Report, err error) {
	r = report.Report{Name: e.Name, What: e.What, Note: e.Note, Goals: e.Goals}
	if e.Prepare != nil {
		folder, err := os.MkdirTemp("", "bench-"+e.Name)
		if err != nil {
			return r, err
		}
		defer func() { _ = os.RemoveAll(folder) }() // At most empty folders are left there.
		note, err := e.Prepare(ctx, o, folder)
		if err != nil {
			return r, err
		}
		r.Note += note
	}
	r.Lines, err = take(ctx, o, func(c Case) ([]report.Line, error) { return InChild(ctx, o, c) }, e.Groups(o)...)
	if e.Conclude != nil {
		err = errors.Join(err, e.Conclude(&r, o))
	}
	return r, err
}

// A Program is one that an experiment runs, and how to get it.
type Program struct{ Name, GetIt string }

// Go is the command that runs tests and builds programs.
var Go = Program{"go", "https://go.dev/dl"}

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

// Times returns the number of rounds: the value of -rounds, otherwise quick with -quick,
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

// A Case is one of the cases that are compared. It is measured as a test, and a failure is an error. So it can use
// everything that a test can, such as a bubble of package synctest.
type Case struct {
	Name    string // of its benchmark lines, or how their names begin, such as "Spacing/limiter=shaper/rate=1000"
	Rounds  int    // it is measured in the first so many rounds
	Measure func(*testing.T) []report.Line
}

// One returns a case with one line. Its figures are the fields of measure's result.
func One[Out any](name string, rounds int, measure func(*testing.T) Out) Case {
	return Case{name, rounds, func(t *testing.T) []report.Line { return []report.Line{report.LineOf(name, measure(t))} }}
}

// Timed returns a line for each of the numbers of goroutines that make a call: each makes the call of one of them.
func Timed(t testing.TB, name string, goroutines []int, each func() func() bool, batch time.Duration) (lines []report.Line) {
	for _, n := range goroutines {
		found, err := measure.TimeCalls(each, n, batch)
		require.NoError(t, err, "%d goroutines", n)
		lines = append(lines, report.LineOf(fmt.Sprintf("%s/goroutines=%d", name, n), found))
	}
	return lines
}

// A Group is cases that are measured in interleaved rounds, so that a disturbance of the machine meets all of them
// alike. Another case begins in each round.
type Group struct {
	Cases []Case
	// AtOnce is for cases that wait for the clock, and leave the processors to one another: a round of all takes
	// place at the same time.
	AtOnce bool
}

// take measures the cases of one group after the other. A case that fails is measured once more, as a machine that
// stands still can make that happen. If it fails again it costs only its own results: take returns the others, in the
// order of the cases, with the error.
func take(ctx context.Context, o Options, measure func(Case) ([]report.Line, error), groups ...Group) (lines []report.Line, err error) {
	var failed []error
	for _, g := range groups {
		found, errs := make([][]report.Line, len(g.Cases)), make([]error, len(g.Cases))
		one := func(i, round int) {
			c := g.Cases[i]
			if round >= c.Rounds || errs[i] != nil || ctx.Err() != nil {
				return
			}
			o.Logf("%s, round %d of %d", c.Name, round+1, c.Rounds)
			more, err := measure(c)
			if err != nil && ctx.Err() == nil {
				o.Logf("%s is measured once more: %v", c.Name, err)
				more, err = measure(c)
			}
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", c.Name, err)
			}
			found[i] = append(found[i], more...)
		}
		rounds := 0
		for _, c := range g.Cases {
			rounds = max(rounds, c.Rounds)
		}
		for round := range rounds {
			var all sync.WaitGroup
			for i := range g.Cases {
				i = (i + round) % len(g.Cases)
				if g.AtOnce {
					all.Go(func() { one(i, round) })
				} else {
					one(i, round)
				}
			}
			all.Wait()
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for i := range g.Cases {
			if errs[i] == nil {
				lines = append(lines, found[i]...)
			}
		}
		failed = append(failed, errs...)
	}
	return lines, errors.Join(failed...)
}

// InChild measures a case in a child process of its own. So CPU time and memory are its own, and it leaves nothing
// behind for the next one in the heap, the timers or the scheduler. The child finds the case, as it has the same experiments.
func InChild(ctx context.Context, o Options, c Case) ([]report.Line, error) {
	return caseChild.Take(ctx, caseInput{c.Name, o.Quick})
}

type caseInput struct {
	Name  string
	Quick bool
}

// experiments are this program's. [Child] sets them.
var experiments []Experiment

var caseChild = NewChild("case", func(in caseInput) ([]report.Line, error) {
	for _, e := range experiments {
		for _, g := range e.Groups(Options{Quick: in.Quick}) {
			for _, c := range g.Cases {
				if c.Name == in.Name {
					return asTest(c), nil
				}
			}
		}
	}
	return nil, fmt.Errorf("no case is named %q", in.Name)
})

// asTest makes this process a test program whose only test is a case. The process ends with the test, unless the case
// has been measured.
func asTest(c Case) (lines []report.Line) {
	measured := make(chan struct{})
	test := func(t *testing.T) {
		if t.Run("case", func(t *testing.T) { lines = c.Measure(t) }) {
			close(measured)
			select {}
		}
	}
	all := func(_, _ string) (bool, error) { return true, nil }
	go testing.Main(all, []testing.InternalTest{{Name: "Measurement", F: test}}, nil, nil)
	<-measured
	return lines
}

// childVariable makes this program a child process. Its value is the name of the work of the child.
const childVariable = "LEAKYBUCKET_BENCH_CHILD"

// children is the work that a child process may have. Package variables fill it, before main begins.
var children = map[string]func(in io.Reader, out io.Writer) error{}

// Child does the work of a child process and ends it, if this process is one. main calls it first, with the
// experiments whose cases are measured; of tests [Tests] does, as a test binary is its own child.
func Child(all ...Experiment) {
	experiments = all
	name, is := os.LookupEnv(childVariable)
	if !is {
		return
	}
	// Ctrl-C on a terminal reaches the child too. Its parent ends it, and then
	// knows why it has ended.
	signal.Ignore(os.Interrupt)
	work := children[name]
	if work == nil {
		work = func(io.Reader, io.Writer) error { return fmt.Errorf("no child process is named %q", name) }
	}
	if err := work(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Tests runs the tests of a package and ends the process, or does the work of a child: it is for TestMain.
func Tests(m interface{ Run() int }, all ...Experiment) {
	Child(all...)
	os.Exit(m.Run())
}

// A ChildProcess does the work that was registered under its name. [NewChild] makes one.
type ChildProcess[In, Out any] string

// NewChild registers work under a name. It belongs into a package variable, so that the child process has it too.
func NewChild[In, Out any](name string, work func(In) (Out, error)) ChildProcess[In, Out] {
	if children[name] != nil {
		panic("run: two child processes are named " + name)
	}
	children[name] = func(in io.Reader, out io.Writer) error {
		var input In
		if err := gob.NewDecoder(in).Decode(&input); err != nil {
			return err
		}
		found, err := work(input)
		if err != nil {
			return err
		}
		return gob.NewEncoder(out).Encode(found)
	}
	return ChildProcess[In, Out](name)
}

// Command returns a command that does the work in a child process.
func (p ChildProcess[In, Out]) Command(ctx context.Context, in In) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var input bytes.Buffer
	child := exec.CommandContext(ctx, self)
	child.Env = append(os.Environ(), childVariable+"="+string(p))
	child.Stdin = &input
	return child, gob.NewEncoder(&input).Encode(in)
}

// Take lets a child process do its work. The end of ctx ends the child.
func (p ChildProcess[In, Out]) Take(ctx context.Context, in In) (found Out, err error) {
	child, err := p.Command(ctx, in)
	if err != nil {
		return found, err
	}
	var output, complaint bytes.Buffer
	child.Stdout, child.Stderr = &output, &complaint
	if err := child.Run(); err != nil { // Tests that fail say why on standard output.
		return found, fmt.Errorf("%w: %s", errors.Join(err, ctx.Err()), bytes.TrimSpace(append(complaint.Bytes(), output.Bytes()...)))
	}
	err = gob.NewDecoder(&output).Decode(&found)
	return found, err
}
