// Command bench measures the shaper, and a Group of one for each key, side by side with other
// Go limiters, and Caddy with the shaper beside other proxies, in interleaved rounds within
// one run, each measurement in a process of its own. -list names its experiments.
//
//	GOWORK=$PWD/all.work go run ./bench -h
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"example.com/leakybucket/bench/adapt"
	"example.com/leakybucket/bench/admission"
	"example.com/leakybucket/bench/fair"
	"example.com/leakybucket/bench/goodput"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/bench/keys"
	"example.com/leakybucket/bench/llm"
	"example.com/leakybucket/bench/proxies"
	"example.com/leakybucket/bench/scale"
	"example.com/leakybucket/bench/shared"
	"example.com/leakybucket/bench/spacing"
)

// The exit statuses of the program. A goal that is missed is not a failure: it stands in the
// table.
const (
	exitOK          = 0
	exitFailed      = 1   // something could not be measured, or the results not be written
	exitUsage       = 2   // a flag that can't be followed; nothing was measured
	exitInterrupted = 130 // as a shell has it for a program ended by Ctrl-C
)

// experiments are everything that is measured, in the order in which it is. Each is a package
// of its own that no other one knows. A new one is added here.
func experiments() []run.Experiment {
	return []run.Experiment{
		spacing.Idle, spacing.Busy, admission.Experiment, goodput.Experiment, goodput.Hole,
		adapt.Experiment, scale.Experiment, keys.Experiment, fair.Experiment, spacing.FairBusy, llm.Experiment, shared.Experiment, proxies.Experiment,
	}
}

func main() {
	run.Child(experiments()...)
	// Debian keeps servers in sbin, which only root has in its PATH.
	if err := os.Setenv("PATH", os.Getenv("PATH")+string(os.PathListSeparator)+"/usr/sbin"); err != nil {
		log.Fatalf("bench: %v", err)
	}
	// However this program is asked to end, proxies must not stay behind.
	ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// SIGPIPE comes for a connection of an experiment, too, so only the error of the write counts.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	status := measureAll(ctx, experiments(), os.Args[1:], output{os.Stdout, release}, output{os.Stderr, release})
	release()
	os.Exit(status)
}

// An output ends the program if nobody reads it.
type output struct {
	io.Writer
	end func()
}

func (o output) Write(text []byte) (int, error) {
	n, err := o.Writer.Write(text)
	if err != nil {
		o.end()
	}
	return n, err
}

// measureAll is the whole program but for its children. It returns the exit status. The end
// of ctx ends it at once.
func measureAll(ctx context.Context, all []run.Experiment, args []string, stdout, stderr io.Writer) int {
	complaints := log.New(stderr, "bench: ", 0)
	c, err := parseFlags(args, all)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return exitOK
	case err != nil:
		complaints.Printf("%v (-h shows examples)", err)
		return exitUsage
	case c.list:
		for _, e := range all {
			fmt.Fprintf(stdout, "%-10s %s\n", e.Name, e.What)
		}
		return exitOK
	}
	if err := c.prepare(); err != nil { // Now, lest it turns out ten minutes later.
		complaints.Print(err)
		return exitUsage
	}

	o := c.options
	machine := report.ThisMachine()
	found := report.Results{Date: time.Now().UTC().Truncate(time.Second), Command: strings.Join(append([]string{"go run ./bench"}, args...), " "), Machine: machine}
	o.Machine = machine
	o.Log = complaints
	fmt.Fprintln(stdout, machine)
	var failures []string
	for _, e := range c.experiments {
		r, err := e.Run(ctx, o)
		if ctx.Err() != nil {
			complaints.Print("interrupted, nothing written")
			return exitInterrupted
		}
		if err != nil { // The other experiments are worth their time.
			failures = append(failures, fmt.Sprintf("%s: %v", e.Name, err))
			complaints.Print(failures[len(failures)-1])
		}
		if len(r.Lines) == 0 {
			continue
		}
		fmt.Fprint(stdout, r.Tables())
		found.Reports = append(found.Reports, r)
	}
	fmt.Fprint(stdout, found.Goals())
	status := exitOK
	for _, f := range failures { // Once more, as they stand far above, between the tables.
		status = exitFailed
		complaints.Print(f)
	}
	if c.out == "" || len(found.Reports) == 0 {
		return status
	}
	names, err := found.Write(c.out)
	if err != nil {
		complaints.Printf("-out %q: %v", c.out, err)
		return exitFailed
	}
	fmt.Fprintf(stdout, "\nWritten to %s: %s.\n", c.out, strings.Join(names, ", "))
	return status
}

// prepare makes the folder of the results, and looks for the programs that experiments need.
func (c config) prepare() error {
	if c.out != "" {
		if err := makeWritable(c.out); err != nil {
			return fmt.Errorf("-out %q: %w", c.out, err)
		}
	}
	for _, e := range c.experiments {
		for _, program := range e.Needs {
			if _, err := exec.LookPath(program.Name); err != nil {
				return fmt.Errorf("%s: %s is missing (%s): %w", e.Name, program.Name, program.GetIt, err)
			}
		}
	}
	return nil
}

// makeWritable makes a folder, and tries whether a file can be made in it: the folder may be there already, and belong
// to another user.
func makeWritable(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(folder, ".try-*")
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}

// names returns the names of experiments, for people.
func names(all []run.Experiment) string {
	var names []string
	for _, e := range all {
		names = append(names, e.Name)
	}
	return strings.Join(names, ", ")
}

const (
	defaultOut = "docs/bench"
	mostRounds = 100
)

const usage = `bench: the shaper side by side with other Go limiters

Measures one experiment after another, each limiter in a process of its own, and
prints tables and how the goals of the project fare. It takes about 35 minutes,
and wants a machine that does nothing else meanwhile.

Flags:
  -quick           a taste of everything in some 90 s: fewer rounds, rates
                   and limiters
  -only NAME,...   measure these experiments only (-list names them)
  -rounds N        how often to measure what is compared (1 to 100; each
                   experiment knows how often by itself, mostly 3 or 5)
  -out FOLDER      where results.md, results.bench.txt and the pictures go; made
                   if missing, and what a run writes takes the place of what an
                   earlier one wrote, even with -quick or -only
                   (default "` + defaultOut + `"; "" writes nothing)
  -list            name the experiments and end
  -h               this text

results.bench.txt has each figure of each round as a benchmark line: benchstat
compares two of them.

Examples, after export GOWORK=$PWD/all.work:
  go run ./bench                            everything
  go run ./bench -quick -out ""             a first look
  go run ./bench -only spacing,busy -rounds 10
`

// A config has the values of the flags.
type config struct {
	options     run.Options
	experiments []run.Experiment
	out         string // folder to write to; "": none
	list        bool
}

// parseFlags reads the command line. An error names the flag and quotes its
// value; [flag.ErrHelp] means that the usage is wanted.
func parseFlags(args []string, all []run.Experiment) (config, error) {
	c := config{experiments: all}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(io.Discard) // The errors come back, and go out as one line.
	f.BoolVar(&c.options.Quick, "quick", false, "")
	f.BoolVar(&c.list, "list", false, "")
	f.StringVar(&c.out, "out", defaultOut, "")
	f.Func("only", "", func(text string) error { return c.choose(text, all) })
	f.Func("rounds", "", c.setRounds)
	if err := f.Parse(args); err != nil {
		return config{}, err
	}
	if f.NArg() > 0 {
		return config{}, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return c, nil
}

// choose keeps the experiments that text names, in the order in which they are measured.
func (c *config) choose(text string, all []run.Experiment) error {
	wanted := strings.Split(text, ",")
	for i, name := range wanted {
		wanted[i] = strings.TrimSpace(name)
		if !slices.ContainsFunc(all, func(e run.Experiment) bool { return e.Name == wanted[i] }) {
			return fmt.Errorf("no experiment is named %q; there are %s", wanted[i], names(all))
		}
	}
	c.experiments = slices.DeleteFunc(slices.Clone(all), func(e run.Experiment) bool { return !slices.Contains(wanted, e.Name) })
	return nil
}

func (c *config) setRounds(text string) (err error) {
	c.options.Rounds, err = strconv.Atoi(text)
	if err != nil || c.options.Rounds < 1 || c.options.Rounds > mostRounds {
		return fmt.Errorf("must be a whole number from 1 to %d", mostRounds)
	}
	return nil
}
