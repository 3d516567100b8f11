package main

import (
	"context"
	"errors"
	"os"
)

// interrupts turns signals into two contexts. The end of first asks the
// program to end gently, that of second to end at once.
type interrupts struct {
	first, second context.Context
	now           context.CancelCauseFunc // ends first because of an error

	done, gone chan struct{}
}

// watch listens to signals until release.
func watch(signals <-chan os.Signal) *interrupts {
	i := &interrupts{done: make(chan struct{}), gone: make(chan struct{})}
	i.first, i.now = context.WithCancelCause(context.Background())
	second, endSecond := context.WithCancel(context.Background())
	i.second = second
	go func() {
		defer close(i.gone)
		defer endSecond()
		select {
		case <-signals:
			i.now(nil)
		case <-i.first.Done(): // By an error: a signal is then the second.
		case <-i.done:
			return
		}
		select {
		case <-signals:
			endSecond()
		case <-i.done:
			return
		}
		<-i.done
	}()
	return i
}

// because returns the error that ended the program, if one did.
func (i *interrupts) because() error {
	if cause := context.Cause(i.first); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// release stops listening.
func (i *interrupts) release() {
	close(i.done)
	<-i.gone
	i.now(nil)
}
