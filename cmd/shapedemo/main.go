// Command shapedemo shows what a leaky-bucket traffic shaper is for: a ragged
// burst goes in, an even comb comes out.
//
// It starts a fragile upstream, which answers 503 when more press in than it
// has workers, and a reverse proxy with the shaper's middleware in front of
// it. It fires the same burst at both, draws what the upstream saw of each,
// and then goes on serving until Ctrl-C, which lets the line leave first.
//
// With -outbound it shows the other direction: many callers of an API that bears
// no bursts, with a shaper.Transport and without.
//
//	go run ./cmd/shapedemo -h
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
	"syscall"
)

// The exit statuses of the program.
const (
	exitOK          = 0
	exitFailed      = 1   // the demonstration, or something in it, went wrong
	exitUsage       = 2   // a flag that can't be followed; nothing was started
	exitInterrupted = 130 // as a shell has it for a program ended by Ctrl-C
)

func main() {
	// Room for the two that mean something, drain and stop at once: more than
	// two may be dropped.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	// Unless ignored, a closed pipe behind stdout would kill the program, and
	// with it everyone who waits in the line. The terminal sees the error.
	signal.Ignore(syscall.SIGPIPE)
	os.Exit(run(signals, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program. The first of signals ends it gently, the second at
// once.
func run(signals <-chan os.Signal, args []string, stdout, stderr io.Writer) int {
	c, err := parseFlags(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return exitOK
	}
	if err != nil {
		return complain(stderr, exitUsage, fmt.Errorf("%w (-h shows examples)", err))
	}
	front, err := newDoor(c)
	if err != nil {
		return complain(stderr, exitUsage, err)
	}
	defer front.close()

	stop := watch(signals)
	defer stop.release()
	t := newTerminal(stdout, stop.now)
	status, err := present(stop, t, c, front)
	switch {
	case stop.because() != nil: // Nobody reads what the program says.
		return complain(stderr, exitFailed, stop.because())
	case errors.Is(err, context.Canceled):
		return complain(stderr, exitInterrupted, errors.New("interrupted"))
	case err != nil:
		return complain(stderr, exitFailed, err)
	}
	return status
}

// present shows the burst, if there is an upstream of our own to fire it at,
// and then serves, unless it was to be shown once. Or it shows what is outbound.
func present(stop *interrupts, t *terminal, c config, front *door) (status int, err error) {
	if c.outbound {
		return showOutbound(stop, t, c)
	}
	target := c.upstream
	if target == nil {
		f, err := startFragile(sizeOf(meaningOf(c.limits), c.burst))
		if err != nil {
			return exitFailed, err
		}
		defer f.close()
		target = f.url
		if c.burst > 0 {
			if status, err = showBurst(stop.first, t, c, f); err != nil || c.once {
				return status, err
			}
		}
	}
	return serve(stop, t, c, front, target)
}

// complain says on one line what is wrong, and returns the exit status.
func complain(stderr io.Writer, status int, err error) int {
	text := strings.Join(strings.Fields(err.Error()), " ")
	fmt.Fprintf(stderr, "shapedemo: %s\n", text)
	return status
}
