package shaper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A Verdict is what a dry run (WithDryRun) says of a request that it let through:
// what would have become of it.
type Verdict struct {
	// Wait is how long it would have waited; 0: it would have left at once.
	Wait time.Duration
	// Err is with what it would have been refused: a *RejectError, or in a Group
	// the error of its key or of its Limits. nil: it would not have been refused.
	Err error
}

// String is the verdict as the header field of WithVerdictHeader has it: "leave",
// "wait;seconds=1.300", or "refuse;reason=queue-full". The reasons are queue-full,
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

func (v Verdict) reason() string {
	if _, ok := errors.AsType[*keyError](v.Err); ok {
		return "no-key"
	}
	switch {
	case isOwnFault(v.Err): // Whatever is in it.
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

// harsher says whether the request would have been worse off by v than by w.
func (v Verdict) harsher(w Verdict) bool {
	if (v.Err != nil) != (w.Err != nil) {
		return v.Err != nil
	}
	return v.Wait > w.Wait
}

// ContextWithVerdict returns a context in which a dry run leaves its verdict on a
// call that gets the context; VerdictOf reads it afterwards. Middleware sees to it
// itself, for the handler behind it; an outer handler that wants to know hands such
// a context in.
func ContextWithVerdict(ctx context.Context) context.Context {
	return context.WithValue(ctx, verdictKey{}, new(verdicts))
}

// VerdictOf is what a dry run has said of the request with that context: of
// several, as in a Chain or of one Middleware behind another, the harshest. ok is
// false if none has.
func VerdictOf(ctx context.Context) (v Verdict, ok bool) {
	all, ok := ctx.Value(verdictKey{}).(*verdicts)
	if !ok {
		return v, false
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.harshest, all.any
}

// wantsVerdict says whether a dry run's verdict can be left in a context.
func wantsVerdict(ctx context.Context) bool {
	_, ok := ctx.Value(verdictKey{}).(*verdicts)
	return ok
}

type verdictKey struct{}

// verdicts are what dry runs say of one request.
type verdicts struct {
	mu       sync.Mutex
	harshest Verdict
	any      bool
}

// leaveVerdict notes a verdict where the caller of a request wants it.
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
