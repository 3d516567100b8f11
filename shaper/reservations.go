package shaper

import (
	"sync/atomic"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/internal/settle"
)

// reservations are the ledger of a bucket that requests of Reserve have left.
type reservations struct {
	settle.Book

	// shadows are the reservations in the line of a dry run, whose calls have returned. It is nil if there are
	// none, as a map does not shrink.
	shadows map[*waiter]*reservation

	settlements
}

// reservations returns the ledger of a bucket, and makes it if there is none.
func (b *bucket) reservations() *reservations {
	c := b.coldOrNew()
	switch {
	case c.rare == nil:
		both := new(struct {
			rare
			reservations
		})
		both.rare.ledger = &both.reservations
		c.rare = &both.rare
	case c.rare.ledger == nil:
		c.rare.ledger = new(reservations)
	}
	return c.rare.ledger.(*reservations)
}

func (rs *reservations) rises(b *bucket, at exact.Nanos, rounded bool) {
	if rs.Len() > 0 {
		rs.Rises(b.interval, b.levelAt(at, rounded))
	}
}

func (rs *reservations) emptied() { rs.Forget() }

func (rs *reservations) rescaled(b *bucket, from exact.Interval) { rs.Rescale(from, b.interval) }

func (rs *reservations) leaves(d *dispatcher, ln *line, w *waiter, now int64) {
	v, isShadow := rs.shadows[w]
	if isShadow {
		rs.forgetShadow(w)
		if v.stands {
			return
		}
	}
	b := &ln.flow.bucket
	number := rs.Add(b.interval, b.departures, b.levelAt(ln.since, b.rare.sinceRounded))
	if !isShadow {
		return // The call is told by leave.
	}
	if v.number = number; v.early != 0 {
		v.settleLocked(d, ln.flow, now, v.early)
		b.sinceIsWhole()
	}
}

func (rs *reservations) givesUp(b *bucket, w *waiter) {
	if w.state == departed {
		rs.Drop(b.interval, rs.NumberOf(w.departureNo))
	}
	if v := rs.shadows[w]; v != nil {
		rs.forgetShadow(w)
		v.refused = true
	}
}

func (rs *reservations) forgetShadow(w *waiter) {
	delete(rs.shadows, w)
	if len(rs.shadows) == 0 {
		rs.shadows = nil
	}
}

// levelAt returns the level at an instant, which is no later than that at which it is 0. If the instant is
// rounded, it is so by as much as empty.
func (b *bucket) levelAt(at exact.Nanos, rounded bool) settle.Level {
	l := settle.Level{Span: b.interval.Minus(b.empty, at)}
	if !rounded {
		l.Excess = b.roundedUpBy()
	}
	return l
}

// A reservation is a request of Reserve that has left, until it is settled.
type reservation struct {
	estimate int64
	d        *dispatcher // of the flow; nil: there is no flow, as the request has cost nothing so far
	f        *flow       // that it has left
	seat     *seat       // nil: it has none
	holder   holder      // of a key; nil: of a Shaper, or the estimate stands
	isOver   atomic.Bool // it has been settled
	with     companions  // of its request; the reservation is the account

	// A decision sets these, under the lock.
	of    *reservations // of the flow; nil: there is nothing to settle in the bucket
	isOwn bool          // the level is the flow's own; else the estimate stands whatever it costs

	// The lock guards these, as the shadow of a request leaves after its call has returned.
	number  uint64 // in the book of the flow; 0: its shadow is still in line
	early   int64  // by how much it was too great, if it has been settled before its shadow left
	stands  bool   // it has been settled before that, and its estimate stands
	refused bool   // its shadow was refused in line, by Close or at its bound, so there is nothing to settle
}

// A holder is a key whose bucket a request has left.
type holder interface {
	charge(n int64)      // charges the bucket that the key has now; the lock is not held
	mayBeDrainedLocked() // the level of the bucket that the request has left has been lowered
}

func newReservation(estimate int) *reservation {
	v := &reservation{estimate: int64(estimate)}
	v.with.account = v
	return v
}

// begin returns the reservation of a request whose call has ended with err, in a flow; nil with an
// error.
func (v *reservation) begin(r *request, d *dispatcher, f *flow, err error) (*reservation, error) {
	v.d, v.f, v.seat = d, f, r.seat
	if err != nil {
		return nil, err
	}
	if v.of != nil {
		v.countReserved(v.estimate)
	}
	return v, nil
}

// orNothing returns settle, or for nil a function that does nothing.
func (v *reservation) orNothing() (settle func(actual int)) {
	if v == nil {
		return settleNothing
	}
	return v.settle
}

// settle is what Reserve returns.
func (v *reservation) settle(actual int) {
	defer v.releaseSeat()
	v.settleCost(actual)
}

func (v *reservation) releaseSeat() {
	if v.seat != nil {
		v.seat.free(v.d, v.f)
	}
}

func (v *reservation) settleCost(actual int) {
	if v.isOver.Swap(true) {
		return
	}
	if v.of != nil {
		v.countReserved(-v.estimate)
	}
	over := v.estimate - int64(actual)
	switch {
	case !v.isOwn && v.estimate > 0: // The level is not the flow's own, or a dry run has refused it.
	case actual < 0 || over == 0:
		if v.isOwn {
			v.settleUnchanged()
		}
	case !v.isOwn || over < 0 && v.holder != nil:
		if !v.isOwn || v.settleUnchanged() {
			v.charge(-over)
		}
	default:
		v.settleWith(over)
	}
}

// notSent settles for a request that has not been sent after all.
func (v *reservation) notSent() { v.settle(0) }

// charge charges the bucket of a key, or of a Shaper, n units now.
func (v *reservation) charge(n int64) {
	if v.holder != nil {
		v.holder.charge(n)
		return
	}
	now := v.d.lockFlow(v.f)
	defer v.d.unlockAndArm()
	v.f.chargeLocked(v.d, now, n)
	v.d.retimeLocked(v.f, now)
}

// settleWith settles a reservation that was too great by over, or too small if over is negative.
func (v *reservation) settleWith(over int64) {
	now := v.d.lockFlow(v.f)
	defer v.d.unlockAndArm()
	switch {
	case v.refused:
		return
	case v.number == 0:
		v.early = over
	default:
		v.settleLocked(v.d, v.f, now, over)
	}
	v.d.retimeLocked(v.f, now)
	if over > 0 && v.holder != nil {
		v.holder.mayBeDrainedLocked()
	}
}

// settleUnchanged settles a reservation whose estimate stands, and reports whether there is something to settle.
func (v *reservation) settleUnchanged() bool {
	v.d.mu.Lock()
	defer v.d.mu.Unlock()
	v.stands = true
	v.of.Drop(v.f.bucket.interval, v.number)
	return !v.refused
}

// countReserved adds to the gauges of units that are reserved. It needs no lock, so that Reserve
// takes it only once.
func (v *reservation) countReserved(n int64) {
	v.of.reserved.Add(n)
	if v.d.totals != nil {
		v.d.totals.reserved.Add(n)
	}
}

// admitted begins a reservation whose request has been admitted to a flow.
func (v *reservation) admitted(d *dispatcher, f *flow) *reservations {
	v.of = f.bucket.reservations()
	v.isOwn = f.level() == nil
	return v.of
}

func (v *reservation) pass(d *dispatcher, f *flow, now int64) {
	b := &f.bucket
	if rs := v.admitted(d, f); v.isOwn {
		v.number = rs.Add(b.interval, b.departures, b.levelAt(exact.At(now), false))
	}
}

func (v *reservation) enter(d *dispatcher, f *flow, w *waiter) {
	rs := v.admitted(d, f)
	if v.isOwn {
		w.traits |= accounted
	}
	if v.isOwn && w.ready == nil && w.parker == nil { // No goroutine waits on it.
		if rs.shadows == nil {
			rs.shadows = make(map[*waiter]*reservation)
		}
		rs.shadows[w] = v
	}
}

func (v *reservation) leave(w *waiter) { v.number = v.of.NumberOf(w.departureNo) }

// settleLocked settles a reservation that has left the flow, and was too great by over, or too small if over is negative.
func (v *reservation) settleLocked(d *dispatcher, f *flow, now, over int64) {
	b := &f.bucket
	switch {
	case f.level() != nil: // Its level is not the bucket's.
	case over > 0:
		rest, back, ok := v.of.GiveBack(b.interval, b.levelAt(exact.At(now), false), v.number, over)
		if ok {
			b.lowerTo(rest, now)
		}
		d.countSettledLocked(f, uint64(back), 0, uint64(over-back))
		f.notBefore(now)
	default:
		v.of.Drop(b.interval, v.number)
		f.chargeLocked(d, now, -over)
	}
}

// chargeLocked charges the bucket of a flow. A charge is as a departure, which no request makes.
func (f *flow) chargeLocked(d *dispatcher, now, n int64) {
	if f.level() == nil {
		f.bucket.leave(exact.At(now), n)
		d.countSettledLocked(f, 0, uint64(n), 0)
	}
}

// lowerTo lowers the level to a rest.
func (b *bucket) lowerTo(rest settle.Level, now int64) {
	at := exact.At(now)
	empty := b.interval.Plus(at, rest.Span)
	switch {
	case rest.IsZero():
		b.setEmpty(at, nil)
	case rest.Excess == nil:
		b.setEmpty(empty, nil)
	default:
		b.setEmpty(b.interval.Add(empty, rest.Excess, 0))
	}
}

// retimeLocked re-times the line of a flow after its level has changed.
func (d *dispatcher) retimeLocked(f *flow, now int64) {
	if f.line != nil {
		d.watcher.rescheduled(f.line)
		d.watcher.newHead(f.line, now)
	}
	d.markDirtyLocked(f)
	d.advanceLocked(now, headFirst)
}

// atMost is AtMost for a flow.
func (f *flow) atMost(d *dispatcher, now int64, n int) {
	b := &f.bucket
	room := b.burst - int64(max(n, 0))
	if room <= 0 || b.interval.IsZero() || f.level() != nil {
		return
	}
	empty := b.interval.Plus(exact.At(now), b.interval.Times(room))
	if b.interval.Compare(empty, nil, b.empty, b.roundedUpBy()) <= 0 {
		return
	}
	b.leave(exact.At(now), 0) // To giveBack the rise of the level is as a departure, which no request makes.
	b.setEmpty(empty, nil)
	d.retimeLocked(f, now)
}

// countSettledLocked counts a settlement for a flow, and in a [Group] for all.
func (d *dispatcher) countSettledLocked(f *flow, givenBack, charged, forfeited uint64) {
	f.bucket.reservations().count(givenBack, charged, forfeited)
	if d.totals != nil {
		d.totals.count(givenBack, charged, forfeited)
	}
}

// settled returns the counts of settlements of a flow, to be read.
func (f *flow) settled() *settlements {
	if rs, _ := f.bucket.ledger().(*reservations); rs != nil {
		return &rs.settlements
	}
	return &noSettlements
}

// noSettlements are the counts of a flow without settlements. It is only read.
var noSettlements settlements
