// Command shared shows several processes that share one rate. It starts redis-server and
// three processes that call through a shaper with the same bucket, draws when the calls of
// all of them leave, as one comb, and kills one of the processes on the way:
//
//	go run ./examples/shared
//
// worker.go is what a program needs to share a rate; all the rest starts processes and
// draws. -h shows the flags.
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

	"github.com/redis/go-redis/v9/logging"
)

// The exit statuses of the program.
const (
	exitFailed      = 1
	exitUsage       = 2   // a flag is wrong, or there is no redis-server
	exitInterrupted = 130 // what a shell reports for a program ended by Ctrl-C
)

func main() {
	if text := os.Getenv(taskVariable); text != "" {
		// Ctrl-C reaches all processes of a terminal. This one ends when its parent says so.
		signal.Ignore(os.Interrupt, syscall.SIGHUP)
		if err := work(text, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(exitFailed)
		}
		return
	}
	// Whatever ends this program, it must first end what it has started. So a closed pipe
	// behind the output is an error of a write here, not a signal that kills.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program but for the processes that share the rate. It returns the exit
// status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	logging.Disable() // What the client of Redis would log are errors that this program prints.
	c, err := parseFlags(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil {
		_, err = show(ctx, c, stdout)
	} else {
		err = &usageError{fmt.Errorf("%w (-h shows the flags)", err)}
	}
	switch _, wrong := errors.AsType[*usageError](err); {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "shared: interrupted")
		return exitInterrupted
	case wrong:
		fmt.Fprintf(stderr, "shared: %v\n", err)
		return exitUsage
	}
	fmt.Fprintf(stderr, "shared: %v\n", err)
	return exitFailed
}

// A usageError is something that the user has to do otherwise.
type usageError struct{ error }

// A config is what the flags set.
type config struct {
	rate      float64
	processes int
	callers   int
	length    time.Duration
	redis     string // "" to start a server
	noColour  bool
}

// parseFlags parses the command line. An error names the flag.
func parseFlags(args []string, help io.Writer) (c config, err error) {
	f := flag.NewFlagSet("shared", flag.ContinueOnError)
	f.SetOutput(io.Discard) // Errors are returned, and printed by run on one line.
	f.Float64Var(&c.rate, "rate", 20, "`departures` per second of all processes together, from 1 to 300")
	f.IntVar(&c.processes, "processes", 3, "how many `processes` share the rate, from 2 to 6")
	f.IntVar(&c.callers, "callers", 4, "`callers` in each process, of which each waits for its turn again and again, from 1 to 1000")
	f.DurationVar(&c.length, "for", 6*time.Second, "`time` to watch them, from 1s to 1m; one is killed half-way")
	f.StringVar(&c.redis, "redis", "", "`address` (host:port) of a server of Redis or Valkey that runs; without it one is started")
	f.BoolVar(&c.noColour, "no-color", false, "show letters instead of colours, as NO_COLOR and a pipe do")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(help, "shared: several processes share one rate, and one of them is killed\n\nFlags:")
			f.SetOutput(help)
			f.PrintDefaults()
		}
		return c, err
	}
	switch {
	case f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
	case !(c.rate >= 1 && c.rate <= 300): // so that NaN is wrong too
		err = fmt.Errorf("-rate %v: must be from 1 to 300", c.rate)
	case c.processes < 2 || c.processes > len(letters):
		err = fmt.Errorf("-processes %d: must be from 2 to %d", c.processes, len(letters))
	case c.callers < 1 || c.callers > 1000:
		err = fmt.Errorf("-callers %d: must be from 1 to 1000", c.callers)
	case c.length < time.Second || c.length > time.Minute:
		err = fmt.Errorf("-for %v: must be from 1s to 1m", c.length)
	}
	return c, err
}
