package shaper

import (
	"context"
	"fmt"
	"sync"
)

type dryRunOption struct{}

func (dryRunOption) apply(to *options) { to.dryRun = true }

// WithDryRun lets every request through at once, and records the decision upon it, so that limits can be tried on
// live traffic before they are enforced. Meanwhile a shadow of the line is kept, exactly as the line would be if
// each request that had to wait did so to the end. It decides the [Verdict], which goes to [Event.Verdict] of the
// hook Departed, the only one that runs; to [Stats], which describe the shadow, as Forecast does; and to a context
// made by [ContextWithVerdict], which [Middleware] makes by itself.
//
// [Limits.InFlight] is not part of the shadow, as it is unknown when a request would have ended, and a retry of a
// [Transport] is a newcomer. The shadow takes 70 bytes for each request that would wait, and [Shaper.Shutdown] does
// not wait for it. To try new limits beside those in force, put both into a [Chain], the dry run first.
func WithDryRun() Option { return common{dryRunOption{}} }

// A dryRun is the gate of a dry run. What the engine decides, as if the request could wait, it notes in the
// shadow of the line; the dryRun makes it the verdict, and lets the request through. behind is the gate that the
// shadow has; nil: none.
type dryRun struct{ behind gate }

func (g dryRun) judge(f *flow, now int64, why rejection) rejection {
	if g.behind == nil {
		return why
	}
	return g.behind.judge(f, now, why)
}

func (g dryRun) refused(f *flow, now int64, why reason) {
	if g.behind != nil {
		g.behind.refused(f, now, why)
	}
}

func (g dryRun) keepOut(f *flow, until int64) {
	if g.behind != nil {
		g.behind.keepOut(f, until)
	}
}

func (dryRun) letsAllThrough() bool { return true }

func (dryRun) decided(dec decision, j judgement) (decision, *Verdict) {
	verdict := new(Verdict)
	switch {
	case dec.err != nil:
		verdict.Err = dec.err
	case dec.event == refusedEvent: // No error is made for a call that only learns whether it may leave.
		err := j.refusal.value()
		verdict.Err = &err
	default:
		verdict.Wait = j.wait
	}
	return decision{waiting: dec.waiting, event: verdictEvent}, verdict
}

// announce leaves the verdict in the context of the request, if there is room for one, and runs the hook.
func (dryRun) announce(ctx context.Context, trace Trace, ev Event) {
	leaveVerdict(ctx, *ev.Verdict)
	runHook(trace.Departed, ctx, ev)
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
	switch word := Reason(v.Err); word {
	case "blocked", "no-line":
		return "queue-full"
	case "":
		return "no-limits"
	default:
		return word
	}
}

// harsher reports whether v would have been worse for the request than w.
func (v Verdict) harsher(w Verdict) bool {
	if (v.Err != nil) != (w.Err != nil) {
		return v.Err != nil
	}
	return v.Wait > w.Wait
}

// ContextWithVerdict returns a context in which a dry run ([WithDryRun]) leaves its [Verdict] on a call that is made
// with it, for [VerdictOf]. [Middleware] makes one for the handler behind it; a handler in front of it must make the
// context itself.
func ContextWithVerdict(ctx context.Context) context.Context {
	return context.WithValue(ctx, verdictKey{}, new(verdicts))
}

// VerdictOf returns the [Verdict] that a dry run has left in a context; of several the harshest: a refusal, else the
// longest wait. ok reports whether there is one.
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
