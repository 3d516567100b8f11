// Command bench measures the shaper, and a Group of one for each key, side by side
// with other Go limiters, and Caddy with the shaper beside other proxies, in interleaved
// rounds within one run, each measurement in a process of its own. -list names its
// experiments.
//
//	GOWORK=$PWD/all.work go run ./bench -h
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// The exit statuses of the program. A goal that is missed is not a failure: it
// stands in the table.
const (
	exitOK          = 0
	exitFailed      = 1   // something could not be measured, or the results not be written
	exitUsage       = 2   // a flag that can't be followed; nothing was measured
	exitInterrupted = 130 // as a shell has it for a program ended by Ctrl-C
)

func main() {
	run.Child()
	// Whatever asks this program to end, even if nothing reads what it prints:
	// proxies must not stay behind.
	ctx, release := signal.NotifyContext(context.Background(), endings...)
	status := measureAll(ctx, experiments(), os.Args[1:], os.Stdout, os.Stderr)
	release()
	os.Exit(status)
}

// measureAll is the whole program but for its children. It returns the exit
// status. The end of ctx ends it at once.
func measureAll(ctx context.Context, all []run.Experiment, args []string, stdout, stderr io.Writer) int {
	c, err := parseFlags(args, all)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "bench: %v (-h shows examples)\n", err)
		return exitUsage
	case c.list:
		fmt.Fprint(stdout, listed(all))
		return exitOK
	}
	if err := makeFolder(c.out); err != nil { // Now, lest it turns out ten minutes later.
		fmt.Fprintln(stderr, "bench:", err)
		return exitUsage
	}

	o := c.options
	machine := report.ThisMachine()
	found := report.Results{Date: time.Now().UTC().Truncate(time.Second), Command: c.command(), Machine: machine}
	o.Machine = machine.String()
	o.Progress = run.NewProgress(stdout, stderr, estimate(c.experiments, o))
	o.Progress.Printf("%s\n", machine)
	for _, e := range c.experiments {
		if e.Needs == nil {
			continue
		}
		o.Progress.Begin(e.Name, 0)
		if err := e.Needs(o); err != nil {
			o.Progress.Errorf("bench: %s: %v", e.Name, err)
			return exitUsage
		}
	}
	var failures []string
	for i, e := range c.experiments {
		o.Progress.Begin(fmt.Sprintf("%s (%d of %d)", e.Name, i+1, len(c.experiments)), estimate(c.experiments[:i], o))
		o.Progress.Logf("begins")
		r, err := e.Measure(ctx, o)
		switch {
		case ctx.Err() != nil:
			o.Progress.Errorf("bench: interrupted, nothing written")
			return exitInterrupted
		case err != nil:
			failures = append(failures, fmt.Sprintf("bench: %s: %v", e.Name, err))
			o.Progress.Errorf("%s", failures[len(failures)-1])
			if len(r.Tables) == 0 {
				continue // The other experiments are worth their time.
			}
		}
		for _, t := range r.Tables {
			o.Progress.Printf("\n%s", t.Markdown())
		}
		r.Name, r.What = e.Name, e.What
		found.Reports = append(found.Reports, r)
	}
	o.Progress.Printf("%s", found.Goals())
	status := exitOK
	for _, f := range failures { // Once more, as they stand far above, between the tables.
		status = exitFailed
		o.Progress.Errorf("%s", f)
	}
	if c.out == "" || len(found.Reports) == 0 {
		return status
	}
	names, err := found.Write(c.out)
	if err != nil {
		o.Progress.Errorf("bench: -out %q: %v", c.out, err)
		return exitFailed
	}
	o.Progress.Printf("\nWritten to %s: %s.\n", c.out, strings.Join(names, ", "))
	return status
}

func makeFolder(name string) error {
	if name == "" {
		return nil
	}
	if err := os.MkdirAll(name, 0o755); err != nil {
		return fmt.Errorf("-out %q: %w", name, err)
	}
	return nil
}
