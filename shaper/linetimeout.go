package shaper

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"slices"
	"time"

	"example.com/leakybucket/internal/exact"
)

// WithLineTimeout bounds the real wait of a request in line, where [Limits.MaxWait] bounds the predicted wait at
// entry: d after it has entered, or for a d of 0 as much after it as the MaxWait that is then in force (0: no
// bound). At its bound a request is refused with [ErrTooLate], so a lower rate, a hold, retries, requests of other
// keys or an outage make none wait longer. The bound stays, whatever limits are put in force later.
//
// A request whose slot comes at its bound is in time. A hold that ends after it refuses the request at once. A retry
// of a [Transport] has the bound that it had when it first asked its Limiter. In a [Chain] each line has a bound of
// its own. In a dry run the shadow leaves the line at its bound, and the [Verdict] stands. A negative d, or one
// above 365 days, is an error of [New] and [NewGroup].
func WithLineTimeout(d time.Duration) Option { return common{lineTimeoutOption(d)} }

type lineTimeoutOption time.Duration

func (o lineTimeoutOption) apply(to *options) { to.lineTimeout = lineTimeout{true, time.Duration(o)} }

// A lineTimeout is [WithLineTimeout], if that is set.
type lineTimeout struct {
	isSet bool
	span  time.Duration // 0: Limits.MaxWait
}

// validateLineTimeout returns an error if [WithLineTimeout] is invalid. constructor is [New] or [NewGroup].
func (o *options) validateLineTimeout(constructor string) error {
	if d := o.lineTimeout.span; d < 0 || d > horizon {
		return fmt.Errorf("shaper: %s: WithLineTimeout is %v, must be from 0 to 365 days", constructor, d)
	}
	return nil
}

// of returns for how long a request may be in a line with these [Limits]; 0: for ever.
func (t lineTimeout) of(l Limits) time.Duration {
	if !t.isSet {
		return 0
	}
	return min(cmp.Or(t.span, l.MaxWait), horizon)
}

// A bound is the instant at which a request is refused that is still in line. It may outlive the stay
// of its request: then it is stale.
type bound struct {
	at      int64
	entered int64 // waiter.at of the request in line
	number  uint64
	w       *waiter
}

// stale reports whether the request is in line no more. A waiter that stands for another request by now has
// another number, modulo 2¹⁶, or has entered at another instant.
func (b bound) stale() bool {
	return b.w.state != queued || b.w.boundNo != uint16(b.number) || b.w.at != b.entered
}

// before orders bounds by their instants, and equal ones in the order in which the requests entered.
func (b bound) before(o bound) bool {
	return b.at < o.at || b.at == o.at && b.number < o.number
}

// bounds are the bounds of those in a line. Mostly each is later than those before it, so that they
// make a list of their own, and a departure takes no time to remove one: the head of the line has the
// first bound. The others make a heap. What is stale is dropped when it comes to the front, or when
// there is more of it than of the rest.
type bounds struct {
	list  []bound // in order, from first on
	first int
	heap  boundHeap
}

// add adds the bound of a waiter that has just entered the line, which has so many now.
func (b *bounds) add(w *waiter, at int64, number uint64, inLine int32) {
	if n := len(b.list) - b.first + len(b.heap); n > 2*int(inLine)+64 {
		b.compact()
	}
	w.boundNo = uint16(number)
	added := bound{at, w.at, number, w}
	switch {
	case b.first == len(b.list):
		b.list, b.first = append(b.list[:0], added), 0
	case !added.before(b.list[len(b.list)-1]):
		b.list = append(b.list, added)
	default:
		heap.Push(&b.heap, added)
	}
}

// compact drops what is stale.
func (b *bounds) compact() {
	b.list, b.first = slices.DeleteFunc(b.list, bound.stale), 0
	b.heap = slices.DeleteFunc(b.heap, bound.stale)
	heap.Init(&b.heap)
}

// next returns the next bound, which is not stale; nil if there is none.
func (b *bounds) next() *bound {
	for b.first < len(b.list) && b.list[b.first].stale() {
		b.first++
	}
	if b.first >= 64 && b.first > len(b.list)/2 { // So it never moves more than it has dropped.
		b.list, b.first = slices.Delete(b.list, 0, b.first), 0
	}
	for len(b.heap) > 0 && b.heap[0].stale() {
		heap.Pop(&b.heap)
	}
	switch {
	case b.first == len(b.list) && len(b.heap) == 0:
		return nil
	case b.first == len(b.list), len(b.heap) > 0 && b.heap[0].before(b.list[b.first]):
		return &b.heap[0]
	}
	return &b.list[b.first]
}

// A boundHeap is a [heap.Interface].
type boundHeap []bound

func (h boundHeap) Len() int           { return len(h) }
func (h boundHeap) Less(i, j int) bool { return h[i].before(h[j]) }
func (h boundHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *boundHeap) Push(b any)        { *h = append(*h, b.(bound)) }

func (h *boundHeap) Pop() any {
	last := len(*h) - 1
	b := (*h)[last]
	(*h)[last] = bound{}
	*h = (*h)[:last]
	return b
}

// A waitContext is the context of a request that brings a bound along to its Limiters.
type waitContext struct {
	context.Context
	asked time.Time // when a request that is sent again first asked; zero: it is not sent again
	until time.Time // when it gives up by its own wish ([WithWaitField]); zero: never
}

// A claim is a waitContext as one dispatcher sees it, with instants of its clock.
type claim struct {
	context.Context
	asked int64 // unknown: it is not sent again
	until int64 // forever: never
}

// claimOf returns a waitContext as a claim, and any other context as it is.
func (o origin) claimOf(ctx context.Context) context.Context {
	w, ok := ctx.(*waitContext)
	if !ok {
		return ctx
	}
	c := &claim{w.Context, unknown, exact.Forever}
	if !w.asked.IsZero() {
		c.asked = o.instantOf(w.asked)
	}
	if !w.until.IsZero() {
		c.until = o.instantOf(w.until)
	}
	return c
}

// withoutClaim returns the context that a claim or a waitContext is made of, and any other context as it is.
func withoutClaim(ctx context.Context) context.Context {
	switch c := ctx.(type) {
	case *claim:
		return c.Context
	case *waitContext:
		return c.Context
	}
	return ctx
}

// claim returns the claim of a request; nil: it has none.
func (r *request) claim() *claim {
	c, _ := r.ctx.(*claim)
	return c
}

// boundOf returns the bound of a request that enters the line now; forever if it has none.
func (r *request) boundOf(p *plan, now int64) int64 {
	since, until := now, int64(exact.Forever)
	if c := r.claim(); c != nil {
		until = c.until
		if c.asked != unknown {
			since = c.asked
		}
	}
	if p.inLine > 0 {
		until = min(until, exact.Sum(since, int64(p.inLine)))
	}
	return until
}

// addBound notes the bound of a waiter that has just entered the line.
func (f *flow) addBound(p *waiterPool, w *waiter, at int64) {
	if at == exact.Forever {
		return
	}
	rare := f.bucket.rareOrNew()
	if rare.bounds == nil {
		rare.bounds = new(bounds)
	}
	rare.bounds.add(w, at, p.nextBoundNo(), f.line.len)
}

// forgetBounds forgets the bounds of a line that is empty now. It keeps no more memory than a pool of waiters does.
func (f *flow) forgetBounds() {
	b := f.bounds()
	switch {
	case b == nil:
	case cap(b.list)+cap(b.heap) > maxSpares:
		f.bucket.rare.bounds = nil
	default:
		clear(b.list)
		clear(b.heap)
		b.list, b.first, b.heap = b.list[:0], 0, b.heap[:0]
	}
}

// bounds returns the bounds of those in line; nil: none has had one.
func (f *flow) bounds() *bounds {
	if r := f.bucket.coldOrNone().rare; r != nil {
		return r.bounds
	}
	return nil
}

// nextBound returns the instant of the next bound of those in line; forever if there is none.
func (f *flow) nextBound() int64 {
	if b := f.bounds(); b != nil {
		if next := b.next(); next != nil {
			return next.at
		}
	}
	return exact.Forever
}

// refusesOneLocked refuses the request whose bound comes next, if that has come before the slot of the head and
// before the end of anybody's patience. Of one instant the slot and the patience come first. It reports
// whether the line is to be looked at again, as its head does not leave now: also because the bound for which it
// is looked at has become stale.
func (ln *line) refusesOneLocked(d *dispatcher, now int64) (again bool) {
	f := ln.flow
	at, leaves, patience := f.nextBound(), f.headMayLeave(), int64(exact.Forever)
	if lv := f.remote(); lv != nil {
		patience = lv.nextBound()
	}
	switch {
	case at <= now && at < leaves && at < patience:
		ln.refuseOverdueLocked(d, now)
	case min(leaves, patience) <= now:
		return false
	}
	d.rearm = true
	d.updateDepartureLocked(f)
	return true
}

// refuseOverdueLocked refuses the request whose bound comes next.
func (ln *line) refuseOverdueLocked(d *dispatcher, now int64) {
	next, head := *ln.flow.bounds().next(), ln.head
	ln.refuseLocked(d, next.w, now, overdue)
	if ln.head != head && next.at < now {
		ln.beginHead(next.at) // However late the ticker is.
	}
}

// refuseBeforeLocked refuses those in line whose bounds come before an instant until which the line is held.
func (ln *line) refuseBeforeLocked(d *dispatcher, now, heldUntil int64) {
	for ln.flow.nextBound() < heldUntil {
		ln.refuseOverdueLocked(d, now)
	}
}

// rejectOverdueLocked returns why a request is refused that was in line until its bound. RetryAfter is the
// one of the same call, made anew now.
func (r *request) rejectOverdueLocked(d *dispatcher, f *flow) rejection {
	now := d.clock
	f.bucket.idleUntil(now)
	again := *r
	again.kind = newcomer
	if r.deadline != exact.Forever {
		again.deadline = exact.Sum(now, r.deadline-r.entered)
	}
	if c := r.claim(); c != nil {
		again.ctx = &claim{c.Context, unknown, exact.Sum(now, c.until-r.entered)}
	}
	if f.bucket.several {
		anew := *r.outlay()
		again.with = &companions{outlay: &anew}
		again.takesTurn(d)
	}
	after := d.judgeLocked(f, now, &again).refusal.retryAfter
	v := f.viewFor(now, r.cost)
	next := v.expected(timeUntil(f.leavesBehind(&v, load{}, r.cost, r.costs()), now))
	if f.waiting() > 0 {
		next = v.leavesIn(now, v.placeOf(f.line, 1))
	}
	if lv := f.remote(); lv != nil && lv.refusesAll(now) {
		next = max(next, lv.waitedTooLong(now).retryAfter)
	}
	return rejection{reason: refusedLate, retryAfter: max(after, next, 1), also: waitedTooLong}
}

// Ends are the instants by which a request must have left: before the deadline of its context, and not after
// the bound that it states itself ([WithWaitField]). Each is forever if there is none.
type ends struct{ deadline, bound int64 }

// ends returns the ends of a request.
func (r *request) ends() ends {
	e := ends{r.deadline, exact.Forever}
	if c := r.claim(); c != nil {
		e.bound = c.until
	}
	return e
}
