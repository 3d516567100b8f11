// Command shapedemo shows what a leaky-bucket traffic shaper is for: requests
// arrive in a burst and leave evenly spaced.
//
// It starts a fragile upstream server, which answers 503 when it gets more
// requests than it has workers, and a reverse proxy with the shaper's
// middleware in front of it. It sends the same burst to both and draws when
// the requests reached the upstream. Then the proxy keeps serving until
// Ctrl-C. The requests that are waiting at that moment are still served. Meanwhile
// a page shows the line in a browser, with buttons that send more bursts.
//
// With -outbound it shows the other direction: many callers of an API that does
// not tolerate bursts, without and with a shaper.Transport.
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
	exitFailed      = 1   // an error, or the demonstration did not show what it should
	exitUsage       = 2   // a flag is wrong; nothing was started
	exitInterrupted = 130 // what a shell reports for a program ended by Ctrl-C
)

func main() {
	// Room for the two signals that have a meaning: the first drains, the second
	// stops at once. Any further signal may be dropped.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	// If SIGPIPE were not ignored, a closed pipe behind stdout would kill the
	// program and with it all waiting requests. The terminal gets the write's
	// error instead, and ends the program in order.
	signal.Ignore(syscall.SIGPIPE)
	os.Exit(run(signals, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program and returns its exit status. The first signal ends
// it in order, the second one at once.
func run(signals <-chan os.Signal, args []string, stdout, stderr io.Writer) int {
	c, err := parseFlags(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return exitOK
	}
	if err != nil {
		return printError(stderr, exitUsage, fmt.Errorf("%w (-h shows examples)", err))
	}
	front, err := listenFront(c)
	if err != nil {
		return printError(stderr, exitUsage, err)
	}
	defer front.close()

	stop := watchSignals(signals)
	defer stop.release()
	t := newTerminal(stdout, stop.fail)
	status, err := runDemo(stop, t, c, front)
	switch {
	case stop.failure() != nil: // The output could not be written.
		return printError(stderr, exitFailed, stop.failure())
	case errors.Is(err, context.Canceled):
		return printError(stderr, exitInterrupted, errors.New("interrupted"))
	case err != nil:
		return printError(stderr, exitFailed, err)
	}
	return status
}

// runDemo shows the burst, if it has an upstream of its own to send it to, and
// then serves, unless -once is set. With -outbound it shows the callers instead.
func runDemo(stop *interrupts, t *terminal, c config, front *frontListener) (status int, err error) {
	if c.outbound {
		return showOutbound(stop, t, c)
	}
	target := c.upstream
	var own *fragileUpstream
	if target == nil {
		f, err := startFragileUpstream(capacityFor(newLimitsInfo(c.limits), c.burst))
		if err != nil {
			return exitFailed, err
		}
		defer f.close()
		own, target = f, f.url
		if c.burst > 0 {
			if status, err = showBurst(stop.graceful, t, c, f); err != nil || c.once {
				return status, err
			}
		}
	}
	return serve(stop, t, c, front, target, own)
}

// printError prints err on one line, and returns the exit status.
func printError(stderr io.Writer, status int, err error) int {
	text := strings.Join(strings.Fields(err.Error()), " ")
	fmt.Fprintf(stderr, "shapedemo: %s\n", text)
	return status
}
