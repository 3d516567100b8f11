// Command bench measures the shaper, and a Group of one for each key, side by side
// with other Go limiters, in interleaved rounds within one run, each measurement in
// a process of its own. Its parts stand in parts.go; -list names them.
//
//	go run ./bench -h
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// The exit statuses of the program. A goal that is missed is not a failure: it
// stands in the table.
const (
	exitOK          = 0
	exitFailed      = 1   // a part could not be measured, or the results not be written
	exitUsage       = 2   // a flag that can't be followed; nothing was measured
	exitInterrupted = 130 // as a shell has it for a program ended by Ctrl-C
)

func main() {
	if kind := os.Getenv(cellVariable); kind != "" {
		// Ctrl-C on a terminal reaches the child too. Its parent ends it, and
		// then knows why it has ended.
		signal.Ignore(os.Interrupt)
		os.Exit(runCell(kind, os.Stdin, os.Stdout, os.Stderr))
	}
	ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, parts, os.Args[1:], os.Stdout, os.Stderr)
	release()
	os.Exit(status)
}

// run is the whole program but for its children. The end of ctx ends it at
// once.
func run(ctx context.Context, all []part, args []string, stdout, stderr io.Writer) int {
	complain := func(status int, err error) int {
		fmt.Fprintln(stderr, "bench:", err)
		return status
	}
	c, err := parseFlags(args, all)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return exitOK
	}
	if err != nil {
		return complain(exitUsage, fmt.Errorf("%w (-h shows examples)", err))
	}
	if c.list {
		fmt.Fprint(stdout, listed(all))
		return exitOK
	}
	if err := makeFolder(c.out); err != nil { // Now, lest it turns out ten minutes later.
		return complain(exitUsage, err)
	}

	s := newScreen(stdout, stderr)
	found := results{Date: time.Now().UTC().Truncate(time.Second), Command: c.command(), Machine: thisMachine()}
	s.print("%s\n", found.Machine)
	for _, p := range c.parts {
		if p.needs == nil {
			continue
		}
		o := c.options
		o.say = s.sayer(p.name)
		if err := p.needs(o); err != nil {
			return complain(exitUsage, fmt.Errorf("%s: %w", p.name, err))
		}
	}
	status := exitOK
	for i, p := range c.parts {
		o := c.options
		o.say, o.later = s.sayer(fmt.Sprintf("%s (part %d of %d)", p.name, i+1, len(c.parts))), takes(c.parts[i+1:], o)
		o.say("begins")
		r, err := p.measure(ctx, o)
		switch {
		case ctx.Err() != nil:
			s.clear()
			return complain(exitInterrupted, errors.New("interrupted, nothing written"))
		case err != nil:
			s.clear()
			status = complain(exitFailed, fmt.Errorf("%s: %w", p.name, err))
			if len(r.Tables) == 0 {
				continue // The other parts are worth their time.
			}
		}
		for _, t := range r.Tables {
			s.print("\n%s", t.text())
		}
		found.Parts = append(found.Parts, partResult{p.name, r})
	}
	if goals := found.goals(); len(goals.Rows) > 0 {
		s.print("\n%s", goals.text())
	}
	s.clear()
	if c.out == "" || len(found.Parts) == 0 {
		return status
	}
	drawn, err := found.write(c.out)
	if err != nil {
		return complain(exitFailed, fmt.Errorf("-out %q: %w", c.out, err))
	}
	s.print("\nWritten to %s: results.json, results.md and %s.\n", c.out, counted(drawn, "picture"))
	return status
}

// takes is about how long parts take; those that don't say are not in it.
func takes(parts []part, o options) (d time.Duration) {
	for _, p := range parts {
		if p.takes != nil {
			d += p.takes(o)
		}
	}
	return d
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
