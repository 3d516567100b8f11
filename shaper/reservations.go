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

func (rs *reservations) settled() *settlements { return &rs.settlements }

func (rs *reservations) rescaled(b *bucket, from exact.Interval) { rs.Rescale(from, b.interval) }

func (rs *reservations) leaves(d *dispatcher, f *flow, b *bucket, w *waiter, by leaving) {
	if b.returns {
		return
	}
	v, isShadow := rs.shadows[w]
	if isShadow {
		rs.forgetShadow(w)
		if v.stands {
			return
		}
	}
	number := rs.Add(b.interval, f.bucket.departures, b.levelAt(by.slot, by.rounded))
	if !isShadow {
		return // The call is told by leave.
	}
	if v.number = number; v.early != 0 {
		rs.settleLocked(d, f, b, by.now, number, v.early)
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
	with     companions  // of its request; the reservation is the account
	isOver   atomic.Bool // it has been settled

	// The lock guards these, as the shadow of a request leaves after its call has returned.
	stands  bool         // it has been settled before that, and its estimate stands
	refused bool         // its shadow was refused in line, by Close or at its bound, so there is nothing to settle
	isOwn   bool         // the level is the flow's own; else the estimate stands whatever it costs. Set by a decision
	number  uint64       // in the book of the flow; 0: its shadow is still in line
	numbers *moreNumbers // in the books of further levels; nil: it has no estimates there
	early   int64        // by how much it was too great, if it has been settled before its shadow left

	// A decision sets this, under the lock.
	of *reservations // of the flow; nil: there is nothing to settle in the bucket
}

// moreNumbers are the numbers of a reservation in the books of further levels; 0: it is in none.
type moreNumbers [maxMore]uint64

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
	if v.numbers != nil {
		v.settleCosts([]int{actual}) // The estimates at further levels stand.
		return
	}
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
func (v *reservation) notSent() {
	if v.numbers != nil {
		v.settleEach(make([]int, 1+maxMore)...)
		return
	}
	v.settle(0)
}

// charge charges the bucket of a key, or of a Shaper, n units now.
func (v *reservation) charge(n int64) {
	if v.holder != nil {
		v.holder.charge(n)
		return
	}
	now := v.d.lockFlow(v.f)
	defer v.d.unlockAndArm()
	v.d.chargeLocked(v.f, &v.f.bucket, now, n)
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
		v.of.settleLocked(v.d, v.f, &v.f.bucket, now, v.number, over)
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

// countMore is countReserved for the estimates at further levels, or with a sign of -1 subtracts them.
func (v *reservation) countMore(sign int64) {
	if v.of == nil {
		return
	}
	for i, estimate := range v.with.outlay.costs {
		if estimate > 0 {
			v.d.further.buckets()[i].ledger().settled().reserved.Add(sign * estimate)
		}
	}
}

// admitted begins a reservation whose request has been admitted to a flow.
func (v *reservation) admitted(d *dispatcher, f *flow) *reservations {
	v.of = f.bucket.reservations()
	v.isOwn = f.remote() == nil
	return v.of
}

func (v *reservation) pass(d *dispatcher, f *flow, now int64) {
	b := &f.bucket
	if rs := v.admitted(d, f); v.isOwn {
		v.number = rs.Add(b.interval, b.departures, b.levelAt(exact.At(now), false))
	}
	if v.numbers != nil {
		v.passMore(d, f, now)
	}
}

// passMore is pass for further levels.
func (v *reservation) passMore(d *dispatcher, f *flow, now int64) {
	for i := range d.further.buckets() {
		b := &d.further.buckets()[i]
		if rs := b.reservations(); v.with.outlay.costs[i] > 0 && !b.returns {
			v.numbers[i] = rs.Add(b.interval, f.bucket.departures, b.levelAt(exact.At(now), false))
		}
	}
}

func (v *reservation) enter(d *dispatcher, f *flow, w *waiter) {
	rs := v.admitted(d, f)
	if v.isOwn {
		w.traits |= accounted
	}
	if v.numbers != nil {
		for i := range d.further.buckets() {
			d.further.buckets()[i].reservations()
		}
	}
	if v.isOwn && w.ready == nil && w.parker == nil { // No goroutine waits on it.
		if rs.shadows == nil {
			rs.shadows = make(map[*waiter]*reservation)
		}
		rs.shadows[w] = v
	}
}

func (v *reservation) leave(w *waiter) {
	v.number = v.of.NumberOf(w.departureNo)
	if v.numbers != nil {
		v.leaveMore(w)
	}
}

// leaveMore is leave for further levels.
func (v *reservation) leaveMore(w *waiter) {
	for i, estimate := range v.with.outlay.costs {
		if estimate > 0 {
			v.numbers[i] = v.d.further.buckets()[i].reservations().NumberOf(w.departureNo)
		}
	}
}

// settleLocked settles the reservation with a number in a bucket of the flow that it has left. The reservation was too
// great by over, or too small if over is negative.
func (rs *reservations) settleLocked(d *dispatcher, f *flow, b *bucket, now int64, number uint64, over int64) {
	switch {
	case f.remote() != nil: // Its level is not the bucket's.
	case over > 0 && b.returns:
		rs.returnLocked(d, f, b, now, over)
	case over > 0:
		rest, back, ok := rs.GiveBack(b.interval, b.levelAt(exact.At(now), false), number, over)
		if ok {
			b.lowerTo(rest, now)
		}
		d.countSettledLocked(b, uint64(back), 0, uint64(over-back))
		f.notBefore(now)
	default:
		rs.Drop(b.interval, number)
		d.chargeLocked(f, b, now, -over)
	}
}

// returnLocked settles a reservation that was too great by over in a bucket to which all comes back: the level falls by
// over, or as far as it is above 0.
func (rs *reservations) returnLocked(d *dispatcher, f *flow, b *bucket, now, over int64) {
	back := int64(0)
	if !b.interval.IsZero() {
		var rest settle.Level
		rest, back = settle.Lower(b.interval, b.levelAt(exact.At(now), false), over)
		b.lowerTo(rest, now)
	}
	d.countSettledLocked(b, uint64(back), 0, uint64(over-back))
	f.notBefore(now)
}

// chargeLocked charges a bucket of a flow. A charge is as a departure, which no request makes.
func (d *dispatcher) chargeLocked(f *flow, b *bucket, now, n int64) {
	if f.remote() == nil {
		b.leave(exact.At(now), n)
		d.countSettledLocked(b, 0, uint64(n), 0)
	}
}

// settleEach is what ReserveEach returns for a flow with further levels: settle for all of them at one instant.
func (v *reservation) settleEach(actual ...int) {
	defer v.releaseSeat()
	v.settleCosts(actual)
}

// settleCosts is settleEach without the seat.
func (v *reservation) settleCosts(actual []int) {
	if v.isOver.Swap(true) {
		return
	}
	if v.of != nil {
		v.countReserved(-v.estimate)
	}
	v.countMore(-1)
	now := v.d.lockFlow(v.f)
	defer v.d.unlockAndArm()
	changed := v.settleActualLocked(&v.f.bucket, now, v.number, v.estimate, actual, 0)
	for i := range v.d.further.buckets() {
		changed = v.settleActualLocked(&v.d.further.buckets()[i], now, v.numbers[i], v.with.outlay.costs[i], actual, i+1) || changed
	}
	if changed {
		v.d.retimeLocked(v.f, now)
	}
}

// settleActualLocked settles an estimate in a bucket with the actual cost at an index, and reports whether that may have
// changed the level.
func (v *reservation) settleActualLocked(b *bucket, now int64, number uint64, estimate int64, actual []int, at int) bool {
	if b.idleUntil(now); at >= len(actual) || actual[at] < 0 || int64(actual[at]) == estimate {
		if rs, _ := b.ledger().(*reservations); rs != nil {
			rs.Drop(b.interval, number)
		}
		return false
	}
	b.reservations().settleLocked(v.d, v.f, b, now, number, estimate-int64(actual[at]))
	return true
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
	if f.remote() == nil && f.bucket.atMost(now, n) {
		d.retimeLocked(f, now)
	}
}

// atMost is AtMost for a bucket that has its level, and reports whether the level has risen.
func (b *bucket) atMost(now int64, n int) bool {
	room := b.burst - int64(max(n, 0))
	if room <= 0 || b.interval.IsZero() {
		return false
	}
	empty := b.interval.Plus(exact.At(now), b.interval.Times(room))
	if b.interval.Compare(empty, nil, b.empty, b.roundedUpBy()) <= 0 {
		return false
	}
	b.leave(exact.At(now), 0) // To giveBack the rise of the level is as a departure, which no request makes.
	b.setEmpty(empty, nil)
	return true
}

// countSettledLocked counts a settlement for a bucket, and in a [Group] for all.
func (d *dispatcher) countSettledLocked(b *bucket, givenBack, charged, forfeited uint64) {
	b.reservations().count(givenBack, charged, forfeited)
	if d.totals != nil {
		d.totals.count(givenBack, charged, forfeited)
	}
}
