package shaper

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Reasons for which a request is refused. WaitN wraps the first four in a
// *RejectError, through which errors.Is sees them.
var (
	// ErrQueueFull says that Depth requests wait already, or that Depth is 0
	// and the level is too high.
	ErrQueueFull = errors.New("shaper: queue is full")

	// ErrTooLate says that the predicted wait exceeds MaxWait, or reaches the
	// deadline of the context. In the second case the *RejectError is
	// context.DeadlineExceeded too.
	ErrTooLate = errors.New("shaper: would leave too late")

	// ErrTooCostly says that the request can never fit: with Depth 0 its cost
	// is above Burst, or it would hold the bucket for more than 365 days.
	ErrTooCostly = errors.New("shaper: costs more than can ever fit")

	// ErrClosed says that Close or Shutdown has been called.
	ErrClosed = errors.New("shaper: closed")

	// ErrNegativeCost is returned bare: a negative cost is a mistake of the
	// caller's and no refusal, so it is counted nowhere.
	ErrNegativeCost = errors.New("shaper: cost is negative")
)

// reason says why a request is refused, as a number under which it is counted.
type reason uint8

const (
	notRefused reason = iota
	refusedFull
	refusedLate
	refusedCostly
	refusedClosed
	reasons // how many there are
)

// reasonErrors are the RejectErrors' Reasons.
var reasonErrors = [reasons]error{
	refusedFull:   ErrQueueFull,
	refusedLate:   ErrTooLate,
	refusedCostly: ErrTooCostly,
	refusedClosed: ErrClosed,
}

// A limitsError says that the Limits of a key can't be had.
type limitsError struct{ err error }

func (e *limitsError) Error() string { return fmt.Sprintf("shaper: limits of a key: %v", e.err) }
func (e *limitsError) Unwrap() error { return e.err }

// A keyError says that the key of a request can't be had.
type keyError struct{ err error }

func (e *keyError) Error() string { return fmt.Sprintf("shaper: key of a request: %v", e.err) }
func (e *keyError) Unwrap() error { return e.err }

// isOwnFault says whether an error is one of the program's, whatever is in it.
func isOwnFault(err error) bool {
	if _, ok := errors.AsType[*limitsError](err); ok {
		return true
	}
	_, ok := errors.AsType[*keyError](err)
	return ok
}

// A RejectError is returned to a request that is refused. It says why, and
// when the same request would be admitted.
type RejectError struct {
	// Reason is ErrQueueFull, ErrTooLate, ErrTooCostly or ErrClosed.
	Reason error

	// RetryAfter is the time after which the same call, with the same time
	// left to its deadline, would be admitted if those in line stay and nobody
	// else comes. It is 0 if trying again does not help (ErrTooCostly). With
	// ErrClosed it is the time until the line is empty. While all of
	// [Limits.InFlight] are taken it is an estimate, as nobody knows when requests
	// end: at least the mean time for which they have been in flight of late,
	// divided by InFlight, and at least 1 ms.
	RetryAfter time.Duration

	deadline bool // the context's deadline is what it would have missed
}

// Error says why the request was refused and, where it helps to come back,
// after how long.
func (e *RejectError) Error() string {
	if e.Reason == nil { // Made by hand.
		return "shaper: refused"
	}
	if e.RetryAfter <= 0 {
		return e.Reason.Error()
	}
	return fmt.Sprintf("%v (retry after %v)", e.Reason, e.RetryAfter)
}

// Unwrap returns Reason.
func (e *RejectError) Unwrap() error { return e.Reason }

// Is reports that a request which would have missed its context's deadline is
// context.DeadlineExceeded too, beside ErrTooLate.
func (e *RejectError) Is(target error) bool {
	return e.deadline && target == context.DeadlineExceeded
}
