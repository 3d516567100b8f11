package main

import (
	"context"
	"errors"
	"os"
)

// interrupts turns signals into two contexts. When graceful is done, the
// program is to end in order; when immediate is done, at once.
type interrupts struct {
	graceful, immediate context.Context
	fail                context.CancelCauseFunc // cancels graceful because of an error

	stop, stopped chan struct{} // closed to end the goroutine, and when it has ended
}

// watchSignals listens to signals until release is called.
func watchSignals(signals <-chan os.Signal) *interrupts {
	i := &interrupts{stop: make(chan struct{}), stopped: make(chan struct{})}
	i.graceful, i.fail = context.WithCancelCause(context.Background())
	immediate, cancelImmediate := context.WithCancel(context.Background())
	i.immediate = immediate
	go func() {
		defer close(i.stopped)
		defer cancelImmediate()
		select {
		case <-signals:
			i.fail(nil)
		case <-i.graceful.Done(): // Because of an error: the next signal counts as the second.
		case <-i.stop:
			return
		}
		select {
		case <-signals:
			cancelImmediate()
		case <-i.stop:
			return
		}
		<-i.stop
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
	close(i.stop)
	<-i.stopped
	i.fail(nil)
}
