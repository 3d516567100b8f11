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
	// ErrQueueFull means that [Limits.Depth] requests wait already, or that Depth is 0
	// and the request can't leave at once (the level is too high, all seats are taken, or
	// the line is held), or the bucket is blocked after such a refusal ([WithBlock]).
	ErrQueueFull = errors.New("shaper: queue is full")

	// ErrTooLate means that the predicted wait is longer than [Limits.MaxWait], or
	// reaches the deadline of the context. In the second case [errors.Is] also reports
	// that the [*RejectError] is [context.DeadlineExceeded]. A request in line gets it when its
	// bound comes ([WithLineTimeout]).
	ErrTooLate = errors.New("shaper: would leave too late")

	// ErrTooCostly means that the request can never fit: its cost is above [Limits.Burst]
	// while [Limits.Depth] is 0, or it would hold the bucket for more than 365 days.
	ErrTooCostly = errors.New("shaper: costs more than can ever fit")

	// ErrClosed means that [Shaper.Close] or [Shaper.Shutdown] has been called.
	ErrClosed = errors.New("shaper: closed")

	// ErrUnavailable means that the [shared.Bucket] which holds the level can't be asked, and that
	// [shared.Options.Fallback] lets no request leave meanwhile: a newcomer is refused at once, and a
	// request in line when its patience ends ([shared.Options.Patience]); or that a call which asked for
	// itself ([Limits.Depth] 0, or [Shaper.AllowN]) got no answer before the fallback has
	// begun.
	// [RejectError.RetryAfter] is the time until the Bucket may be asked again.
	ErrUnavailable = errors.New("shaper: the shared bucket is unavailable")

	// A [*RejectError] is ErrNoLine beside [ErrQueueFull], if no request may wait:
	// Depth is 0, or the call was [Shaper.AllowN]. It is no [RejectError.Reason].
	ErrNoLine = errors.New("shaper: no request may wait")

	// A [*RejectError] is ErrBlocked beside [ErrQueueFull], if the bucket refuses all
	// newcomers for a time ([WithBlock]), from this request on or since an earlier one. It is
	// no [RejectError.Reason].
	ErrBlocked = errors.New("shaper: blocked")

	// ErrBody means that the body of a request could not be read although its client is there.
	// [Middleware] gives it to the function of [WithErrorHandler], and [WriteError] answers it with 408.
	ErrBody = serverconn.ErrBody

	// ErrNegativeCost is returned as it is, not in a [*RejectError]: a negative cost
	// is a mistake of the caller and not a refusal, so no counter counts it.
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
//   - "no-key", "no-limits": the key function or the limits function has failed, whatever its error wraps;
//   - "blocked" ([ErrBlocked]), "no-line" ([ErrNoLine]), and otherwise "queue-full" ([ErrQueueFull]);
//   - "too-late", "too-costly", "closed", "unavailable": the other reasons of a [RejectError];
//   - "no-body" ([ErrBody]), "negative-cost" ([ErrNegativeCost]);
//   - "gone" ([context.Canceled]), "deadline" ([context.DeadlineExceeded]), if it is no refusal;
//   - "": err is nil or something else.
//
// The counts of [Stats] and metrics have "blocked" and "no-line" among "queue-full".
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

// A RejectError is returned for a request that is refused. It says why, and when the
// same request would be admitted.
type RejectError struct {
	// Reason is exactly one of [ErrQueueFull], [ErrTooLate], [ErrTooCostly], [ErrClosed] and
	// [ErrUnavailable], so it can be compared, as in a switch. If there is more to say, such
	// as why the [shared.Bucket] can't be used, Error says it.
	Reason error

	// RetryAfter is the time after which the same call, with the same time
	// left to its deadline, would be admitted if those in line stay and no
	// other request comes. It is 0 if trying again does not help ([ErrTooCostly]). With
	// [ErrClosed] it is the time until the line is empty, and with [ErrUnavailable]
	// the time until the [shared.Bucket] may be asked again, which may fail again.
	//
	// In two cases it is an estimate. With [Limits.InFlight] it is unknown when requests end.
	// So, unless seats are free for this request and all ahead of it, RetryAfter is at least m/InFlight,
	// where m is the mean time for which requests have been in flight of late, and at least 1 ms.
	// With a [shared.Bucket] it supposes that this process goes on getting the share of the slots that
	// it has had of late. But where the Bucket itself has refused the call ([Limits.Depth]
	// 0, or [Shaper.AllowN]), it is the time until the Bucket admits it if no other process
	// takes anything.
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

// Is reports whether the error is target beside its Reason: [context.DeadlineExceeded],
// if the request was refused because it would have missed its context's deadline, [ErrNoLine],
// [ErrBlocked], or the cause that Error tells.
func (e *RejectError) Is(target error) bool {
	return e.also != nil && errors.Is(e.also.error, target)
}

// Timeout reports whether the request was refused because it would have missed its
// context's deadline: it is true exactly if the error is [context.DeadlineExceeded] too.
// A request that would only have waited longer than [Limits.MaxWait] did not time out.
//
// [net/url.Error], [os.IsTimeout] and [net.Error] ask this method. So they report the
// Timeout of an http.Client that a [Transport] foresees as they report one that has
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
