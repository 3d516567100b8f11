// Package run takes measurements: each in a child process of its own, in rounds in which all
// that is compared takes turns.
package run

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
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
	// Measure returns lines and pictures, and with an error those that it has nevertheless.
	Measure func(context.Context, Options) (report.Report, error)
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

// A Case is one of the cases that are compared. Its name is the name of its benchmark lines,
// such as "Spacing/limiter=shaper/rate=1000".
type Case[In any] struct {
	Name   string
	Input  In
	Rounds int // it is measured in the first so many rounds
}

// A Result is a case with the outcome of each of its rounds.
type Result[In, Out any] struct {
	Case[In]
	Found []Out // by round
}

// Lines returns the benchmark lines of all results.
func Lines[In, Out any](results []Result[In, Out]) (lines []report.Line) {
	for _, r := range results {
		lines = append(lines, report.Lines(r.Name, r.Found)...)
	}
	return lines
}

// DrawSpacings adds a picture of how spacings spread to a report, with a row for each result that is
// drawn under a name. Without any there is no picture.
func DrawSpacings[In, Out any](r *report.Report, p report.Spacings, ours string, results []Result[In, Out], drawn func(In) (name string, is bool), spread func(Out) measure.Spread) error {
	for _, one := range results {
		name, is := drawn(one.Input)
		if !is {
			continue
		}
		row := report.SpacingsRow{Name: name}
		for _, found := range one.Found {
			row.Rounds = append(row.Rounds, spread(found))
		}
		p.Rows = append(p.Rows, row)
	}
	if len(p.Rows) == 0 {
		return nil
	}
	picture, err := p.Draw(ours)
	r.Pictures = append(r.Pictures, picture)
	return err
}

// TimingLines returns a line for each number of goroutines and each round.
func TimingLines(name string, goroutines []int, rounds [][]measure.Timing) (lines []report.Line) {
	for g, n := range goroutines {
		var timings []measure.Timing
		for _, round := range rounds {
			timings = append(timings, round[g])
		}
		lines = append(lines, report.Lines(fmt.Sprintf("%s/goroutines=%d", name, n), timings)...)
	}
	return lines
}

// InTurns measures the cases of each group in interleaved rounds: what disturbs the machine
// for a while disturbs all of them alike. Another case begins in each round. A case that
// fails is measured once more, as a machine that stands still can make that happen. If it
// fails again it costs only its own results: InTurns returns the others, in the order of the
// cases, with the error.
func InTurns[In, Out any](ctx context.Context, o Options, take func(context.Context, In) (Out, error), groups ...[]Case[In]) ([]Result[In, Out], error) {
	var results []Result[In, Out]
	var failed []error
	for _, cases := range groups {
		found, errs := make([][]Out, len(cases)), make([]error, len(cases))
		for round, more := 0, true; more; round++ {
			more = false
			for i := range cases {
				i = (i + round) % len(cases)
				c := cases[i]
				if round >= c.Rounds {
					continue
				}
				more = more || round+1 < c.Rounds
				o.Logf("%s, round %d of %d", c.Name, round+1, c.Rounds)
				if errs[i] != nil {
					continue
				}
				one, err := takeTwice(ctx, o, take, c)
				if ctx.Err() != nil {
					return nil, errors.Join(err, ctx.Err())
				}
				found[i], errs[i] = append(found[i], one), err
			}
		}
		results = append(results, conclude(cases, found, errs)...)
		failed = append(failed, errs...)
	}
	return results, errors.Join(failed...)
}

// takeTwice measures a case once more if it fails.
func takeTwice[In, Out any](ctx context.Context, o Options, take func(context.Context, In) (Out, error), c Case[In]) (Out, error) {
	one, err := take(ctx, c.Input)
	if err != nil && ctx.Err() == nil {
		o.Logf("%s is measured once more: %v", c.Name, err)
		one, err = take(ctx, c.Input)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", c.Name, err)
	}
	return one, err
}

// AtOnce measures all cases at the same time, once: it is for those that wait for the clock,
// and leave the processors to one another. Those that fail are measured once more, as
// [InTurns] does.
func AtOnce[In, Out any](ctx context.Context, o Options, take func(context.Context, In) (Out, error), cases []Case[In]) ([]Result[In, Out], error) {
	o.Logf("%d cases at once", len(cases))
	found, errs := make([][]Out, len(cases)), make([]error, len(cases))
	var all sync.WaitGroup
	for i, c := range cases {
		all.Go(func() {
			one, err := takeTwice(ctx, o, take, c)
			found[i], errs[i] = []Out{one}, err
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return conclude(cases, found, errs), errors.Join(errs...)
}

// conclude makes results of the cases that did not fail.
func conclude[In, Out any](cases []Case[In], found [][]Out, errs []error) []Result[In, Out] {
	var results []Result[In, Out]
	for i, c := range cases {
		if errs[i] == nil && len(found[i]) > 0 {
			results = append(results, Result[In, Out]{c, found[i]})
		}
	}
	return results
}

// Beyond is for figures that stand beside the figures of a bare case, such as a goroutine
// without a limiter. isBare tells which case is the bare one of another. For each result
// Beyond calls subtract with each round of both.
func Beyond[In, Out any](results []Result[In, Out], isBare func(bare, of In) bool, subtract func(bare Out, from *Out)) []Result[In, Out] {
	for _, r := range results {
		for _, bare := range results {
			if !isBare(bare.Input, r.Input) {
				continue
			}
			for round := range min(len(r.Found), len(bare.Found)) {
				subtract(bare.Found[round], &r.Found[round])
			}
		}
	}
	return results
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

// Child does the work of a child process and ends it, if this process is one.
// main calls it first; of tests [Tests] does, as a test binary is its own child.
func Child() {
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
func Tests(m interface{ Run() int }) {
	Child()
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

// A Measurement is taken in a child process of its own: what one leaves behind
// in the heap, the timers or the scheduler is not the next one's, and CPU time
// and memory are its own. [NewMeasurement] makes one.
type Measurement[In, Out any] string

// NewMeasurement registers a measurement under a name. It belongs into a package
// variable, so that the child process has it too.
func NewMeasurement[In, Out any](name string, measure func(In) (Out, error)) Measurement[In, Out] {
	Register(name, func(in io.Reader, out io.Writer) error {
		var input In
		if err := gob.NewDecoder(in).Decode(&input); err != nil {
			return err
		}
		found, err := measure(input)
		if err != nil {
			return err
		}
		return gob.NewEncoder(out).Encode(found)
	})
	return Measurement[In, Out](name)
}

// Take measures in a child process. The end of ctx ends the child.
func (m Measurement[In, Out]) Take(ctx context.Context, in In) (found Out, err error) {
	var input, output, complaint bytes.Buffer
	if err := gob.NewEncoder(&input).Encode(in); err != nil {
		return found, err
	}
	child, err := Command(ctx, string(m))
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

// resultsIn is the name of the variable that names the file for the results of a test, and atLength the
// name of the one that is 1 if the test is to measure for as long as an experiment does.
const resultsIn, atLength = "BENCH_RESULTS", "BENCH_AT_LENGTH"

// InVirtualTime runs a test that measures, because package synctest works in tests alone, and returns
// the lines that the test gives to [WriteResults].
func InVirtualTime(ctx context.Context, o Options, test, pkg string) (lines []report.Line, err error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "results.json")
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-run", "^"+test+"$", pkg)
	cmd.Env = append(os.Environ(), resultsIn+"="+file)
	if !o.Quick {
		cmd.Env = append(cmd.Env, atLength+"=1")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return lines, json.Unmarshal(text, &lines)
}

// AtLength reports whether a test is to measure for longer than it needs by itself, and than -quick does.
func AtLength() bool { return os.Getenv(atLength) == "1" }

// WriteResults hands the lines of a test to [InVirtualTime], if it runs the test.
func WriteResults(lines []report.Line) error {
	file := os.Getenv(resultsIn)
	if file == "" {
		return nil
	}
	text, err := json.Marshal(lines)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
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
