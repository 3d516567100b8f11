package shaper

import (
	"context"
	"slices"
	"time"

	"example.com/leakybucket/shaper/internal/exact"
)

type dryRunOption struct{}

func (dryRunOption) apply(to *options) { to.dry = true }

// WithDryRun lets every request through at once, and keeps account of what would
// have become of it, so that a number can be tried on live traffic before it bites.
//
// A shadow of the line is kept exactly, as if all that would have waited did, to
// the end: WaitN, Acquire, Do and Allow return at once and without an error, but
// for a context that has ended and a negative cost. What would have been goes to
// Event.Verdict (of the hook Departed, the only one that is called), to Stats, whose
// totals and gauges are those of the shadow, and to whoever asks for it by
// ContextWithVerdict, as Middleware does. Forecast tells what the shadow says.
//
// Limits.InFlight is not part of the shadow, as nobody knows when a request would
// have ended that left later; and a retry of a Transport enters it as a newcomer. A
// dry run has no goroutine; Shutdown does not wait for the shadow.
//
// The shadow of a line takes 170 bytes for each who would wait, and fills up to Depth,
// as nobody in it gives up; the next call lets all leave it that would have left
// meanwhile. The function that says the Limits of a Group's keys is called in a dry
// run too, and takes its time.
//
// To let it stand beside a limit that holds, put both into a Chain, the dry run first:
// behind the other it would see only what that has let go.
func WithDryRun() Option { return common{dryRunOption{}} }

// rehearse lets a request of cost n > 0 through, and notes in the shadow of the
// line what would have become of it. It unlocks.
func (d *dispatcher) shadow(ctx context.Context, f *flow, now int64, n int, left time.Duration, depth int, key any) (v Verdict) {
	wait, r := d.judgeLocked(f, now, int64(n), left, depth)
	switch {
	case r.reason != notRefused:
		refusal := r.value()
		v.Err = &refusal
		d.countRefusalLocked(f, now, r.reason)
	case wait == 0:
		f.bucket.pass(now, int64(n))
		d.countDepartureLocked(f, now, 0)
	default:
		v.Wait = wait
		d.enqueueLocked(f, now, n, newcomer)
	}
	waiting := f.waiting()
	d.unlockAndArm()
	d.letThrough(ctx, Event{Name: d.name, Key: key, Cost: n, Waiting: waiting, At: d.timeOf(now), Verdict: &v})
	return v
}

// letThrough tells of a request of a dry run. The lock is not held.
func (d *dispatcher) letThrough(ctx context.Context, ev Event) {
	leaveVerdict(ctx, *ev.Verdict)
	runHook(d.trace.Departed, ctx, ev)
}

func (d *dispatcher) rehearses() bool { return d.dryRun }

// neverWaits says whether a Limiter is a dry run, or made of such only.
func neverWaits(l Limiter) bool {
	switch l := l.(type) {
	case *Shaper: // And no other that has one inside: its WaitN may be its own.
		return l.dryRun
	case interface{ neverWaits() bool }:
		return l.neverWaits()
	case chain:
		return !slices.ContainsFunc(l.links, func(l Limiter) bool { return !neverWaits(l) })
	}
	return false
}

// untilDeadline is the time left to an instant; forever if that is forever.
func untilDeadline(ends, now int64) time.Duration {
	if ends == exact.Forever {
		return exact.Forever
	}
	return time.Duration(max(0, exact.Sum(ends, -now)))
}
