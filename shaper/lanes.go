package shaper

import (
	"math"
	"sync"
	"time"
)

// lanes are the one lane of a Shaper, or the many of a Group, with what they
// share: a lock, a clock, and a ticker that lets the heads of their lines leave.
//
// While the lock is held no code of a caller's runs, and nothing waits for
// another goroutine.
type lanes struct {
	// The fields above mu do not change once the lanes are in use. Those below it
	// are guarded by it; unexported methods need it held unless they say otherwise.
	name  string
	trace Trace
	epoch time.Time // when they were made; their instants count from here
	run   func()    // tick, made once, so that starting it allocates nothing
	told  bool      // there are hooks in trace
	many  bool      // a Group's: lanes come and go
	dry   bool      // WithDryRun: nobody waits, and the lines are shadows

	mu      sync.Mutex
	clock   int64 // the latest instant seen
	due     departures
	waiting int   // in all lines
	touched *lane // its line or its slots have changed, since due was told
	changed bool  // so have they, or the phase, since the ticker was told
	phase   phase
	drained chan struct{} // made by who waits for the end of a drain
	ticker  ticker
	spares  spares
	places  []bool // to be claimed
	totals  totals
	blank   []RejectError // made, and not handed out yet

	broom broom
	// drop deletes the lanes of a Group, at the end.
	drop func()
}

// prepare prepares lanes for their use.
func (e *lanes) prepare(o options) {
	e.name, e.trace, e.dry = o.name, o.trace, o.dry
	e.told = o.trace.Enqueued != nil || o.trace.Departed != nil || o.trace.Refused != nil || o.trace.Abandoned != nil
	e.epoch = time.Now()
	e.run = e.tick
	e.ticker.coarse = o.coarse
	e.broom = broom{at: forever, next: forever}
}

// maxClock keeps instants far from overflow. No process lives for 280 years.
const maxClock = math.MaxInt64 - int64(10*horizon)

// lock locks the lanes and brings them up to now: departures that are due come
// before whatever the caller wants at the same instant. Every entry point that
// looks at a line or a level begins with it, which also makes up for a ticker
// that is late.
func (e *lanes) lock() (now int64) { return e.lockAnd(goesOn) }

// lockLane is lock for who is about to look at a lane or to change it.
func (e *lanes) lockLane(l *lane) (now int64) {
	now = e.lockAnd(goesOn)
	l.bucket.rest(now)
	return now
}

// lockAnd is lock for a goroutine that does as it says after the unlocking. The
// clock is read before the lock is taken, so that nobody waits for that.
func (e *lanes) lockAnd(next afterwards) (now int64) {
	now = int64(time.Since(e.epoch))
	e.mu.Lock()
	// A clock that stands still or goes back stands still.
	e.clock = min(max(e.clock, now), maxClock)
	if e.waiting > 0 && (e.dry || e.clock >= e.ticker.armed) { // Which is not after the next slot.
		e.advance(e.clock, next)
	}
	return e.clock
}

// afterwards is what a goroutine does that has handed slots out.
type afterwards bool

const (
	goesOn afterwards = false
	parks  afterwards = true
)

// advance hands out the slots that have come, in the order of the instants and
// in that of each line.
//
// Of several goroutines that one makes ready, the runtime runs the last as soon
// as that one parks, and the others after it in their order. So if it is about
// to park the first is told last. If it goes on, idle threads take the others
// meanwhile, and then their order is the right one (BenchmarkWakeOrder).
func (e *lanes) advance(now int64, next afterwards) {
	if e.touched != nil {
		e.file(e.touched)
		e.touched = nil
	}
	var first *waiter
	for len(e.due) > 0 && e.due[0].slot <= now {
		ln := e.due[0]
		w := ln.head
		at := now
		if e.dry {
			at = ln.slot // Nobody was to be woken, so nothing is late.
		}
		b := &ln.lane.bucket
		missed := b.missedSoFar()
		ln.since, _ = b.release(ln.since, at, w.cost)
		e.totals.missed += b.missedSoFar() - missed
		ln.remove(w, departed)
		e.waiting--
		if ln.lane.capped() && !e.dry {
			ln.taken++
		}
		w.slot, w.left = at, b.left
		e.changed = true
		e.file(ln.lane)
		switch {
		case e.dry:
			e.countDeparture(ln.lane, w.admitted, at-w.admitted)
			e.spares.keep(w)
		case next == parks && first == nil:
			first = w
		default:
			w.tell()
		}
	}
	if first != nil {
		first.tell()
	}
}

// file puts the line of a lane where it belongs among the departures.
func (e *lanes) file(l *lane) {
	ln := l.line
	if ln == nil {
		return
	}
	e.due.update(ln)
	if e.many && ln.head == nil && ln.taken == 0 {
		l.line = nil
	}
}

// lineOf is the line of a lane, made if it has none.
func (e *lanes) lineOf(l *lane) *line {
	if l.line == nil {
		l.line = &line{lane: l, index: -1}
	}
	return l.line
}

// touch notes that the line of a lane, or its slots, have changed.
func (e *lanes) touch(l *lane) { e.touched, e.changed = l, true }

// unlock tells those who need to know that something has changed, and unlocks.
func (e *lanes) unlock() {
	if e.changed {
		if e.touched != nil {
			e.file(e.touched)
			e.touched = nil
		}
		e.settle()
		e.changed = false
		e.arm()
		e.broom.arm(e.clock)
	}
	e.mu.Unlock()
}

// since is a time as an instant of the lanes' clock. The lock need not be held.
func (e *lanes) since(t time.Time) int64 {
	if t != t.Round(0) { // It has a reading of the monotonic clock, as we have.
		return int64(t.Sub(e.epoch))
	}
	// The wall clock may have been set meanwhile: only how far off t is counts.
	now := time.Now()
	return sum(int64(t.Sub(now)), int64(now.Sub(e.epoch)))
}

// at is an instant of the lanes' clock as a time.
func (e *lanes) at(ns int64) time.Time { return e.epoch.Add(time.Duration(ns)) }

// change puts other limits in force for a lane.
func (e *lanes) change(l *lane, to *plan, now int64) {
	l.bucket.change(to, now)
	if l.line != nil {
		// A head that the new limits would have let leave sooner leaves now.
		l.line.since = nanos{whole: now}
	}
	e.touch(l)
	e.advance(now, goesOn)
	e.ticker.look(now)
}
