package shaper

import (
	"sync/atomic"
	"time"
)

// A publication is a view by which requests are refused without the lock. A refusal under the
// lock publishes it. lockAt, which takes the lock, withdraws it before anything can change. So
// as long as a call finds a publication, the flow is as its view says, and the call is refused
// just as it would be under the lock at that instant.
//
// Some methods take the lock of a [Shaper] without lockAt, to save a reading of the clock. They
// may do so, because none of them makes a publication wrong:
//
//   - takeOutcome changes nothing that is in a view.
//   - The methods of a parker, those of a [Recording] but Stop, and shaperLimiter.stats only
//     read.
//   - seat.release is called only if there is a cap, and [Recording.Stop] only if there is a
//     Recording. Then no view is published.
type publication struct {
	view
	at     int64 // when it was published
	until  int64 // when the next head is to leave; from then on the lock is needed
	cost   int64 // of the request that was refused then
	leaves int64 // view.leaves of that cost, which most of those to come have too

	after     uint64 // the number of the latest refusal in the refusalRing
	stripes   *refusalStripes
	first     *refusalStripe // of stripes
	contended atomic.Bool    // two refusals have met in the first stripe
}

// publishAfter is how many refusals in a row it takes for a view to be published. To make it
// and to withdraw it takes about as long as one refusal, so it is worth it only if several
// more follow.
const publishAfter = 8

// publishAfterLocked notes that a request of cost n has been refused, and publishes the view of
// the flow if enough have been refused in a row.
func (s *Shaper) publishAfterLocked(now, n int64) {
	if s.inRow++; s.inRow >= publishAfter || s.stripes.audited() {
		s.publishViewLocked(now, n)
	}
}

// publishViewLocked publishes the view of the flow after a refusal of a request of cost n, unless
// something is in force for which refusals need the lock.
func (s *Shaper) publishViewLocked(now, n int64) {
	f := &s.flow
	if s.mode != modePlain || s.recorded || f.capped() || s.phase != open {
		return
	}
	if s.stripes == nil {
		s.stripes = newRefusalStripes()
	}
	p := &publication{
		view: f.view(), at: now, until: maxClock, cost: n,
		after: s.refusalRing.count - 1, stripes: s.stripes, first: s.stripes.stripe(0),
	}
	p.leaves = p.view.leaves(n)
	p.findRoom(f.line)
	if f.line.head != nil {
		p.until = min(p.until, f.line.slot)
	}
	s.published.Store(p)
}

// withdrawLocked withdraws what is published, and reads the clock. The caller has read it
// before, but other calls may have been refused since then, and the clock must not go back
// behind them.
func (d *dispatcher) withdrawLocked() (now int64) {
	d.published.Store(nil)
	d.inRow = 0
	return int64(time.Since(d.epoch))
}

// refusePublished refuses a request without the lock, if it is refused by what is published, and runs
// the hook of that. Else dec is empty, and the lock is needed. As in lockAt, the clock has been
// read before: p was still published after now.
//
// It is not inlined, so that calls that may leave need no stack for it.
//
//go:noinline
func (s *Shaper) refusePublished(p *publication, now int64, r *request) (dec decision) {
	now = max(now, p.at)
	if now >= p.until || r.kind == reentry {
		return dec
	}
	leaves := p.leaves
	if r.cost != p.cost {
		leaves = p.view.leaves(r.cost)
	}
	_, why := p.judge(now, leaves, r)
	if why.reason == notRefused {
		return dec
	}
	dec = decision{waiting: p.waiting, event: refusedEvent}
	stripe := p.lockStripe()
	stripe.noteLocked(p, now, r.cost, why)
	if r.kind != allow || s.trace.Refused != nil {
		dec.err = stripe.newError(why)
	}
	stripe.mu.Unlock()
	if p.stripes.audit != nil {
		p.stripes.audit(p, now, *r, why) // A pointer would make every request escape to the heap.
	}
	if s.hasHooks {
		r.entered = now
		r.announce(&s.dispatcher, &s.flow, dec)
	}
	return dec
}

// lockStripe locks a stripe that is free: the first one, as long as no two calls have met there.
// (So calls that follow one another within one tick of a coarse clock are remembered in their
// order.)
func (p *publication) lockStripe() *refusalStripe {
	if !p.contended.Load() {
		if p.first.mu.TryLock() {
			return p.first
		}
		p.contended.Store(true)
	}
	return p.stripes.lock()
}
