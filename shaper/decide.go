package shaper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"

	"example.com/leakybucket/internal/exact"
)

// companions are what few requests have beside them.
type companions struct {
	account account // nil: no ledger keeps one
	outlay  *outlay // nil: it costs nothing at further levels, and its turn costs the same
}

// costs returns what a request costs at further levels; nil: nothing.
func (r *request) costs() *moreCosts {
	if r.with == nil || r.with.outlay == nil {
		return nil
	}
	return &r.with.outlay.costs
}

// outlay returns the outlay of a request in a flow with further levels, and makes it if there is none.
func (r *request) outlay() *outlay {
	if r.with == nil {
		r.with = new(companions)
	}
	if r.with.outlay == nil {
		r.with.outlay = new(outlay)
	}
	return r.with.outlay
}

// checkCosts returns the costs of a call at the level of the bucket of a flow, and at further levels; or an error if there
// are more or fewer than levels, or one is negative. The lock need not be held.
func (d *dispatcher) checkCosts(call string, given []int) (n int64, more moreCosts, err error) {
	levels := 1
	if d.attachments != nil && d.further != nil {
		levels += len(d.further.buckets())
	}
	if len(given) != levels {
		return 0, more, fmt.Errorf("shaper: %s has %d costs, must have %d: one for the Limits and one for each meter", call, len(given), levels)
	}
	for i, cost := range given {
		switch {
		case cost < 0:
			return 0, more, ErrNegativeCost
		case i > 0:
			more[i-1] = int64(cost)
		}
	}
	return int64(given[0]), more, nil
}

// isFree reports whether a request costs nothing at any level.
func (r *request) isFree() bool {
	return r.cost == 0 && (r.costs() == nil || *r.costs() == moreCosts{})
}

// takesTurn notes what the turn of a request costs, at the rates that are in force now.
func (r *request) takesTurn(d *dispatcher) {
	if d.ordered && d.further != nil {
		o := r.outlay()
		o.turn = d.further.turnOf(r.cost, &o.costs)
	}
}

// An account is kept for a request by the ledger of the bucket that it leaves. The lock is held when it is told
// of the request.
type account interface {
	pass(d *dispatcher, f *flow, now int64)  // it has left as it came
	enter(d *dispatcher, f *flow, w *waiter) // it enters the line
	leave(w *waiter)                         // its call is told that it has left the line
}

// errUseAcquire is for calls that would not say when they end.
var errUseAcquire = errors.New("shaper: Limits.InFlight is set, or the InFlight of a Bucket's Options: use Acquire or Do, which give the seat back")

// checkCall checks the cost and the context of a request before the lock is taken, and
// notes the context's deadline.
func (r *request) checkCall(d *dispatcher) error {
	if err := checkCostAndContext(r.cost, r.ctx); err != nil {
		return err
	}
	r.deadline = exact.Forever
	if deadline, timed := r.ctx.Deadline(); timed {
		r.deadline = d.instantOf(deadline)
	}
	return nil
}

// checkCostAndContext returns the error of a call with a bad cost or an ended context.
func checkCostAndContext(n int64, ctx context.Context) error {
	if n < 0 {
		return ErrNegativeCost
	}
	return ctx.Err()
}

// untilDeadline returns the time from now to a request's deadline; forever if it has
// none.
func untilDeadline(deadline, now int64) time.Duration {
	if deadline == exact.Forever {
		return exact.Forever
	}
	return timeUntil(deadline, now)
}

// decideLocked decides upon a request of cost n > 0 that has found its flow:
// it leaves at once, is refused, or enters the line; or its level is to be asked. The caller
// unlocks, and if there are hooks, or for any event from enqueuedEvent on, it then calls ask if
// the level is to be asked, and announce.
func (d *dispatcher) decideLocked(f *flow, now int64, r *request) decision {
	r.entered = now
	switch {
	case r.mustTellEnd(d, f):
		return decision{err: errUseAcquire}
	case !d.plain:
		return d.decideAttachedLocked(f, now, r)
	case r.kind != reentry && d.phase == open && r.deadline > now && f.waiting() == 0 && f.hasSeat() && !f.bucket.tooCostly(r.cost):
		// Only the level or a hold can keep it. Most requests leave here, and are spared the rest.
		switch wait := f.bucket.wait(now, 0, r.cost); {
		case wait == 0:
			return d.passLocked(f, now, r)
		case r.kind == allow: // The Depth is as 0, so there is nothing to compute.
			return d.refuseLocked(f, now, r, rejection{reason: refusedFull, retryAfter: wait, also: withoutLine})
		}
	}
	return d.admitLocked(f, now, r, d.judgeLocked(f, now, r))
}

// decideAttachedLocked is decideLocked for a dispatcher that is not plain. Plain ones never get here, so
// they do not pay for asking what is attached.
func (d *dispatcher) decideAttachedLocked(f *flow, now int64, r *request) decision {
	if lv := f.remote(); lv != nil {
		return d.decideByLevelLocked(lv, f, now, r)
	}
	r.takesTurn(d)
	if r.kind == reentry && d.letsAllThrough() {
		r.kind = newcomer
		if c := r.claim(); c != nil {
			r.ctx = &claim{c.Context, unknown, c.until}
		}
	}
	j := d.judgeLocked(f, now, r)
	dec := d.admitLocked(f, now, r, j)
	if d.gate != nil {
		dec, r.verdict = d.gate.decided(dec, j)
	}
	return dec
}

// decideByLevelLocked is decideLocked for a flow with a level.
func (d *dispatcher) decideByLevelLocked(lv remote, f *flow, now int64, r *request) decision {
	answer, why := lv.decide(now, r.cost, r.deadline, r.kind)
	switch answer {
	case passes:
		dec := d.passLocked(f, now, r)
		lv.passed(r.cost)
		return dec
	case refuses:
		return d.refuseLocked(f, now, r, why)
	case isFull:
		return d.refuseFullLocked(f, now, r, why.retryAfter)
	case mustAsk:
		return decision{event: askEvent}
	}
	j := d.judgeLocked(f, now, r)
	if answer == estimates {
		j.wait = max(j.wait, 1)
	}
	return d.admitLocked(f, now, r, j)
}

// refuseFullLocked refuses a request as its level is too high, for a time after at least.
func (d *dispatcher) refuseFullLocked(f *flow, now int64, r *request, after time.Duration) decision {
	why := rejection{reason: refusedFull, retryAfter: after, also: withoutLine}
	if d.gate != nil {
		why = d.gate.judge(f, now, why)
	}
	return d.admitLocked(f, now, r, judgement{refusal: why})
}

// admitLocked refuses a request, lets it leave at once, or puts it into the line, as it was
// judged.
func (d *dispatcher) admitLocked(f *flow, now int64, r *request, j judgement) decision {
	switch {
	case j.refusal.reason != notRefused:
		if d.gate != nil {
			d.gate.refused(f, now, j.refusal.reason)
		}
		return d.refuseLocked(f, now, r, j.refusal)
	case j.wait == 0:
		return d.passLocked(f, now, r)
	case d.phase == draining && d.waiting == 0 && d.host != nil && !d.host.drains(true): // Only a reentry is not refused while the line drains.
		return d.refuseLocked(f, now, r, rejection{reason: refusedClosed})
	}
	if d.ordered {
		return d.admitInOrderLocked(f, now, r)
	}
	w := d.enqueueLocked(f, now, r)
	return decision{waiter: w, waiting: f.line.len, event: enqueuedEvent}
}

// admitInOrderLocked puts a request into a line with an order, which may refuse another one for it.
//
// It is not inlined, so that its frame is not there for others.
//
//go:noinline
func (d *dispatcher) admitInOrderLocked(f *flow, now int64, r *request) decision {
	var over *waiter
	if r.kind == newcomer && f.waiting() > 0 {
		v := f.viewFor(now, r.cost)
		if over = f.line.outlasting(&v, r); over != nil {
			f.line.refuseLocked(d, over, now, pushedOut)
		}
	}
	w := d.enqueueLocked(f, now, r)
	if over != nil {
		v := f.view()
		f.line.order.pushedOut(over, v.nextLeavesIn(now, f.line))
	}
	return decision{waiter: w, waiting: f.line.len, event: enqueuedEvent}
}

// mustTellEnd reports whether a request would take a seat, and its caller would not say
// when it ends. An allow on a dispatcher that is no longer open is refused anyway.
// [Shaper.WaitN] asks this itself, before it checks the call: with a cap it returns errUseAcquire
// for a negative cost and an ended context, too.
func (r *request) mustTellEnd(d *dispatcher, f *flow) bool {
	return f.capped() && !r.tellsEnd && (r.kind != allow || d.phase == open)
}

// passLocked lets a request that may leave at once do so.
func (d *dispatcher) passLocked(f *flow, now int64, r *request) decision {
	f.bucket.pass(now, r.cost)
	f.bucket.noteLeftAt(now)
	if r.with != nil {
		if f.bucket.several {
			d.further.pass(now, r.cost, r.with.outlay)
		}
		if r.with.account != nil {
			r.with.account.pass(d, f, now)
		}
	}
	if f.capped() {
		f.lineOrNew().seatsTaken++
		r.seat = d.seats.take(f, f.bucket.departures, now)
	}
	f.countPass(d.totals, now)
	return decision{event: departedEvent} // Nobody is in line, or it would wait behind them.
}

// refuseLocked refuses a request. It makes an error only if that is seen.
func (d *dispatcher) refuseLocked(f *flow, now int64, r *request, why rejection) decision {
	f.countRefusal(d.totals, now, now, why.reason)
	err := d.watcher.refused(now, r.cost, r.key, why, r.kind != allow || d.trace.Refused != nil)
	return decision{err: err, waiting: int32(f.waiting()), event: refusedEvent}
}

// enqueueLocked puts a request into the line of a flow.
func (d *dispatcher) enqueueLocked(f *flow, now int64, r *request) *waiter {
	ln := f.lineOrNew()
	w := d.waiters.takeFor(r, now, !d.letsAllThrough(), &d.mu)
	if r.with != nil && r.with.account != nil {
		r.with.account.enter(d, f, w)
	}
	if f.bucket.several {
		d.further.enter(w, r.outlay())
	} else if lv := f.remote(); lv != nil && r.kind != reentry {
		lv.enters(now, r.cost)
	}
	head := ln.head
	if ln.enter(w, r); ln.head != head {
		ln.beginHead(now)
		if ln.len == 1 {
			d.watcher.begins(ln, now)
		} else {
			d.watcher.newHead(ln, now)
		}
	}
	if f.bucket.inLine > 0 || r.claim() != nil {
		f.addBound(&d.waiters, w, r.boundOf(f.bucket.plan, now))
	}
	d.waiting++
	d.markDirtyLocked(f)
	return w
}

// judgeLocked judges a request.
func (d *dispatcher) judgeLocked(f *flow, now int64, r *request) (j judgement) {
	switch {
	case r.kind == reentry:
		return f.judgeReentry(now, r, d.phase)
	case d.phase != open:
		j.refusal = rejection{reason: refusedClosed, retryAfter: f.emptyIn(now)}
		return j
	}
	if d.ordered && r.kind == newcomer && f.waiting() > 0 && f.bucket.limits.Depth > 0 {
		return f.line.order.judge(f, now, r.turn())
	}
	v := f.viewFor(now, r.cost)
	if r.kind != allow {
		v.findRoom(f.line)
	}
	leaves := int64(0)
	if f.bucket.several {
		leaves = f.leavesLast(&v, r.cost, r.costs())
	} else {
		leaves = v.leaves(r.cost)
	}
	j.wait, j.refusal = v.judge(now, leaves, r)
	if d.gate != nil {
		j.refusal = d.gate.judge(f, now, j.refusal)
	}
	return j
}

// judge is judgeLocked for a newcomer whose view.leaves is known, while the dispatcher is open and
// has no gate. The order of the checks is part of the contract.
func (v *view) judge(now, leaves int64, r *request) (wait time.Duration, why rejection) {
	if leaves == neverFits {
		return 0, rejection{reason: refusedCostly}
	}
	wait = timeUntil(leaves, now)
	if wait == 0 && !(v.waiting == 0 && (v.cap == noCap || v.seatsTaken < v.seats)) {
		wait = 1 // It is unknown when a seat becomes free; but not now.
	}
	if wait > 0 && v.isFull(r.kind) {
		why.reason = refusedFull
		if v.depthFor(r.kind) == 0 {
			why.also = withoutLine
		}
	} else if why = v.lateness(now, wait, r.ends()); why.reason == notRefused {
		return wait, why
	}
	why.retryAfter = v.retryAfter(now, wait, r.ends(), r.kind)
	return wait, why
}

// lateness returns the reason to refuse a request that would have to wait for the time wait, or
// none if wait is not too long. RetryAfter is not set.
func (v *view) lateness(now int64, wait time.Duration, ends ends) (why rejection) {
	if timeLeft := untilDeadline(ends.deadline, now); timeLeft < exact.Forever && wait >= timeLeft {
		why.reason, why.also = refusedLate, missedDeadline
	} else if wait > v.longestWait(now, ends) {
		why.reason = refusedLate
	}
	return why
}

// judgeReentry is judgeLocked for a reentry: only those like it are ahead of it, and only
// its deadline or Close refuses it. It was admitted before, so no gate is asked.
func (f *flow) judgeReentry(now int64, r *request, p phase) (j judgement) {
	if p == closed {
		j.refusal.reason = refusedClosed
		return j
	}
	v := f.view()
	j.wait = timeUntil(f.leavesBehind(&v, f.before(r), r.cost, r.costs()), now)
	if j.wait == 0 && !(f.waiting() == 0 && f.hasSeat()) {
		j.wait = 1 // The line is at rest for a while, and so is this one.
	}
	if timeLeft := untilDeadline(r.deadline, now); timeLeft < exact.Forever && j.wait >= timeLeft {
		j.refusal = rejection{reason: refusedLate, retryAfter: max(j.wait-timeLeft+1, v.seatIn(1)), also: missedDeadline}
	}
	if late := exact.Sum(now, int64(j.wait)) - r.boundOf(f.bucket.plan, now); late > 0 {
		j.refusal.reason, j.refusal.retryAfter = refusedLate, max(j.refusal.retryAfter, time.Duration(late), v.seatIn(1))
	}
	return j
}

// longestWait returns how long a newcomer may be predicted to wait: [Limits.MaxWait], or its default, and not
// beyond its bound; at most horizon.
func (v *view) longestWait(now int64, ends ends) time.Duration {
	longest := v.limits.MaxWait
	if longest == 0 || longest > horizon {
		longest = horizon
	}
	if v.inLine > 0 {
		longest = min(longest, v.inLine)
	}
	return min(longest, timeUntil(ends.bound, now))
}

// depthFor returns how many may wait for a request to enter the line behind them.
func (v *view) depthFor(kind entryKind) int {
	if kind == allow {
		return 0
	}
	return min(v.limits.Depth, math.MaxInt-int(v.placeless)) + int(v.placeless)
}

// isFull reports whether no more may wait behind those in line.
func (v *view) isFull(kind entryKind) bool { return int(v.waiting) >= v.depthFor(kind) }

// tooCostly reports whether a request of cost n can never fit: it would hold the bucket
// beyond the horizon, or it is above Burst and nothing may wait, as Depth is 0. At
// rate.Inf nothing is too costly.
func (p *plan) tooCostly(n int64) bool {
	if p.interval.IsZero() {
		return false
	}
	return p.limits.Depth == 0 && n > p.burst || p.interval.Times(n).Exceeds(horizon)
}

// retryAfter returns the time after which the same call, with the same time left to its
// deadline, would be admitted if those in line stay and no other request comes. The call
// would have to wait for at least bound.
//
// It need not come later than its own departure would be: then it would leave at once.
// Before that it needs a place in the line, a wait within [Limits.MaxWait], and a slot before its
// deadline; all three only get better with time, each from one instant on. While all
// seats are taken nothing moves, so then the result is an estimate, no shorter than the
// one for the next seat.
func (v *view) retryAfter(now int64, bound time.Duration, ends ends, kind entryKind) time.Duration {
	if v.depthFor(kind) == 0 {
		return v.expected(bound)
	}
	timeLeft := max(untilDeadline(ends.deadline, now), 1) // It may be 0, but to come later than at bound would not help.
	wait, after := bound, max(0, bound-v.longestWait(now, ends), bound-timeLeft+1)
	if v.roomLeaves > 0 {
		after = max(after, timeUntil(v.roomLeaves, now), 1) // As leavesIn, but for the seat.
	}
	if v.cap != noCap {
		wait, after = v.expected(bound), max(after, v.seatIn(max(v.roomPlace(), 1)))
	}
	return min(wait, after)
}

// leavesIn returns how long a request in line has still to wait.
func (v *view) leavesIn(now int64, w linePlace) time.Duration {
	return max(timeUntil(w.leaves, now), v.seatIn(w.place), 1) // As it has not left yet.
}

// nextLeavesIn returns how long it takes until the head of a line leaves.
func (v *view) nextLeavesIn(now int64, ln *line) time.Duration {
	return v.leavesIn(now, v.placeBehind(ln.flow, load{}, ln.head))
}

// seatIn estimates how long it takes until the k-th in line, from 1, has a seat: 0 if
// there are seats now for it and all ahead of it, and in a dry run. It is unknown when
// requests end. On average as many of them as there are seats end within the mean time for which
// seats are taken; where a level has granted none so far, it counts as one.
func (v *view) seatIn(k int) time.Duration {
	toEnd := k + int(v.seatsTaken) - int(v.seats) // More may be taken than there are, after SetLimits.
	if v.cap == noCap || toEnd <= 0 {
		return 0
	}
	seats := max(int(v.seats), 1)
	high, low := bits.Mul64(uint64(toEnd), uint64(v.seatTime))
	if high >= uint64(seats) {
		return time.Duration(exact.Forever)
	}
	estimate, _ := bits.Div64(high, low, uint64(seats))
	return max(shortestSeatWait, time.Duration(min(estimate, exact.Forever)))
}

// expected returns for how long a newcomer is expected to wait which has to wait for
// at least bound: as much longer as it is expected to wait for a seat.
func (v *view) expected(bound time.Duration) time.Duration {
	return max(bound, v.seatIn(int(v.waiting)+1))
}

// emptyIn returns the time until the last in line has left.
func (f *flow) emptyIn(now int64) time.Duration {
	if f.waiting() == 0 {
		return 0
	}
	v := f.view()
	return v.leavesIn(now, v.placeOf(f.line, f.waiting()))
}

// A view is the state of a flow as far as it decides about newcomers: how long one would
// wait, and why it is refused.
type view struct {
	*plan
	bucketInstants
	ahead      int64 // the cost of all in line, saturating
	seatTime   int64 // as in cold
	waiting    int32
	seatsTaken int32
	seats      int32 // flow.seats, or the greatest int32
	placeless  int32 // how many of those that wait have no place, as it counts for this newcomer; see level
	roomLeaves int64 // when the request leaves with whose departure there is room for a newcomer, as linePlace.leaves, but at least 1; 0: there is some, or none ever, or findRoom was not called
}

// A linePlace is where a request stands in line, and when it is to leave.
type linePlace struct {
	place  int   // in the line, from 1
	leaves int64 // the instant at which it is to leave, if it has a seat by then
}

// view returns the view of a flow, without room.
func (f *flow) view() view {
	b, ln := &f.bucket, f.lineOrNone()
	c := b.coldOrNone()
	return view{
		plan: b.plan, bucketInstants: bucketInstants{b.empty, c.hold}, ahead: ln.cost.total(), seatTime: c.seatTime,
		waiting: ln.len, seatsTaken: ln.seatsTaken, seats: int32(min(f.seats(), math.MaxInt32)),
	}
}

// viewFor returns the view of a flow for a newcomer of a cost, without room.
func (f *flow) viewFor(now, cost int64) view {
	v := f.view()
	if lv := f.remote(); lv != nil {
		v.placeless = lv.placeless(now, cost)
	}
	return v
}

// findRoom finds the request with whose departure there is room for a newcomer that may wait.
// In a line that is longer than the Depth, as that has become smaller, it walks to it.
func (v *view) findRoom(ln *line) {
	if k := v.overfull(); k > int(v.placeless) && v.limits.Depth > 0 {
		v.roomLeaves = max(v.placeOf(ln, k).leaves, 1)
	}
}

// roomPlace returns the place of the request with whose departure there is room for a newcomer; 0 as roomLeaves.
func (v *view) roomPlace() int {
	if v.roomLeaves == 0 {
		return 0
	}
	return v.overfull()
}

// overfull returns how many in line have to leave before there is room for a newcomer.
func (v *view) overfull() int { return int(v.waiting) - v.limits.Depth + 1 }

// placeOf returns the place of the k-th request in line, from 1.
func (v *view) placeOf(ln *line, k int) linePlace {
	if v.several {
		l, next := load{}, ln.walk()
		w := next()
		for ; k > 1; k-- {
			l = ln.flow.behind(l, w)
			w = next()
		}
		return v.placeBehind(ln.flow, l, w)
	}
	w, ahead := ln.ahead(k)
	return linePlace{k, v.leavesAfter(v.bucketInstants, ahead, w.cost)}
}

// placeBehind returns the place of a request in line, which is behind a load.
func (v *view) placeBehind(f *flow, l load, w *waiter) linePlace {
	p := linePlace{place: int(l.n) + 1}
	if v.several {
		p.leaves = f.further().leavesBehind(l, w.cost, f.further().of(w))
	} else {
		p.leaves = v.leavesAfter(v.bucketInstants, l.cost, w.cost)
	}
	return p
}

// leavesBehind returns when a request with these costs leaves behind others in line.
func (f *flow) leavesBehind(v *view, l load, n int64, costs *moreCosts) int64 {
	if v.several {
		return f.further().leavesBehind(l, n, costs)
	}
	return v.leavesAfter(v.bucketInstants, l.cost, n)
}

// leavesLast is view.leaves for a flow with further levels.
func (f *flow) leavesLast(v *view, n int64, costs *moreCosts) int64 {
	if v.tooCostly(n) || f.further().tooCostly(costs) {
		return neverFits
	}
	return f.further().leavesBehind(f.inLine(), n, costs)
}

// neverFits stands for the instant at which a request would leave that can never fit.
const neverFits = math.MinInt64

// leaves returns the instant from which on a newcomer of cost n may leave, if it has a seat by
// then, or neverFits. The instant may be past. It depends neither on the clock nor on the kind of
// the request.
func (v *view) leaves(n int64) int64 {
	if v.tooCostly(n) {
		return neverFits
	}
	return v.leavesAfter(v.bucketInstants, v.ahead, n)
}
