package run

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
)

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
// main calls it first, and so does TestMain, as a test binary is its own child.
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
		return found, fmt.Errorf("%s %+v: %w: %s", string(m), in, errors.Join(err, ctx.Err()), bytes.TrimSpace(complaint.Bytes()))
	}
	err = gob.NewDecoder(&output).Decode(&found)
	return found, err
}
