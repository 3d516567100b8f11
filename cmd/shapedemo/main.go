// Command shapedemo shows a leaky-bucket traffic shaper at its work: requests arrive in a
// burst and leave evenly spaced.
//
// It starts a fragile upstream server, which answers 503 when it gets more
// requests than it has workers, and a reverse proxy with the shaper's
// middleware in front of it. It sends the same burst to both and draws when
// the requests reached the upstream. Then a proxy keeps serving until
// Ctrl-C. The requests that are waiting at that moment are still served. Meanwhile
// a page shows the line in a browser, with buttons that send more bursts.
//
// With -outbound it shows the other direction: many callers of an API that does
// not tolerate bursts, without and with a shaper.Transport. With -tokens it shows calls that
// reserve more than they take, of an API that counts tokens. With -fair it shows a burst of one
// client beside calls of ten others, in one line and with fair queueing.
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
	status := exitOK
	if c.shows() {
		status, err = c.scene.show(stop.graceful, t, c)
	}
	if err == nil && c.serves() {
		status, err = serve(stop, t, c, front)
	}
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

// printError prints err on one line, and returns the exit status.
func printError(stderr io.Writer, status int, err error) int {
	text := strings.Join(strings.Fields(err.Error()), " ")
	fmt.Fprintf(stderr, "shapedemo: %s\n", text)
	return status
}

// interrupts turns signals into two contexts. When graceful is done, the
// program is to end in order; when immediate is done, at once.
type interrupts struct {
	graceful, immediate context.Context
	fail                context.CancelCauseFunc // cancels graceful because of an error

	released, stopped chan struct{} // closed to end the goroutine, and when it has ended
}

// watchSignals listens to signals until release is called.
func watchSignals(signals <-chan os.Signal) *interrupts {
	i := &interrupts{released: make(chan struct{}), stopped: make(chan struct{})}
	i.graceful, i.fail = context.WithCancelCause(context.Background())
	immediate, end := context.WithCancelCause(context.Background())
	i.immediate = immediate
	go func() {
		defer close(i.stopped)
		defer end(nil)
		for _, cancel := range []context.CancelCauseFunc{i.fail, end} {
			select {
			case <-signals:
				cancel(nil)
			case <-i.released:
				return
			}
		}
		<-i.released
	}()
	return i
}

// failure returns the error that was passed to fail, or nil.
func (i *interrupts) failure() error {
	if cause := context.Cause(i.graceful); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// release stops listening and waits until the goroutine has ended.
func (i *interrupts) release() {
	close(i.released)
	<-i.stopped
	i.fail(nil)
}
