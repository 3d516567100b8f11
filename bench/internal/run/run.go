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
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

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

	// Groups returns what is measured, in a child process each.
	Groups func(Options) []Group
	// Conclude adds to the lines that were measured what follows from several of them, and pictures. nil: nothing.
	Conclude func(*report.Report, Options) error
	// Measure takes the place of both. It returns lines and pictures, and with an error those that it has nevertheless.
	Measure func(context.Context, Options) (report.Report, error)
}

// Run measures the experiment. With an error it returns what it has nevertheless.
func (e Experiment) Run(ctx context.Context, o Options) (r report.Report, err error) {
	if e.Measure != nil {
		r, err = e.Measure(ctx, o)
	} else {
		r.Lines, err = Take(ctx, o, InChild(o), e.Groups(o)...)
		if e.Conclude != nil {
			err = errors.Join(err, e.Conclude(&r, o))
		}
	}
	r.Name, r.What, r.Note, r.Goals = e.Name, e.What, e.Note+r.Note, e.Goals
	return r, err
}

// A Program is one that an experiment runs, and how to get it.
type Program struct{ Name, GetIt string }

// Go is what runs tests and builds programs.
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

// A Case is one of the cases that are compared.
type Case struct {
	Name    string // of its benchmark lines, or how their names begin, such as "Spacing/limiter=shaper/rate=1000"
	Rounds  int    // it is measured in the first so many rounds
	Measure func(context.Context) ([]report.Line, error)
}

// One returns a case with one line. Its figures are the fields of what measure finds.
func One[Out any](name string, rounds int, measure func(context.Context) (Out, error)) Case {
	return Case{name, rounds, func(ctx context.Context) ([]report.Line, error) {
		found, err := measure(ctx)
		if err != nil {
			return nil, err
		}
		return []report.Line{report.LineOf(name, found)}, nil
	}}
}

// Timed returns a line for each of the numbers of goroutines that make a call: each makes the call of one of them.
func Timed(name string, goroutines []int, each func() func() bool, batch time.Duration) (lines []report.Line, err error) {
	for _, n := range goroutines {
		found, err := measure.TimeCalls(each, n, batch)
		if err != nil {
			return nil, fmt.Errorf("%d goroutines: %w", n, err)
		}
		lines = append(lines, report.LineOf(fmt.Sprintf("%s/goroutines=%d", name, n), found))
	}
	return lines, nil
}

// A Group is cases that are measured in interleaved rounds: what disturbs the machine for a while disturbs all of them
// alike. Another case begins in each round.
type Group struct {
	Cases []Case
	// AtOnce is for cases that wait for the clock, and leave the processors to one another: a round of all takes
	// place at the same time.
	AtOnce bool
}

// Take measures the cases of one group after the other. A case that fails is measured once more, as a machine that
// stands still can make that happen. If it fails again it costs only its own results: Take returns the others, in the
// order of the cases, with the error.
func Take(ctx context.Context, o Options, take func(context.Context, Case) ([]report.Line, error), groups ...Group) (lines []report.Line, err error) {
	var failed []error
	for _, g := range groups {
		found, errs := make([][]report.Line, len(g.Cases)), make([]error, len(g.Cases))
		one := func(i, round int) {
			c := g.Cases[i]
			if round >= c.Rounds || errs[i] != nil || ctx.Err() != nil {
				return
			}
			o.Logf("%s, round %d of %d", c.Name, round+1, c.Rounds)
			more, err := take(ctx, c)
			if err != nil && ctx.Err() == nil {
				o.Logf("%s is measured once more: %v", c.Name, err)
				more, err = take(ctx, c)
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

// Here measures a case in this process.
func Here(ctx context.Context, c Case) ([]report.Line, error) { return c.Measure(ctx) }

// InChild returns a function that measures a case in a child process of its own: what one leaves behind in the heap, the
// timers or the scheduler is not the next one's, and CPU time and memory are its own.
func InChild(o Options) func(context.Context, Case) ([]report.Line, error) {
	return func(ctx context.Context, c Case) ([]report.Line, error) {
		return caseChild.Take(ctx, caseInput{c.Name, o.Quick})
	}
}

// A caseInput names a case. The child finds its measurement, as it has the same experiments.
type caseInput struct {
	Name  string
	Quick bool
}

// experiments are those of this program. [Child] sets them.
var experiments []Experiment

var caseChild = NewChild("case", func(in caseInput) ([]report.Line, error) {
	for _, e := range experiments {
		if e.Groups == nil {
			continue
		}
		for _, g := range e.Groups(Options{Quick: in.Quick}) {
			for _, c := range g.Cases {
				if c.Name == in.Name {
					return c.Measure(context.Background())
				}
			}
		}
	}
	return nil, fmt.Errorf("no case is named %q", in.Name)
})

// InTest returns a function that measures in a test, because package synctest works in tests alone. It is for a
// child process, which it makes a test program whose only test never ends.
func InTest[Out any](measure func(*testing.T) Out) func(context.Context) (Out, error) {
	return func(context.Context) (found Out, err error) {
		measured := make(chan struct{})
		test := testing.InternalTest{Name: "Measurement", F: func(t *testing.T) {
			found = measure(t)
			close(measured)
			select {} // The process would end with the test.
		}}
		go testing.Main(func(_, _ string) (bool, error) { return true, nil }, []testing.InternalTest{test}, nil, nil)
		<-measured
		return found, nil
	}
}

// childVariable makes this program a child process. Its value is the name under which the task of
// the child was registered.
const childVariable = "LEAKYBUCKET_BENCH_CHILD"

// children are the tasks that a child process may have. Package variables fill it, before main
// begins.
var children = map[string]func(in io.Reader, out io.Writer) error{}

// Register makes work available to child processes under a name.
func Register(name string, work func(in io.Reader, out io.Writer) error) {
	if children[name] != nil {
		panic("run: two child processes are named " + name)
	}
	children[name] = work
}

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

// Command returns a command that does registered work in a child process.
func Command(ctx context.Context, name string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	child := exec.CommandContext(ctx, self)
	child.Env = append(os.Environ(), childVariable+"="+name)
	return child, nil
}

// A ChildProcess does the work that was registered under its name. [NewChild] makes one.
type ChildProcess[In, Out any] string

// NewChild registers work under a name. It belongs into a package variable, so that the child process has it too.
func NewChild[In, Out any](name string, work func(In) (Out, error)) ChildProcess[In, Out] {
	Register(name, func(in io.Reader, out io.Writer) error {
		var input In
		if err := gob.NewDecoder(in).Decode(&input); err != nil {
			return err
		}
		found, err := work(input)
		if err != nil {
			return err
		}
		return gob.NewEncoder(out).Encode(found)
	})
	return ChildProcess[In, Out](name)
}

// Take lets a child process do its work. The end of ctx ends the child.
func (p ChildProcess[In, Out]) Take(ctx context.Context, in In) (found Out, err error) {
	var input, output, complaint bytes.Buffer
	if err := gob.NewEncoder(&input).Encode(in); err != nil {
		return found, err
	}
	child, err := Command(ctx, string(p))
	if err != nil {
		return found, err
	}
	child.Stdin, child.Stdout, child.Stderr = &input, &output, &complaint
	if err := child.Run(); err != nil {
		return found, fmt.Errorf("%w: %s", errors.Join(err, ctx.Err()), bytes.TrimSpace(complaint.Bytes()))
	}
	err = gob.NewDecoder(&output).Decode(&found)
	return found, err
}

// Sleep ends with the context.
func Sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// A Process is a server that runs beside an experiment. [StartProcess] makes one.
type Process struct {
	Cmd   *exec.Cmd
	Ended chan struct{} // closed when it has

	cancel  context.CancelFunc
	err     error        // with which it has ended; to be read after that
	printed bytes.Buffer // likewise
}

const (
	readyWithin = time.Minute // The machine may be busy.
	goneWithin  = time.Minute // then it is killed
)

// StartProcess runs a command, which ends with ctx, with some input, and returns
// when something listens on address. The process must be stopped.
func StartProcess(ctx context.Context, address string, input []byte, command func(context.Context) (*exec.Cmd, error)) (*Process, error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd, err := command(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	p := &Process{Cmd: cmd, cancel: cancel, Ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.printed, &p.printed
	// nginx ends its workers when it is asked to end, and leaves them behind
	// when it is killed.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = goneWithin
	// A child of this program ends when this pipe does, and so also when this process is killed.
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	_, _ = stdin.Write(input) // If the process has gone, listens says why.
	go func() {
		p.err = cmd.Wait()
		close(p.Ended)
	}()
	if err := p.listens(ctx, address); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

// listens waits until the process listens on an address.
func (p *Process) listens(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("%s does not listen on %s within %v", p.Cmd.Path, address, readyWithin))
	defer cancel()
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-p.Ended:
			return fmt.Errorf("%s: %w: %s", p.Cmd.Path, errors.Join(errors.New("it ended at once"), p.err), bytes.TrimSpace(p.printed.Bytes()))
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Stop ends the process and waits until it has gone.
func (p *Process) Stop() {
	p.cancel()
	<-p.Ended
}

// Ports are taken from below those that the system hands out to clients (from 32768 on
// Linux): a client could get one before the server listens there, or even be connected to
// itself.
const firstPort, ports = 20_000, 10_000

var given = struct {
	mu sync.Mutex
	is map[int]bool
}{is: map[int]bool{}}

// FreeAddress returns an address on loopback on which nobody listens, and another one with
// each call. Another program may take it before it is used.
func FreeAddress() (string, error) {
	given.mu.Lock()
	defer given.mu.Unlock()
	for range ports {
		port := firstPort + rand.IntN(ports)
		if given.is[port] {
			continue
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		listener, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		given.is[port] = true
		return address, listener.Close()
	}
	return "", errors.New("no free port was found")
}

// AtFreeAddress starts something on a free address. As another program may take the address
// in between, it tries three.
func AtFreeAddress[T any](start func(address string) (T, error)) (started T, err error) {
	for range 3 {
		var address string
		if address, err = FreeAddress(); err != nil {
			break
		}
		if started, err = start(address); err == nil {
			break
		}
	}
	return started, err
}
