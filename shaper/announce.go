package shaper

import (
	"time"

	"example.com/leakybucket/shaper/internal/serverconn"
)

// announce runs the hook that is to be told of a decision, and notes the Done channel
// of the context of a request that waits. The lock is not held.
func (r *request) announce(d *dispatcher, f *flow, dec decision) {
	switch {
	case dec.event == enqueuedEvent:
		r.announceEntry(d, f, dec)
	case dec.event != noEvent:
		r.announceEnd(d, f, r.entered, dec) // It has not waited.
	}
}

// announceEnd runs the hook of a request that is not in line, or no longer: it left, was
// refused or gave up at the instant at. It waited from r.entered until then.
func (r *request) announceEnd(d *dispatcher, f *flow, at int64, dec decision) {
	ev := Event{
		Name: d.name, Key: r.key, Cost: int(r.cost), Waiting: int(dec.waiting), Ahead: int(r.ahead),
		At: d.timeOf(at), Waited: time.Duration(at - r.entered), Err: dec.err, Verdict: r.verdict,
	}
	switch dec.event {
	case departedEvent:
		r.runDeparted(d, f, ev)
	case refusedEvent:
		runHook(d.trace.Refused, r.ctx, ev)
	case verdictEvent:
		d.gate.announce(r.ctx, d.trace, ev)
	case abandonedEvent:
		runHook(d.trace.Abandoned, r.ctx, ev)
	}
}

// announceEntry runs the hook of a request that has entered a line, and notes the channel on which it waits
// for the end of its context. The lock is not held.
func (r *request) announceEntry(d *dispatcher, f *flow, dec decision) {
	w, handled := dec.waiter, false
	defer r.abandonUnless(&handled, d, f, w)
	r.ahead = dec.waiting - 1
	if d.hasHooks {
		r.runEnqueued(d, dec)
	}
	r.peer, r.done = serverconn.BeginWait(withoutClaim(r.ctx), w.ready)
	handled = true
}

// runEnqueued runs the hook of a request that has entered a line.
//
// It is not inlined, so that the [Event] is not on the stack while [context.Context.Done]
// makes a channel.
//
//go:noinline
func (r *request) runEnqueued(d *dispatcher, dec decision) {
	ev := Event{Name: d.name, Key: r.key, Cost: int(r.cost), Waiting: int(dec.waiting), Ahead: int(r.ahead), At: d.timeOf(r.entered)}
	runHook(d.trace.Enqueued, r.ctx, ev)
}

// runDeparted runs the hook of a departure. If that panics, the seat of the request is
// released, as no caller could do it.
func (r *request) runDeparted(d *dispatcher, f *flow, ev Event) {
	if d.trace.Departed == nil {
		return
	}
	ran := false
	defer func() {
		if !ran && r.seat != nil {
			r.seat.free(d, f)
		}
	}()
	d.trace.Departed(withoutClaim(r.ctx), ev)
	ran = true
}
