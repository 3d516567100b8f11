package shaper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/leakybucket/shaper/internal/serverconn"
)

// The reasons for which a request is refused. [Shaper.WaitN] wraps the first five in a
// [*RejectError], through which [errors.Is] finds them.
var (
	// ErrQueueFull means that Depth requests wait already, that Depth is 0 and the request can't leave at once, or that the
	// bucket is blocked ([WithBlock]).
	ErrQueueFull = errors.New("shaper: queue is full")

	// ErrTooLate means that the predicted wait is longer than MaxWait, or reaches the deadline of the context (then the error
	// is [context.DeadlineExceeded], too), or that a request in line has come to its bound ([WithLineTimeout]).
	ErrTooLate = errors.New("shaper: would leave too late")

	// ErrTooCostly means that the request can never fit: its cost is above Burst while Depth is 0, or it would hold the
	// bucket for more than 365 days.
	ErrTooCostly = errors.New("shaper: costs more than can ever fit")

	// ErrClosed means that Close or Shutdown has been called.
	ErrClosed = errors.New("shaper: closed")
	// ErrUnavailable means that the [shared.Bucket] can't be asked, and its [shared.Options] let no request leave meanwhile.
	ErrUnavailable = errors.New("shaper: the shared bucket is unavailable")
	// A [*RejectError] is ErrNoLine beside ErrQueueFull if no request may wait: Depth is 0, or the call was AllowN. It is
	// ErrBlocked if the bucket refuses all newcomers for a time. Neither is a [RejectError.Reason].
	ErrNoLine  = errors.New("shaper: no request may wait")
	ErrBlocked = errors.New("shaper: blocked")

	// ErrBody means that the body of a request could not be read although its client is there. [Middleware] answers with 408.
	ErrBody = serverconn.ErrBody
	// ErrNegativeCost is returned bare: a negative cost is a mistake of the caller, which no counter counts.
	ErrNegativeCost = errors.New("shaper: cost is negative")
)

// errWaitedTooLong is for a request that was in line until its bound ([WithLineTimeout]).
var errWaitedTooLong = errors.New("the request has waited too long")

// A reason is why a request is refused, as an index of the counters.
type reason uint8

const (
	notRefused reason = iota
	refusedFull
	refusedLate
	refusedCostly
	refusedClosed
	refusedUnavailable
	reasons // how many there are
)

// refusals counts refusals by reason. There is no counter for notRefused, which keeps
// cold within 96 bytes.
type refusals [reasons - 1]uint64

func (r *refusals) count(why reason) { r[why-1]++ }

func (r *refusals) of(why reason) uint64 { return r[why-1] }

// reasonErrors has the Reason of a [RejectError] for each reason.
var reasonErrors = [reasons]error{
	refusedFull:        ErrQueueFull,
	refusedLate:        ErrTooLate,
	refusedCostly:      ErrTooCostly,
	refusedClosed:      ErrClosed,
	refusedUnavailable: ErrUnavailable,
}

// A limitsError is the failure of the function that returns the [Limits] of a key.
type limitsError struct{ err error }

func (e *limitsError) Error() string { return fmt.Sprintf("shaper: limits of a key: %v", e.err) }
func (e *limitsError) Unwrap() error { return e.err }

// A keyError is the failure of the function that returns the key of a request.
type keyError struct{ err error }

func (e *keyError) Error() string { return fmt.Sprintf("shaper: key of a request: %v", e.err) }
func (e *keyError) Unwrap() error { return e.err }

// isOwnFault reports whether an error comes from one of the program's own functions for
// keys and limits, whatever error it wraps.
func isOwnFault(err error) bool {
	if _, ok := errors.AsType[*limitsError](err); ok {
		return true
	}
	_, ok := errors.AsType[*keyError](err)
	return ok
}

// Reason returns why a request was not admitted, in the finest word that says it:
//
//   - "blocked" ([ErrBlocked]), "no-line" ([ErrNoLine]), "queue-full", "too-late", "too-costly", "closed",
//     "unavailable": the reasons of a [RejectError], whose counts have the first two among "queue-full";
//   - "no-key", "no-limits": the key function or the limits function has failed, whatever its error wraps;
//   - "no-body" ([ErrBody]), "negative-cost", "gone" ([context.Canceled]), "deadline"
//     ([context.DeadlineExceeded]);
//   - "": err is nil or something else.
func Reason(err error) string {
	if err == nil {
		return ""
	}
	if isOwnFault(err) {
		if _, ok := errors.AsType[*keyError](err); ok {
			return "no-key"
		}
		return "no-limits"
	}
	if refusal, ok := errors.AsType[*RejectError](err); ok {
		switch refusal.also {
		case byBlock:
			return "blocked"
		case withoutLine:
			return "no-line"
		}
		err = refusal.Reason // It may be more, such as the error of a Bucket that it tells.
	}
	for _, known := range reasonWords {
		if errors.Is(err, known.error) {
			return known.word
		}
	}
	return ""
}

// reasonWords has the word of each error, the finer one first. If an error is several, a refusal counts.
var reasonWords = []struct {
	error error
	word  string
}{
	{ErrBlocked, "blocked"}, {ErrNoLine, "no-line"}, {ErrQueueFull, "queue-full"}, {ErrTooLate, "too-late"},
	{ErrTooCostly, "too-costly"}, {ErrUnavailable, "unavailable"}, {ErrClosed, "closed"}, {ErrBody, "no-body"},
	{ErrNegativeCost, "negative-cost"}, {context.Canceled, "gone"}, {context.DeadlineExceeded, "deadline"},
}

// A RejectError is returned for a request that is refused. It says why, and when the same request would be admitted.
type RejectError struct {
	// Reason is exactly one of [ErrQueueFull], [ErrTooLate], [ErrTooCostly], [ErrClosed] and [ErrUnavailable], so it can be
	// compared, as in a switch. If there is more to say, such as why a Bucket can't be used, Error says it.
	Reason error

	// RetryAfter is the time after which the same call, with the same time left to its deadline, would be admitted if those
	// in line stay and no other request comes; 0 if trying again does not help (ErrTooCostly). With ErrClosed it is the time
	// until the line is empty, and with ErrUnavailable until the Bucket may be asked again. It is an estimate where
	// [Limits.InFlight] says so, and with a [shared.Bucket], except that of a call which the Bucket itself has refused.
	RetryAfter time.Duration

	also *alsoError // a second error that the error is, beside Reason; nil: none
}

// An alsoError is the second error that a [RejectError] is. It has no more than a pointer's
// size there, as most refusals have none.
type alsoError struct {
	error
	isCause bool // it says why, so it is a part of the text
}

// What a [RejectError] may be beside its Reason, whatever the request was.
var (
	missedDeadline = &alsoError{error: context.DeadlineExceeded} // for a request that would have missed its context's deadline
	withoutLine    = &alsoError{error: ErrNoLine}
	byBlock        = &alsoError{error: ErrBlocked}
	waitedTooLong  = &alsoError{errWaitedTooLong, true}
)

// Error returns the reason and, if trying again helps, after how long to do so.
func (e *RejectError) Error() string {
	if e.Reason == nil || e.RetryAfter <= 0 {
		return e.why()
	}
	return fmt.Sprintf("%s (retry after %v)", e.why(), e.RetryAfter)
}

// why returns the reason with its cause, if there is one.
func (e *RejectError) why() string {
	switch {
	case e.Reason == nil: // Made by hand.
		return "shaper: refused"
	case e.also != nil && e.also.isCause:
		return e.Reason.Error() + ": " + e.also.Error()
	}
	return e.Reason.Error()
}

// Unwrap returns Reason.
func (e *RejectError) Unwrap() error { return e.Reason }

// Is reports whether the error is target beside its Reason: [context.DeadlineExceeded], [ErrNoLine], [ErrBlocked],
// or the cause that Error tells.
func (e *RejectError) Is(target error) bool {
	return e.also != nil && errors.Is(e.also.error, target)
}

// Timeout reports whether the error is [context.DeadlineExceeded], too. [net/url.Error], [os.IsTimeout] and
// [net.Error] ask it, so they report the Timeout of an http.Client that a [Transport] foresees as one that has
// passed.
func (e *RejectError) Timeout() bool { return e.also == missedDeadline }

// A rejection is the content of a [RejectError], as a value: a request that is not refused in
// the end allocates nothing.
type rejection struct {
	reason     reason
	retryAfter time.Duration
	also       *alsoError // a second error that the error is; nil: none
}

func (r rejection) value() RejectError {
	return RejectError{Reason: reasonErrors[r.reason], RetryAfter: r.retryAfter, also: r.also}
}
