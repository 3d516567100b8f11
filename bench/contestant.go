package main

import (
	"context"
	"time"
)

// A contestant makes callers wait. Its adapters stand in contestants.go, each
// in the best use that its documentation shows.
type contestant struct {
	name string
	// open makes one for perSecond departures and up to so many callers that
	// wait at once. wait blocks until its caller may leave; stop frees it.
	open func(perSecond float64, waiting int) (wait func(context.Context) error, stop func())
	// traced is open with a function to call, on any goroutine, with the
	// instant at which each slot was handed out. nil: nobody outside can know.
	traced func(perSecond float64, waiting int, slot func(time.Time)) (wait func(context.Context) error, stop func())
	// lined is open with a function that tells how many are in the line. nil:
	// nobody outside can know.
	lined func(perSecond float64, waiting int) (wait func(context.Context) error, inLine func() int, stop func())
}
