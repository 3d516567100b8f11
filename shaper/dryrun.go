package shaper

type dryRunOption struct{}

func (dryRunOption) apply(to *options) { to.mode |= modeDryRun }

// WithDryRun lets every request through at once, and records what would have become of
// it, so that limits can be tried on live traffic before they are enforced.
//
// [Shaper.WaitN], [Shaper.Acquire], [Shaper.Do] and [Shaper.Allow] return at once, without
// an error unless the context has ended or the cost is negative. Meanwhile a shadow of the
// line is kept, exactly as the line would be if each request that had to wait did so to the
// end. The shadow decides the [Verdict] on a request, which goes
//
//   - to [Event.Verdict] of the hook [Trace.Departed], the only hook that runs;
//   - to [Stats], whose totals and gauges are those of the shadow;
//   - to a context made by [ContextWithVerdict], which [Middleware] makes by itself.
//
// Forecast predicts from the shadow.
//
// [Limits.InFlight] is not part of the shadow: if a request had left later, it is unknown
// when it would have ended. A retry of a [Transport] enters the shadow as a newcomer. A
// dry run has no goroutine, and [Shaper.Shutdown] does not wait for the shadow.
//
// The shadow takes 70 bytes for each request that would wait, and can grow to [Limits.Depth],
// because no request in it gives up. Requests whose time has come are removed from it at
// the next call. A dry run of a [Group] calls the limits function, and waits for it.
//
// To try new limits beside those in force, put both into a [Chain], the dry run first:
// in second place it would see only the requests that the other limits admit.
func WithDryRun() Option { return common{dryRunOption{}} }

// shadowLocked decides what would have become of a request. It notes that in the shadow
// of the line and as the request's verdict, and lets the request through. A reentry
// enters the shadow as a newcomer.
func (d *dispatcher) shadowLocked(f *flow, now int64, r *request) decision {
	if r.kind == reentry {
		r.kind = newcomer
	}
	j := d.judgeLocked(f, now, r)
	dec := d.admitLocked(f, now, r, j)
	switch {
	case dec.err != nil:
		r.verdict = &Verdict{Err: dec.err}
	case dec.event == refusedEvent: // No error is made for a call that only learns whether it may leave.
		r.verdict = &Verdict{Err: d.refusalRing.newError(j.refusal)}
	default:
		r.verdict = &Verdict{Wait: j.wait}
	}
	return decision{waiting: dec.waiting, event: verdictEvent}
}

// planOf returns a new plan of [Limits] for the flows of a dispatcher.
func (d *dispatcher) planOf(l Limits) *plan {
	p := planOf(l)
	p.uncapped = d.isDryRun()
	if d.mode&modeShared != 0 {
		d.shared.rateOf(p, 0) // That takes long, so it is done before the lock is needed for it.
	}
	return p
}

// letThrough leaves the verdict of a dry run in the context of its request, if there is
// room for one, and runs the hook. The lock is not held.
func (r *request) letThrough(d *dispatcher, ev Event) {
	leaveVerdict(r.ctx, *ev.Verdict)
	runHook(d.trace.Departed, r.ctx, ev)
}

// mayDryRun reports whether this is a dry run. It is a method, so that a type that embeds
// a [*Shaper] or a [*Group] has it too.
func (d *dispatcher) mayDryRun() bool { return d.isDryRun() }
