package shaper

import (
	"time"

	"example.com/leakybucket/internal/exact"

	"example.com/leakybucket/shaper/shared"
)

// A flow is a bucket with its line and its counts. A [Shaper] has one flow, a [Group] one
// for each key. The flows of a keyShard share a dispatcher. Methods of a flow need the
// dispatcher's lock held, unless they say otherwise.
//
// In most flows of a Group no request ever waits, so a flow is small. The fields that only few flows
// need are in line and cold.
type flow struct {
	bucket bucket
	line   *line // nil: no request waits or has a seat

	// Counts; the rarer ones are in cold. (A host has totals.)
	departed uint64
	wait     int64 // the sum of the waits of those that departed, in nanoseconds
	entered  int64 // when the latest call that was counted came; -1: there was none
}

// A level says when the requests in the line of a flow may leave, in the place of the flow's own bucket. A flow
// of a plain Shaper has none. A level is either remote, or furtherLevels. The dispatcher's lock is held when its
// methods are called, and the methods of those, unless they say otherwise.
type level interface {
	// mayLeave returns the instant from which on the head of the line may leave, if it has a seat by then;
	// forever if that is unknown.
	mayLeave(head *waiter) int64
	// leave lets the head of the line leave. If it may not, it refuses those that have waited too long, and
	// returns false.
	leave(head *waiter, now int64) (left bool)
	// giveBack undoes the departure of a request from the line, if no other has followed.
	giveBack(w *waiter, with *companions)
}

// A remote is a level that is kept elsewhere. The flow's own bucket is an estimate then, by which waits are
// predicted as always. The only one is a level that processes share in a [shared.Bucket] (shared_flow.go).
type remote interface {
	level

	// decide decides upon a request that comes now, as far as the level can tell. Its kind is kind.
	decide(now, cost, deadline int64, kind entryKind) (levelAnswer, rejection)
	// ask is called without the lock for a request about which decide has answered mustAsk. It returns
	// the decision, and calls note with it, under the lock.
	ask(r *request, note func(now int64, dec decision)) decision
	// forecast returns why a newcomer of that cost would be refused now, if it is not the line or the
	// limits that refuse it.
	forecast(now, cost int64) rejection
	// placeless returns how many of those that wait take no place of [Limits.Depth], as it counts for a
	// newcomer of that cost.
	placeless(now, cost int64) int32

	enters(now, cost int64) // a newcomer is about to enter the line
	passed(cost int64)      // a request has left as it came, as decide has answered passes

	// nextBound returns the instant at which a request is refused next because it has waited too long;
	// forever: none is.
	nextBound() int64
	// waitedTooLong returns why leave has refused a request at an instant.
	waitedTooLong(at int64) rejection
	// moved is told that the line, its seats or the level have changed.
	moved(now int64)

	change(to *plan) // other limits are put in force
	// hold is told of a hold of the flow that is about to begin now, or of the end of it, which is a span of 0. It
	// returns the span of it.
	hold(now int64, span time.Duration) time.Duration
	given() *plan // the plan as it was given to the flow; its bucket may have another one

	busy(now int64) bool       // it is in use, so the flow must stay
	expectsSeat() bool         // a newcomer gets a seat, as far as is known
	refusesAll(now int64) bool // a newcomer is refused whatever the line and the limits are
	stats() shared.Stats
}

// furtherLevels are the levels of a flow beside the one of its bucket, in the same process: a request leaves when all
// have room for it. Behind them are meters (meters.go).
type furtherLevels interface {
	level

	attach(f *flow)
	buckets() []bucket // that have these levels
	named() []string   // their names

	turnOf(n int64, costs *moreCosts) int64               // what a key pays for a turn, in a line with an order
	tooCostly(costs *moreCosts) bool                      // whether a request can never fit at one of them
	pass(now, n int64, o *outlay)                         // a request has left as it came
	enter(w *waiter, o *outlay)                           // a request enters the line
	goes(w *waiter)                                       // and is in line no more, and has not left
	of(w *waiter) *moreCosts                              // what a request in line costs
	inLine() *moreCosts                                   // what all in line cost, saturating
	leavesBehind(l load, n int64, costs *moreCosts) int64 // when a request leaves behind others in line
}

// maxMore is how many further levels a flow may have.
const maxMore = 7

// moreCosts are costs at the further levels of a flow.
type moreCosts [maxMore]int64

// An outlay is what a request costs beside its cost at the level of the bucket.
type outlay struct {
	costs moreCosts
	turn  int64 // what its key pays for its turn, in a line with an order; 0: its cost

	// raises are, if it has left, how often each level had been raised then, modulo 2³². The first is the one of the
	// bucket.
	raises [1 + maxMore]uint32
}

// A load is how many requests are ahead of one in line, and their costs, saturating.
type load struct {
	n    int32
	cost int64
	more *moreCosts // nil: nothing
	head *waiter    // of further levels: who leaves first of them; nil: the head of the line
}

// behind returns the load of those behind a request in line, which is behind a load.
func (f *flow) behind(l load, w *waiter) load {
	l.n++
	l.cost = exact.Sum(l.cost, w.cost)
	if f.bucket.several {
		l.more = l.more.plus(f.further().of(w))
	}
	return l
}

// plus adds costs to c, which is made if it is nil.
func (c *moreCosts) plus(o *moreCosts) *moreCosts {
	if c == nil {
		c = new(moreCosts)
	}
	for i, n := range o {
		c[i] = exact.Sum(c[i], n)
	}
	return c
}

// before returns the load of those in line that would leave before a request that enters now.
func (f *flow) before(r *request) (l load) {
	ln := f.lineOrNone()
	switch {
	case !f.bucket.several:
		l.n, l.cost = ln.before(r, nil)
	case ln.order != nil:
		ln.order.eachAhead(r.turn(), nil, func(w *waiter) bool {
			l = f.behind(l, w)
			return true
		})
	default: // Only a retry asks.
		for w := ln.head; w != nil && w.is(reentered); w = w.next {
			l = f.behind(l, w)
		}
	}
	return l
}

// inLine returns the load of all in line.
func (f *flow) inLine() load {
	ln := f.lineOrNone()
	l := load{n: ln.len, cost: ln.cost.total()}
	if f.bucket.several {
		l.more = f.further().inLine()
	}
	return l
}

// further returns the further levels of a flow that has some.
func (f *flow) further() furtherLevels { return f.bucket.rare.level.(furtherLevels) }

// A levelAnswer is the decision of a level upon a request.
type levelAnswer uint8

const (
	judges    levelAnswer = iota // the flow's own bucket decides
	estimates                    // it predicts, but the request can't leave before the level lets it
	passes                       // the request leaves now
	refuses                      // it is refused
	isFull                       // it is refused as the level is too high, so that newcomers may be kept out for longer
	mustAsk                      // ask decides
)

// level returns the level of a flow; nil: it has none, and its own bucket decides.
func (f *flow) level() level {
	if r := f.bucket.coldOrNone().rare; r != nil {
		return r.level
	}
	return nil
}

// remote returns the level of a flow if that is remote; nil: the flow's own bucket has it.
func (f *flow) remote() remote {
	if r := f.bucket.coldOrNone().rare; r != nil {
		return r.remote
	}
	return nil
}

// setRemote sets the level of a flow; nil: it has none any more.
func (f *flow) setRemote(lv remote) {
	r := f.bucket.rareOrNew()
	if r.level, r.remote = lv, lv; lv == nil {
		r.level = nil // And no level that holds nil.
	}
}

// keptOutUntil returns until when the gate keeps newcomers out of the flow; never: it never does, and 0: it
// has not.
func (f *flow) keptOutUntil() int64 {
	if r := f.bucket.coldOrNone().rare; r != nil {
		return r.keptOutUntil
	}
	return 0
}

// never is in the place of the instant until which newcomers are kept out of a flow whom no gate keeps out.
const never = -1

// keepOut keeps newcomers out of the flow until an instant; never: none is kept out.
func (f *flow) keepOut(until int64) { f.bucket.rareOrNew().keptOutUntil = until }

// A line is the queue of a flow, with the fields that a flow needs only while a request waits or has
// a seat.
type line struct {
	queue
	flow       *flow
	since      exact.Nanos // since when nothing but its slot keeps the head
	slot       int64       // when the head is to leave, or the bound or the patience of one in line comes; forever: when a seat becomes free, or units are leased
	leftAt     int64       // when the latest request left; unknown: no spacing is to be counted from it
	seatsTaken int32       // with a cap, the requests that have left and not ended
	index      int32       // in departures; -1: it is not in there, as no request waits
}

// unknown is no instant.
const unknown = -1

// noLine is the line of a flow that has none. It is only read.
var noLine line

// lineOrNone returns the line of a flow, to be read; noLine if it has none.
func (f *flow) lineOrNone() *line {
	if f.line == nil {
		return &noLine
	}
	return f.line
}

// lineOrNew returns the line of a flow, and makes one if it has none.
func (f *flow) lineOrNew() *line {
	if f.line == nil {
		f.line = &line{flow: f, index: -1, leftAt: unknown}
	}
	return f.line
}

// waiting returns how many are in line.
func (f *flow) waiting() int { return int(f.lineOrNone().len) }

// ahead returns the cost of all in line, saturating.
func (f *flow) ahead() int64 { return f.lineOrNone().cost.total() }

// seatsTaken returns how many requests have a seat; 0 without a cap.
func (f *flow) seatsTaken() int { return int(f.lineOrNone().seatsTaken) }

// nextInLine returns the instant at which something is to happen in the line, in which a request
// waits.
func (f *flow) nextInLine() int64 {
	at := f.headMayLeave()
	if r := f.bucket.coldOrNone().rare; r != nil {
		at = min(at, f.nextBound())
		if r.remote != nil {
			at = min(at, r.remote.nextBound())
		}
	}
	return at
}

// headMayLeave returns the instant from which on the head of the line may leave; forever if that is
// unknown: whatever ends that then calls markDirtyLocked. Every reason that keeps a head from
// leaving is asked for here: the cap, by bucket.slot its slot and a hold, and a level.
func (f *flow) headMayLeave() int64 {
	if !f.hasSeat() {
		return exact.Forever
	}
	if lv := f.level(); lv != nil {
		return lv.mayLeave(f.line.head)
	}
	return f.slotOf(f.line.head)
}

// slotOf returns the instant at which the flow's own bucket lets the head of the line leave.
func (f *flow) slotOf(head *waiter) int64 { return f.bucket.slot(f.line.since, head.cost).Ceil() }

// keptUntil returns the instant until which the head of the line can't leave, whatever the
// level is: the end of a hold, or the instant at which it became the head or got a seat.
func (f *flow) keptUntil() int64 {
	return exact.Later(f.line.since, f.bucket.coldOrNone().hold).Ceil()
}

// notBefore notes that the head of the line, if there is one, could not leave
// before an instant.
func (f *flow) notBefore(at int64) {
	if f.line != nil && !f.line.since.After(exact.At(at)) {
		f.line.beginHead(at)
	}
}

// totals are the counts of all flows of a host together, which outlive the flows.
type totals struct {
	departed, abandoned uint64
	refused             refusals
	wait                int64   // the sum of the waits of those that departed, in nanoseconds
	missed              float64 // cost units lost to lateness beyond slack
	settlements
}

// countPass counts a request that has left f as it came, now, also among all, unless t is nil.
func (f *flow) countPass(t *totals, now int64) {
	f.entered = now // No call has come later.
	f.departed++
	if t != nil {
		t.departed++
	}
}

// countDeparture counts a request that has left the line, as countPass does. It entered at the instant entered.
func (f *flow) countDeparture(t *totals, entered, waited int64) {
	f.entered = max(f.entered, entered)
	f.departed++
	f.wait = exact.Sum(f.wait, waited)
	if t != nil {
		t.departed++
		t.wait = exact.Sum(t.wait, waited)
	}
}

// countRefusal counts a request that came at the instant entered and was refused at the instant at, as countPass
// does.
func (f *flow) countRefusal(t *totals, entered, at int64, why reason) {
	f.entered = max(f.entered, entered)
	c := f.bucket.coldOrNew()
	c.refused.count(why)
	c.refusedAt = max(c.refusedAt, at)
	if t != nil {
		t.refused.count(why)
	}
}

// countAbandonment counts a request whose context ended, as countPass does.
func (f *flow) countAbandonment(t *totals, entered int64) {
	f.entered = max(f.entered, entered)
	f.bucket.coldOrNew().abandoned++
	if t != nil {
		t.abandoned++
	}
}

// departures is a binary heap of the lines in which requests wait, ordered by the
// slots of their heads: the head of d[0] is the next to leave. The lock of the
// dispatcher guards it.
type departures []*line

// update moves a line to its place in the heap after its slot has changed. It removes an
// empty line.
func (d *departures) update(ln *line) {
	switch {
	case ln.head == nil:
		if ln.index >= 0 {
			d.remove(ln)
		}
		return
	case ln.index < 0:
		ln.index = int32(len(*d)) // It fits: 2³¹ lines would take 240 GB.
		*d = append(*d, ln)
	}
	if !d.up(int(ln.index)) {
		d.down(int(ln.index))
	}
}

// remove takes a line out of the heap.
func (d *departures) remove(ln *line) {
	h := *d
	last := len(h) - 1
	i := int(ln.index)
	h[i] = h[last]
	h[i].index = int32(i)
	h[last] = nil
	*d = h[:last]
	ln.index = -1
	if i < last && !d.up(i) {
		d.down(i)
	}
}

// up moves the line at index i towards the top, and reports whether it moved.
func (d departures) up(i int) (moved bool) {
	for i > 0 {
		parent := (i - 1) / 2
		if d[parent].slot <= d[i].slot {
			break
		}
		d.swap(i, parent)
		i, moved = parent, true
	}
	return moved
}

// down moves the line at index i away from the top.
func (d departures) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(d) {
			return
		}
		if right := child + 1; right < len(d) && d[right].slot < d[child].slot {
			child = right
		}
		if d[i].slot <= d[child].slot {
			return
		}
		d.swap(i, child)
		i = child
	}
}

// swap exchanges the lines at two indexes.
func (d departures) swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = int32(i), int32(j)
}

// beginHead notes that from now on nothing but its slot keeps the head of the line.
func (ln *line) beginHead(now int64) {
	ln.since = exact.At(now)
	ln.flow.bucket.sinceIsWhole()
}

// capped reports whether there is a cap: [Limits.InFlight] is set, or the level of the flow grants seats; and the gate
// does not let all through. [Shaper.SetLimits] cannot change that, but it does replace the plan, so the lock must be
// held.
func (f *flow) capped() bool { return f.bucket.cap != noCap }

// seats returns how many requests may have a seat, in a flow with a cap.
func (f *flow) seats() int {
	if f.bucket.cap == grantedCap {
		return int(f.bucket.rareOrNew().seats)
	}
	return f.bucket.limits.InFlight
}

// freeSeats returns how many more requests may leave, in a flow with a cap. More seats may be taken than there are.
//
// It is not inlined, so that hasSeat is: most flows have no cap.
//
//go:noinline
func (f *flow) freeSeats() int { return f.seats() - f.seatsTaken() }

// hasSeat reports whether the cap lets one more request leave.
func (f *flow) hasSeat() bool { return !f.capped() || f.freeSeats() > 0 }
