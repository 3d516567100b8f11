package shaper

import (
	"math"
	"sync"
	"time"

	"example.com/leakybucket/shaper/internal/exact"
)

// flows are the one flow of a Shaper, or the many of a Group, with what they
// share: a lock, a clock, and a ticker that lets the heads of their lines leave.
//
// While the lock is held no code of a caller's runs, and nothing waits for
// another goroutine.
type dispatcher struct {
	// The fields above mu do not change once the flows are in use. Those below it
	// are guarded by it; unexported methods need it held unless they say otherwise.
	name     string
	trace    Trace
	epoch    time.Time // when they were made; their instants count from here
	run      func()    // tick, made once, so that starting it allocates nothing
	hasHooks bool      // there are hooks in trace
	keyed    bool      // a Group's: flows come and go
	dryRun   bool      // WithDryRun: nobody waits, and the lines are shadows

	mu          sync.Mutex
	clock       int64 // the latest instant seen
	due         departures
	waiting     int   // in all lines
	dirty       *flow // its line or its slots have changed, since due was told
	rearm       bool  // so have they, or the phase, since the ticker was told
	phase       phase
	drained     chan struct{} // made by who waits for the end of a drain
	ticker      ticker
	waiters     waiterPool
	spareSeats  []seatState // to be taken
	totals      totals
	spareErrors []RejectError // made, and not handed out yet

	sweepTimer sweepTimer
	// drop deletes the flows of a Group, at the end.
	drop func()
}

// prepare prepares flows for their use.
func (d *dispatcher) prepare(o options) {
	d.name, d.trace, d.dryRun = o.name, o.trace, o.dry
	d.hasHooks = o.trace.Enqueued != nil || o.trace.Departed != nil || o.trace.Refused != nil || o.trace.Abandoned != nil
	d.epoch = time.Now()
	d.run = d.tick
	d.ticker.coarse = o.coarse
	d.sweepTimer = sweepTimer{at: exact.Forever, next: exact.Forever}
}

// maxClock keeps instants far from overflow. No process lives for 280 years.
const maxClock = math.MaxInt64 - int64(10*horizon)

// lock locks the flows and brings them up to now: departures that are due come
// before whatever the caller wants at the same instant. Every entry point that
// looks at a line or a level begins with it, which also makes up for a ticker
// that is late.
func (d *dispatcher) lockAndAdvance() (now int64) { return d.lockWaking(headFirst) }

// lockLane is lock for who is about to look at a flow or to change it.
func (d *dispatcher) lockFlow(f *flow) (now int64) {
	now = d.lockWaking(headFirst)
	f.bucket.idleUntil(now)
	return now
}

// lockAnd is lock for a goroutine that does as it says after the unlocking. The
// clock is read before the lock is taken, so that nobody waits for that.
func (d *dispatcher) lockWaking(order wakeOrder) (now int64) {
	now = int64(time.Since(d.epoch))
	d.mu.Lock()
	// A clock that stands still or goes back stands still.
	d.clock = min(max(d.clock, now), maxClock)
	if d.waiting > 0 && (d.dryRun || d.clock >= d.ticker.armed) { // Which is not after the next slot.
		d.advanceLocked(d.clock, order)
	}
	return d.clock
}

// afterwards is what a goroutine does that has handed slots out.
type wakeOrder bool

const (
	headFirst wakeOrder = false
	headLast  wakeOrder = true
)

// advance hands out the slots that have come, in the order of the instants and
// in that of each line.
//
// Of several goroutines that one makes ready, the runtime runs the last as soon
// as that one parks, and the others after it in their order. So if it is about
// to park the first is told last. If it goes on, idle threads take the others
// meanwhile, and then their order is the right one (BenchmarkWakeOrder).
func (d *dispatcher) advanceLocked(now int64, order wakeOrder) {
	if d.dirty != nil {
		d.updateDepartureLocked(d.dirty)
		d.dirty = nil
	}
	var first *waiter
	for len(d.due) > 0 && d.due[0].slot <= now {
		ln := d.due[0]
		w := ln.head
		at := now
		if d.dryRun {
			at = ln.slot // Nobody was to be woken, so nothing is late.
		}
		b := &ln.flow.bucket
		missed := b.coldOrNone().missed
		ln.since, _ = b.release(ln.since, at, w.cost)
		d.totals.missed += b.coldOrNone().missed - missed
		ln.remove(w, departed)
		d.waiting--
		if ln.flow.capped() && !d.dryRun {
			ln.seatsTaken++
		}
		w.slot, w.departureNo = at, b.departures
		d.rearm = true
		d.updateDepartureLocked(ln.flow)
		switch {
		case d.dryRun:
			d.countDepartureLocked(ln.flow, w.admitted, at-w.admitted)
			d.waiters.keep(w)
		case order == headLast && first == nil:
			first = w
		default:
			w.wake()
		}
	}
	if first != nil {
		first.wake()
	}
}

// file puts the line of a flow where it belongs among the departures.
func (d *dispatcher) updateDepartureLocked(f *flow) {
	ln := f.line
	if ln == nil {
		return
	}
	d.due.update(ln)
	if d.keyed && ln.head == nil && ln.seatsTaken == 0 {
		f.line = nil
	}
}

// lineOf is the line of a flow, made if it has none.
func (d *dispatcher) lineOfLocked(f *flow) *line {
	if f.line == nil {
		f.line = &line{flow: f, index: -1}
	}
	return f.line
}

// touch notes that the line of a flow, or its slots, have changed.
func (d *dispatcher) markDirtyLocked(f *flow) { d.dirty, d.rearm = f, true }

// unlock tells those who need to know that something has changed, and unlocks.
func (d *dispatcher) unlockAndArm() {
	if d.rearm {
		if d.dirty != nil {
			d.updateDepartureLocked(d.dirty)
			d.dirty = nil
		}
		d.endDrainLocked()
		d.rearm = false
		d.armLocked()
		d.sweepTimer.arm(d.clock)
	}
	d.mu.Unlock()
}

// since is a time as an instant of the dispatcher's clock. The lock need not be held.
func (d *dispatcher) instantOf(t time.Time) int64 {
	if t != t.Round(0) { // It has a reading of the monotonic clock, as we have.
		return int64(t.Sub(d.epoch))
	}
	// The wall clock may have been set meanwhile: only how far off t is counts.
	now := time.Now()
	return exact.Sum(int64(t.Sub(now)), int64(now.Sub(d.epoch)))
}

// at is an instant of the dispatcher's clock as a time.
func (d *dispatcher) timeOf(ns int64) time.Time { return d.epoch.Add(time.Duration(ns)) }

// change puts other limits in force for a flow.
func (d *dispatcher) changeLocked(f *flow, to *plan, now int64) {
	f.bucket.change(to, now)
	if f.line != nil {
		// A head that the new limits would have let leave sooner leaves now.
		f.line.since = exact.At(now)
	}
	d.markDirtyLocked(f)
	d.advanceLocked(now, headFirst)
	d.ticker.look(now)
}
