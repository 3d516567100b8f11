package shaper

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/shared"
)

// Flows share a dispatcher: a lock, a clock, and a ticker that lets the heads of
// their lines leave. A [Shaper] has one flow, a keyShard of a [Group] one for
// each of its keys.
//
// While the lock is held, no code of a caller runs and nothing waits for another
// goroutine.
type dispatcher struct {
	// The fields above mu do not change once the dispatcher is in use. mu guards those
	// below it. Methods that need it held end in Locked.
	trace  Trace
	ticker *ticker // it may serve other dispatchers too
	name   string

	lineTimeout lineTimeout

	// Every call reads the fields from here to watched. They are in one cache line of 64 bytes.
	origin
	hasHooks bool // there are hooks in trace
	plain    bool // nothing is attached that decides upon newcomers
	ordered  bool // the line has an order
	capped   bool // of a Shaper: there is a cap

	mu      sync.Mutex
	waiting int32        // in all lines
	inRow   uint8        // how many calls have been refused in a row, modulo 256; see publishAfter
	clock   int64        // the latest instant seen
	next    atomic.Int64 // when a head is to leave next; forever: no head is. Written under the lock, and read without it by the ticker
	rearm   bool         // next must be published before the lock is released
	phase   phase
	watched bool    // the watcher is to be told of requests that leave at once, too
	served  bool    // the ticker counts it among those that have a line; changed under the ticker's lock, too
	density float32 // only the ticker goroutine uses it; see noteDensity

	dirty *flow // its head or its seats have changed; due is not updated yet

	// published is the view by which a [Shaper] refuses without the lock; nil: none.
	published atomic.Pointer[publication]

	due      departures
	shutDown chan struct{} // closed at the end of a drain; made by the first Shutdown that waits for it
	sibling  *dispatcher   // the next of those that the ticker serves; fixed before use
	waiters  waiterPool
	seats    seatPool
	stripes  *refusalStripes // nil: nothing has been published yet
	watcher  watcher
	host     host    // nil: the only flow is always there
	totals   *totals // of all flows of the host; nil: it has none
	*attachments
}

// A phase is a stage of a dispatcher's life. It never goes back.
type phase uint8

const (
	open     phase = iota
	draining       // Shutdown: no newcomers; the line leaves at its rate
	closed
)

// attachments are what options attach to a dispatcher, beside the order of its line.
type attachments struct {
	levels  levels        // nil: the levels are the flows' own
	gate    gate          // nil: none
	further furtherLevels // of a Shaper, the only flow of which has them; nil: none
}

// noAttachments serves all dispatchers without any. It is only read.
var noAttachments attachments

// levels has the state that the levels of a dispatcher have in common: shared_levels.go.
type levels interface {
	keyOf(name string) levelKey // the lock is not held
	add(f *flow, key levelKey)  // gives a flow a level
	forget(f *flow)             // the flow is deleted
	check(l Limits) error       // why limits are not for a level; nil: they are
	plan(p *plan)               // prepares a plan that may be put in force; the lock is not held
	grantSeats() bool           // they grant seats, whatever the limits of a flow are
	changes()                   // other limits are about to be put in force
	stats() shared.Stats        // of all flows together
	close()                     // the lines have been emptied; the lock is not held
}

// A levelKey says where the level of a flow is: its key, and the name of the server that has it.
type levelKey struct{ key, backend string }

// A host is a container of flows that come and go, which share a dispatcher. Such flows have a line only while a
// request waits or has a seat. The flow of a [Shaper] has no host. The hosts are the shards of a [Group]
// (group.go). The lock is held when the methods are called.
type host interface {
	// drains is called during a drain: with false when the last request has left the lines, which may be told
	// again, and with true when a request is about to enter the empty lines once more. It reports whether that
	// may enter: several hosts end their drain together, and have not ended it yet.
	drains(waits bool) (goesOn bool)
	// arm is called before the lock is released, after anything has changed.
	arm(now int64)
}

// A watcher is told what becomes of the requests of a dispatcher, for those who look at it. It decides nothing.
// Behind it are histograms, and the latest refusals and departures (watch.go, departures.go). The lock is held when its methods are
// called.
type watcher interface {
	// left is told of each request that has left a line, and if dispatcher.watched is set of each other that has left.
	left(at, waited, cost int64, key any)
	// refused is told of each refusal, and returns its error if that is seen.
	refused(at, cost int64, key any, why rejection, seen bool) error

	begins(ln *line, now int64)    // the first request has entered a line
	newHead(ln *line, now int64)   // it has another head, and the one before has not left
	departs(ln *line, at, n int64) // its head, of cost n, is about to leave
	rescheduled(ln *line)          // its next departure is not of the schedule that the one before it had
}

// A gate judges newcomers beside the engine, or in its place. A plain dispatcher has none. Behind it are
// blocks (block.go) and dry runs (dryrun.go). The lock is held when its methods are called, unless they say
// otherwise.
type gate interface {
	// judge returns why a newcomer is refused that the engine would refuse for why, or not at all.
	judge(f *flow, now int64, why rejection) rejection
	// refused is told that a request has been refused, and why.
	refused(f *flow, now int64, why reason)
	// keepOut refuses newcomers until an instant at least, if the gate is one that does so; see
	// flow.keptOutUntil.
	keepOut(f *flow, until int64)

	// letsAllThrough reports whether each request is let through at once. Then the lines are as they would be
	// if the requests waited: they are kept to decide upon the next ones, and no goroutine waits in them.
	// The lock need not be held.
	letsAllThrough() bool
	// decided returns the decision upon a request in the place of the engine's, with the verdict upon a request
	// that is let through.
	decided(dec decision, j judgement) (decision, *Verdict)
	// announce runs the hook of a request that has been let through. The lock is not held.
	announce(ctx context.Context, trace Trace, ev Event)
}

// letsAllThrough reports whether the gate lets each request through at once, so that no goroutine waits in
// the lines.
func (d *dispatcher) letsAllThrough() bool { return d.gate != nil && d.gate.letsAllThrough() }

// prepare makes the dispatcher ready for use, with a ticker that may serve others already.
func (d *dispatcher) prepare(o options, t *ticker, w *observer) {
	d.name, d.trace, d.watcher, d.lineTimeout = o.name, o.trace, w, o.lineTimeout
	d.hasHooks = o.trace.Enqueued != nil || o.trace.Departed != nil || o.trace.Refused != nil || o.trace.Abandoned != nil
	d.attachments = &noAttachments
	d.waiters.most = maxSpares
	t.serve(d, o.coarse)
	attached := attachments{levels: o.shared.newLevels(d), gate: o.newGate(), further: o.newMeters(d)}
	if d.plain = attached == noAttachments; !d.plain {
		d.attachments = new(attachments)
		*d.attachments = attached
	}
	d.ordered = o.fair != nil
}

// maxClock keeps instants far from overflow. No process lives for 280 years.
const maxClock = math.MaxInt64 - int64(10*horizon)

// lockAndAdvance takes the lock and brings all flows up to now: departures that are due
// come before whatever the caller wants at the same instant. Every entry point that looks
// at a line or a level begins with it, which also makes up for a ticker that is late.
func (d *dispatcher) lockAndAdvance() (now int64) { return d.lockWaking(headFirst) }

// lockFlow is lockAndAdvance for a caller that is about to read or change a flow.
func (d *dispatcher) lockFlow(f *flow) (now int64) {
	now = d.lockWaking(headFirst)
	f.bucket.idleUntil(now)
	return now
}

// lockWaking is lockAndAdvance with the order in which waiters are woken. The clock is read before
// the lock is taken, so that no other call waits for the reading.
func (d *dispatcher) lockWaking(order wakeOrder) (now int64) {
	return d.lockAt(int64(time.Since(d.epoch)), order)
}

// lockAt is lockWaking for a caller that has read the clock. It first withdraws the view that is
// published for refusals without the lock.
func (d *dispatcher) lockAt(now int64, order wakeOrder) int64 {
	d.mu.Lock()
	if d.published.Load() != nil {
		now = d.withdrawLocked()
	}
	// The clock never goes backwards.
	d.clock = min(max(d.clock, now), maxClock)
	if d.waiting > 0 && d.waiters.head == nil {
		d.waiters.keep(new(waiter)) // The call is likely to wait. Here there is more room on the stack for it (see await).
	}
	if d.clock >= d.next.Load() {
		d.advanceLocked(d.clock, order)
	}
	return d.clock
}

// A wakeOrder is the order in which a goroutine wakes the waiters whose slots it has
// handed out.
type wakeOrder bool

const (
	headFirst wakeOrder = false
	headLast  wakeOrder = true
)

// advanceLocked hands out the slots that have come, in the order of their instants and in
// the order of each line.
//
// When a goroutine makes several others ready and then parks, the runtime runs the last
// of them first, and the rest in their order. So a goroutine that is about to park wakes
// the first waiter last (headLast). If the goroutine goes on, idle threads take the
// waiters meanwhile, and then the order of the line is the right one (headFirst;
// BenchmarkWakeOrder).
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
		if d.letsAllThrough() {
			at = ln.slot // There was no goroutine to wake, so nothing is late.
		}
		b := &ln.flow.bucket
		if ln.flow.bounds() != nil && ln.refusesOneLocked(d, at) {
			continue
		}
		if lv := ln.flow.level(); lv == nil {
			d.watcher.departs(ln, at, w.cost)
			missed := b.coldOrNone().missed
			ln.since, _ = b.letLeave(ln.since, at, w.cost)
			if d.totals != nil {
				d.totals.missed += b.coldOrNone().missed - missed
			}
			if w.is(accounted) {
				b.ledger().leaves(d, ln.flow, b, w, leaving{ln.since, b.rare.sinceRounded, at})
			}
		} else if !lv.leave(w, at) {
			d.rearm = true
			d.updateDepartureLocked(ln.flow)
			continue
		}
		b.noteLeftAt(at)
		ln.remove(w, departed)
		d.waiting--
		if ln.flow.capped() {
			ln.seatsTaken++
		}
		admitted := w.at
		w.at, w.departureNo = at, b.departures
		d.rearm = true
		d.updateDepartureLocked(ln.flow)
		switch {
		case d.letsAllThrough():
			ln.flow.countDeparture(d.totals, admitted, at-admitted)
			d.watcher.left(at, at-admitted, w.cost, nil)
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

// refuseLocked refuses a request that is in line, and wakes it. If no goroutine waits for it, it is counted.
func (ln *line) refuseLocked(d *dispatcher, w *waiter, now int64, s state) {
	ln.giveUpLocked(d, w, now, s)
	if d.letsAllThrough() {
		why := refusedClosed
		if s == overdue {
			why = refusedLate
		}
		ln.flow.countRefusal(d.totals, w.at, now, why)
		d.waiters.keep(w)
		return
	}
	w.at = now
	w.wake()
}

// giveUpLocked takes a request out of the line that does not leave, and reports whether another one is
// the head now.
func (ln *line) giveUpLocked(d *dispatcher, w *waiter, now int64, s state) (newHead bool) {
	head := ln.head
	ln.remove(w, s)
	d.waiting--
	if w.is(accounted) {
		ln.flow.bucket.ledger().givesUp(&ln.flow.bucket, w)
	}
	if ln.flow.bucket.several {
		d.further.goes(w)
	}
	if ln.head == head {
		return false
	}
	ln.beginHead(now) // The next one may be due already, if it costs less. It could not leave before now.
	d.watcher.newHead(ln, now)
	return true
}

// updateDepartureLocked moves the line of a flow to its place among the departures. In a
// [Group] it drops a line that is not needed any more.
func (d *dispatcher) updateDepartureLocked(f *flow) {
	ln := f.line
	if ln != nil {
		if ln.head != nil {
			ln.slot = f.nextInLine()
		} else {
			f.forgetBounds()
		}
		d.due.update(ln)
	}
	if lv := f.remote(); lv != nil {
		lv.moved(d.clock) // Without a line, too: what a request has given back may be of use elsewhere.
	}
	if ln == nil {
		return
	}
	if d.host != nil && ln.head == nil && ln.seatsTaken == 0 {
		f.line = nil
	}
}

// markDirtyLocked notes that the head of a flow or its seats have changed.
func (d *dispatcher) markDirtyLocked(f *flow) { d.dirty, d.rearm = f, true }

// unlockAndArm updates the departures and tells the ticker if something has changed, and
// releases the lock.
func (d *dispatcher) unlockAndArm() {
	if d.rearm {
		if d.dirty != nil {
			d.updateDepartureLocked(d.dirty)
			d.dirty = nil
		}
		if d.phase == draining && d.waiting == 0 {
			d.endDrainLocked()
		}
		d.rearm = false
		d.publishNextLocked()
		if d.host != nil {
			d.host.arm(d.clock)
		}
	}
	d.mu.Unlock()
}

// publishNextLocked lets the ticker and the calls to come know when the next head is to leave.
// The ticker is woken only if that is sooner than it was, or if the first line has formed
// or the last has emptied.
func (d *dispatcher) publishNextLocked() {
	was, next := d.next.Load(), int64(exact.Forever)
	if d.waiting > 0 {
		next = d.due[0].slot
	}
	if next != was {
		d.next.Store(next)
	}
	serves := d.waiting > 0 && !d.letsAllThrough() // Else there are no goroutines to wake.
	if serves != d.served || serves && next < was {
		d.ticker.arm(d, serves, next)
	}
}

// An origin is the time from which instants count. All dispatchers that share a ticker have the same.
type origin struct{ epoch time.Time }

// instantOf returns a time as an instant of the dispatcher's clock. The lock need not be held.
func (o origin) instantOf(t time.Time) int64 {
	if t != t.In(t.Location()) { // It has a reading of the monotonic clock, which In drops. epoch has one, too.
		return int64(t.Sub(o.epoch))
	}
	// The wall clock may have been set meanwhile, so only the distance of t from now counts.
	now := time.Now()
	return exact.Sum(int64(t.Sub(now)), int64(now.Sub(o.epoch)))
}

// timeOf returns an instant of the dispatcher's clock as a time.
func (o origin) timeOf(ns int64) time.Time { return o.epoch.Add(time.Duration(ns)) }
