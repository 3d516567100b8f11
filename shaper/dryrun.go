package shaper

import "context"

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

// shadowLocked lets a request through, and notes in the shadow of the line what would
// have become of it. A reentry enters the shadow as a newcomer.
func (d *dispatcher) shadowLocked(f *flow, now int64, r *request) decision {
	r.verdict = new(Verdict)
	wait, refusal := d.judgeNewcomerLocked(f, now, r)
	switch {
	case refusal.reason != notRefused:
		err := refusal.value()
		r.verdict.Err = &err
		d.countRefusalLocked(f, now, refusal.reason)
	case wait == 0:
		f.bucket.pass(now, r.cost)
		d.countDepartureLocked(f, now, 0)
	default:
		r.verdict.Wait = wait
		d.enqueueLocked(f, now, r)
	}
	return decision{waiting: int32(f.waiting()), event: verdictEvent}
}

// letThrough leaves the verdict on a request of a dry run where its caller asked for it,
// and runs the hook. The lock is not held.
func (d *dispatcher) letThrough(ctx context.Context, ev Event) {
	leaveVerdict(ctx, *ev.Verdict)
	runHook(d.trace.Departed, ctx, ev)
}

// mayDryRun reports whether this is a dry run. It is a method so that a type which embeds
// a [*Shaper] or a [*Group] has it too.
func (d *dispatcher) mayDryRun() bool { return d.dryRun }
