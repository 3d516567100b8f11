package shaper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A Verdict says what would have become of a request that a dry run ([WithDryRun]) let
// through.
type Verdict struct {
	// Wait is how long the request would have waited. 0 means that it would have left at
	// once, or been refused.
	Wait time.Duration
	// Err is the error with which the request would have been refused: a [*RejectError],
	// or in a [Group] the error of its key function or of its limits function. nil means
	// that the request would have been admitted.
	Err error
}

// String returns the value of the header field of [WithVerdictHeader]: "leave", or for
// example "wait;seconds=1.300" or "refuse;reason=queue-full". The reasons are queue-full,
// too-late, too-costly, closed, no-key, and no-limits.
func (v Verdict) String() string {
	switch {
	case v.Err != nil:
		return "refuse;reason=" + v.reason()
	case v.Wait > 0:
		return fmt.Sprintf("wait;seconds=%.3f", v.Wait.Seconds())
	}
	return "leave"
}

// reason returns why the request would have been refused, in one word.
func (v Verdict) reason() string {
	if _, ok := errors.AsType[*keyError](v.Err); ok {
		return "no-key"
	}
	switch {
	case isOwnFault(v.Err): // Even if the limits function's error wraps one of those below.
	case errors.Is(v.Err, ErrQueueFull):
		return "queue-full"
	case errors.Is(v.Err, ErrTooLate):
		return "too-late"
	case errors.Is(v.Err, ErrTooCostly):
		return "too-costly"
	case errors.Is(v.Err, ErrClosed):
		return "closed"
	}
	return "no-limits"
}

// harsher reports whether v would have been worse for the request than w.
func (v Verdict) harsher(w Verdict) bool {
	if (v.Err != nil) != (w.Err != nil) {
		return v.Err != nil
	}
	return v.Wait > w.Wait
}

// ContextWithVerdict returns a context with room for a [Verdict]: a dry run ([WithDryRun])
// leaves its Verdict there on a call that is made with the context, and [VerdictOf] reads
// it afterwards. [Middleware] makes such a context for the handler behind it. A handler in
// front of the middleware that wants to read the Verdict must make the context itself.
func ContextWithVerdict(ctx context.Context) context.Context {
	return context.WithValue(ctx, verdictKey{}, new(verdicts))
}

// VerdictOf returns the [Verdict] that a dry run has left in a context. If several dry
// runs have left one, as in a [Chain] or with one [Middleware] behind another, it returns
// the harshest: a refusal, else the longest wait. ok reports whether there is a Verdict.
func VerdictOf(ctx context.Context) (v Verdict, ok bool) {
	all, ok := ctx.Value(verdictKey{}).(*verdicts)
	if !ok {
		return v, false
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.harshest, all.any
}

// wantsVerdict reports whether a context has room for a verdict.
func wantsVerdict(ctx context.Context) bool {
	_, ok := ctx.Value(verdictKey{}).(*verdicts)
	return ok
}

type verdictKey struct{}

// verdicts holds the harshest of the verdicts of dry runs on one request.
type verdicts struct {
	mu sync.Mutex

	// The lock guards these.
	harshest Verdict
	any      bool // there is a verdict
}

// leaveVerdict leaves a verdict in the context of a request, if there is room for one.
func leaveVerdict(ctx context.Context, v Verdict) {
	all, ok := ctx.Value(verdictKey{}).(*verdicts)
	if !ok {
		return
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if !all.any || v.harsher(all.harshest) {
		all.harshest, all.any = v, true
	}
}
