package shaper

import (
	"context"
	"math/bits"
	"sync"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/internal/serverconn"
)

// A request is one call on its way into a flow. It lives on the stack of its call: the
// waiter that stands in line for it holds only the part that others need, as a long
// line costs the memory of its waiters.
type request struct {
	ctx      context.Context
	key      any // told to the hooks of a Group, nil without hooks; in a line with an order a string, else nil
	cost     int64
	deadline int64 // of ctx, as an instant of the dispatcher's clock; forever: it has none
	kind     entryKind
	tellsEnd bool   // its caller will say when it has ended, as Acquire and Do do
	weight   uint16 // of its key, in a line with an order
	ahead    int32  // how many it has found in line, if it waits

	// A decision sets these.
	entered int64               // when it entered the line, if it waits; else when it was decided
	done    <-chan struct{}     // if it waits: of ctx or, if peer is set, of the http.Request's context
	peer    *serverconn.Waiting // nil: no connection is watched for it
	seat    *seat               // if it has left, and there is a cap
	verdict *Verdict            // of a gate that lets it through
	with    *companions         // nil: it has none
}

// entryKind says how a request enters a flow.
type entryKind uint8

const (
	newcomer entryKind = iota
	// reentry is a request that has left, was sent back by the upstream, and is to
	// leave once more: at the head of the line, as it was admitted before all that
	// wait, and whatever the limits say of newcomers.
	reentry
	// allow is a request that leaves now or is refused, as if there was no room in line.
	allow
)

// A decision is the outcome of a request at entry, or at the end of its wait, beside the
// seat that it is given. It fits into four words, so that it is returned in registers.
type decision struct {
	waiter  *waiter // in the line for it; nil: it does not wait
	err     error   // the error that its call returns, if it does not wait
	waiting int32   // in the line just after it
	event   entryEvent
}

// entryEvent says which hook is to be told of a decision.
type entryEvent uint8

const (
	noEvent        entryEvent = iota // it is no call of the kind that is counted
	departedEvent                    // it has left
	refusedEvent                     // it is refused
	enqueuedEvent                    // it waits; from this one on, announce is called even if there are no hooks
	verdictEvent                     // the gate lets it through
	abandonedEvent                   // its context ended while it waited, or its level was asked
	askEvent                         // the level is to be asked for a decision; see level.ask
)

// passed reports whether a request was let go at once, or let through by the gate.
func (d decision) passed() bool {
	return d.event == departedEvent || d.event == verdictEvent
}

// A judgement is the answer to a request at entry.
type judgement struct {
	refusal rejection
	wait    time.Duration // if it is not refused: for how long at least; 0 only if it may leave at once
}

// A waiter is a request in the line: the channel or parker of its goroutine, and the fields that the line needs
// to know about the request. It is as large as a cache line, because letting one request of a long line leave
// is mostly reading memory. The lock of the dispatcher guards all fields. The waiter's own goroutine may read
// two of them without it: ready does not change during a wait, and only that goroutine changes parker.
type waiter struct {
	prev, next *waiter

	// ready gets a value when the request is given its slot or is refused, and may
	// get one when the context of a server's request is found to have ended. There is room
	// for one value; a send that finds the channel full is left out, as the goroutine is about
	// to wake anyway. The goroutine always empties the channel, so the next wait finds it
	// empty. If ready is nil, the goroutine waits on parker. At first that is the unparked of
	// the pool, which only holds the place. Before the goroutine waits, it puts a parker of its
	// own there (ownParker).
	ready  chan struct{}
	parker *parker

	cost        int64
	at          int64  // when the request entered the line; after its wait, when it was given its slot or refused
	departureNo uint32 // the bucket's departures when it left, itself included
	waiting     int32  // how many were in the line just after it left
	index       int32  // where the order of the line finds it, if there is one
	state       state
	traits      traits
	boundNo     uint16 // the number of its bound, modulo 2¹⁶; see bounds
}

// wake wakes the waiter's goroutine, after its state has changed. The lock is held.
func (w *waiter) wake() {
	if w.ready == nil {
		w.parker.Signal()
		return
	}
	select {
	case w.ready <- struct{}{}:
	default: // The goroutine is about to wake, to find that its context has ended.
	}
}

// The goroutine of a request waits on a parker if its context is [context.Background] or
// [context.TODO], which never end. It takes 64 bytes, and a channel 112. But only a channel
// can be waited on together with a context.
//
// (A [sync.WaitGroup] takes 16 bytes. But the runtime has to search for the goroutines that
// wait on it, so to wake each of 100,000 takes 2.4 times as long as on a channel.)
type parker struct {
	sync.Cond
	mu *sync.Mutex // of the dispatcher
}

// ownParker gives a waiter a parker of its own, in place of unparked.
//
// It is not inlined, so that its frame is not there while the goroutine waits.
//
//go:noinline
func (w *waiter) ownParker() {
	own := &parker{mu: w.parker.mu}
	own.L = (*parking)(w)
	own.mu.Lock()
	w.parker = own
	own.mu.Unlock()
}

// parking is the [sync.Locker] of a waiter's parker.
type parking waiter

// Unlock is called by [sync.Cond.Wait] once the goroutine is registered, so that it misses no
// Signal from then on. A Signal before that reached nobody. So Unlock signals again if the
// waiter's state has changed already.
func (p *parking) Unlock() {
	p.parker.mu.Lock()
	woken := p.state != queued
	p.parker.mu.Unlock()
	if woken {
		p.parker.Signal()
	}
}

// Lock is called by [sync.Cond.Wait] before it returns. There is no condition to be looked at
// again under the lock, as a waiter waits once.
func (p *parking) Lock() {}

// Traits of a waiter are true of it for as long as it stands for its request.
type traits uint8

const (
	reentered traits = 1 << iota // the request was admitted before
	accounted                    // the ledger of the bucket has an account of it
)

// is reports whether the waiter has a trait.
func (w *waiter) is(t traits) bool { return w.traits&t != 0 }

// A state tells how a waiter has ended. It changes once, under the lock, from queued
// to one of the others.
type state uint8

const (
	queued      state = iota
	departed          // it has been given its slot
	refused           // by Close
	unavailable       // refused, as its patience has ended in an outage of the Bucket
	overdue           // refused, as its bound has come
	pushedOut         // refused, as the line was full when a request came that leaves before it
	abandoned         // its context ended, or its hook panicked
)

// An order decides which request of a line leaves next, in place of the order in which they
// were admitted. A queue that has one asks it alone, and may then use no link of its waiters.
// So whatever looks at more than the head of a line calls a method of queue.
//
// The only order is fair queueing (fair.go). First in, first out is no order but its absence, so
// that it costs nothing.
type order interface {
	// push puts a waiter in, for a request.
	push(w *waiter, r turn)
	// remove takes a waiter out, which has the state now. If it is pushedOut, its refusal is asked for later.
	remove(w *waiter, s state)
	// giveBack undoes the latest departure, which was the request's.
	giveBack(r turn)

	// head returns the waiter that leaves next; nil if there is none.
	head() *waiter
	// last returns the waiter that leaves last, if nobody else comes.
	last() *waiter
	// keyOf returns the key of a waiter.
	keyOf(w *waiter) string
	// oldest returns the waiter that was put in first.
	oldest() *waiter
	// walk returns a function that returns one waiter after the other, in the order in which they
	// leave if nobody else comes, and then nil.
	walk() func() *waiter

	// ahead returns how many of those in line would leave before a request that enters now,
	// and what their turns cost, saturating. It leaves out a waiter, unless that is nil.
	ahead(r turn, without *waiter) (n int32, cost int64)
	// eachAhead calls a function with each of those, in any order, until it returns false.
	eachAhead(r turn, without *waiter, see func(w *waiter) bool)

	// weigh returns the key and the weight of a request that comes with a key, or nil. The lock is not held.
	weigh(key any) (any, uint16)
	// judge judges a newcomer that finds requests in line, and may wait.
	judge(f *flow, now int64, r turn) judgement
	// outlasting returns the waiter that is refused in a full line if a newcomer enters; nil: it is
	// the newcomer.
	outlasting(r turn) *waiter
	// pushedOut is told what the call of such a waiter is to return as its RetryAfter.
	pushedOut(w *waiter, retryAfter time.Duration)
	// refusal returns that, once.
	refusal(w *waiter) (retryAfter time.Duration)

	// keys returns how many keys have requests in line.
	keys() int
}

// A turn is the part of a request that an order needs to know. It is a value, because a pointer to a
// request that is given to an interface would put all requests on the heap.
type turn struct {
	key      string
	weight   int
	pays     int64 // what its key pays: the cost, unless it has an outlay
	cost     int64
	costs    *moreCosts // at further levels; nil: none
	ends     ends
	reentry  bool
	forecast bool // it only asks
}

// turn returns the request's turn, in a line with an order.
func (r *request) turn() turn {
	key, _ := r.key.(string)
	t := turn{key, int(r.weight), r.cost, r.cost, r.costs(), r.ends(), r.kind == reentry, r.ctx == nil}
	if t.costs != nil {
		t.pays = r.with.outlay.turn
	}
	return t
}

// queue is the line of the requests that wait, first in, first out unless it has an order. It is a
// doubly linked list of the waiters, so that one that gives up is removed in constant time,
// wherever it is, and those behind it move up. (A channel of waiters would keep the
// places of those that have given up; see docs/decisions.md.) [Limits.Depth] is enforced
// before a request is pushed.
type queue struct {
	head, tail  *waiter // head is the next to leave, in any order
	lastReentry *waiter // the last of the waiters in line that pushReentry has put in, or nil
	order       order   // nil: first in, first out
	len         int32   // it fits: 2³¹ waiting goroutines would take 4 TiB

	// above is the level just after the departure at line.leftAt, less Burst; NaN if
	// noteNewHead finds that no spacing is to be counted. It is used together with line.leftAt,
	// and stands here because there is room. (The level itself would be too inexact: for a
	// great Burst, a float32 does not tell one cost unit from the next.)
	above float32

	cost costs // of all waiters
}

// enter puts in the waiter of a request.
func (q *queue) enter(w *waiter, r *request) {
	q.len++
	q.cost.add(w.cost)
	switch {
	case q.order != nil:
		if r.kind == reentry {
			w.traits |= reentered
		}
		q.order.push(w, r.turn())
		q.head = q.order.head()
	case r.kind == reentry:
		q.pushReentry(w)
	default:
		q.push(w)
	}
}

// push puts a waiter at the tail.
func (q *queue) push(w *waiter) {
	if w.prev = q.tail; w.prev == nil {
		q.head = w
	} else {
		w.prev.next = w
	}
	q.tail = w
}

// pushReentry puts in a request that was admitted before: ahead of all newcomers, and
// behind the requests that pushReentry has put in earlier.
func (q *queue) pushReentry(w *waiter) {
	if w.prev = q.lastReentry; w.prev == nil {
		w.next, q.head = q.head, w
	} else {
		w.next, w.prev.next = w.prev.next, w
	}
	if w.next == nil {
		q.tail = w
	} else {
		w.next.prev = w
	}
	q.lastReentry = w
	w.traits |= reentered
}

// oldest returns the waiter that has entered first; nil: there is none.
func (q *queue) oldest() *waiter {
	if q.order != nil {
		return q.order.oldest()
	}
	oldest := q.head
	if last := q.lastReentry; last != nil && last.next != nil && last.next.at < oldest.at {
		oldest = last.next // Both the reentries and the others are in the order in which they entered.
	}
	return oldest
}

// remove takes a waiter out of the line, wherever it is. s is its new state.
func (q *queue) remove(w *waiter, s state) {
	if q.order != nil {
		q.order.remove(w, s)
		q.head = q.order.head()
	} else {
		q.unlink(w)
	}
	w.prev, w.next = nil, nil
	w.state = s
	q.len--
	q.cost.take(w.cost)
	w.waiting = q.len
}

// unlink takes a waiter out of the list.
func (q *queue) unlink(w *waiter) {
	if w == q.lastReentry {
		q.lastReentry = w.prev
	}
	if w.prev == nil {
		q.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
}

// giveBack undoes the latest departure, which was the request's, in the order of the line. It
// reports whether the line has another head now.
func (q *queue) giveBack(r *request) (newHead bool) {
	if q.order == nil {
		return false
	}
	before := q.head
	q.order.giveBack(r.turn())
	q.head = q.order.head()
	return q.head != before
}

// outlasting returns the waiter that would be refused so that a newcomer gets its place; nil if there are
// places, or the newcomer itself would be refused, or the line has no order.
func (q *queue) outlasting(v *view, r *request) *waiter {
	if q.order == nil || !v.isFull(r.kind) {
		return nil
	}
	return q.order.outlasting(r.turn())
}

// walk returns a function that returns one waiter after the other, in the order in which they
// leave, and then nil. The line must not change meanwhile.
func (q *queue) walk() func() *waiter {
	if q.order != nil {
		return q.order.walk()
	}
	w := q.head
	return func() *waiter {
		next := w
		if w != nil {
			w = w.next
		}
		return next
	}
}

// before returns how many in line would leave before a request that enters now, and their
// cost, saturating. In a line with an order, without is not counted; nil: all are.
func (q *queue) before(r *request, without *waiter) (n int32, cost int64) {
	switch {
	case q.order != nil && r.kind != allow: // An allow leaves only if nobody is in line.
		return q.order.ahead(r.turn(), without)
	case r.kind != reentry:
		return q.len, q.cost.total()
	}
	for w := q.head; w != nil && w.is(reentered); w = w.next { // There are few of them.
		n, cost = n+1, exact.Sum(cost, w.cost)
	}
	return n, cost
}

// ahead returns the k-th waiter from the head, counting from 1, and the sum of the
// costs ahead of it, saturating. It walks from the nearer end; but if the total has
// saturated, nothing can be subtracted from it, and the walk begins at the head.
func (q *queue) ahead(k int) (w *waiter, cost int64) {
	total := q.cost.total()
	n := int(q.len)
	if q.order != nil {
		if k == n {
			w = q.order.last()
			return w, total - w.cost
		}
		next := q.order.walk()
		for w = next(); k > 1; k-- {
			cost = exact.Sum(cost, w.cost)
			w = next()
		}
		return w, cost
	}
	if k <= n/2 || total == exact.Forever {
		for w = q.head; k > 1; k-- {
			cost = exact.Sum(cost, w.cost)
			w = w.next
		}
		return w, cost
	}
	cost = total
	for w = q.tail; k < n; k++ {
		cost -= w.cost
		w = w.prev
	}
	return w, cost - w.cost
}

// costs is a sum of costs, in 128 bits: at [rate.Inf], where any cost is allowed, 64
// bits may be too few.
type costs struct{ low, high uint64 }

// add adds n.
func (c *costs) add(n int64) {
	var carry uint64
	c.low, carry = bits.Add64(c.low, uint64(n), 0)
	c.high += carry
}

// take subtracts n.
func (c *costs) take(n int64) {
	var borrow uint64
	c.low, borrow = bits.Sub64(c.low, uint64(n), 0)
	c.high -= borrow
}

// total returns the sum, saturating.
func (c *costs) total() int64 {
	if c.high > 0 || c.low > exact.Forever {
		return exact.Forever
	}
	return int64(c.low)
}

// A waiterPool keeps waiters for further requests of the same [Shaper], or of one shard of a
// [Group]. A [sync.Pool] for the whole process could pass a channel from one testing/synctest
// bubble to another, and its use there is a fatal error.
type waiterPool struct {
	head *waiter // linked by next
	len  int32   // of the list

	// unparked is the parker of the waiters that have none of their own yet. No goroutine
	// waits on it. nil: no waiter has needed one.
	unparked *parker

	most int32 // how many there may be in the list

	boundNo uint64 // of the latest bound; see bounds
}

// nextBoundNo returns the number of another bound. Waiters go from line to line, so no two lines of a pool have bounds of one
// number.
func (p *waiterPool) nextBoundNo() uint64 {
	if p.boundNo++; uint16(p.boundNo) == 0 {
		p.boundNo++ // A waiter of number 0 has no bound.
	}
	return p.boundNo
}

// maxSpares is how many waiters the pool of a [Shaper] has at most, and the pools of the shards of a
// [Group] together. These take 180 KB at most, so little memory is kept after a burst. A line
// that stays longer needs no larger pool: the next request takes the waiter that the last one
// has put back.
const maxSpares = 1024

// take returns a waiter, new or from the pool, for a request of cost n that enters a
// line now.
func (p *waiterPool) take(n, now int64) *waiter {
	w := p.head
	if w == nil {
		w = new(waiter)
	} else {
		p.head, w.next = w.next, nil
		p.len--
	}
	w.state, w.cost, w.at, w.traits, w.boundNo = queued, n, now, 0, 0
	return w
}

// takeFor returns a waiter for a request that enters a line now, with the channel or parker that
// its goroutine will wait on, if it does. mu is the lock of the dispatcher.
func (p *waiterPool) takeFor(r *request, now int64, waits bool, mu *sync.Mutex) *waiter {
	w := p.take(r.cost, now)
	switch {
	case w.ready != nil || !waits:
	case r.ctx != context.Background() && r.ctx != context.TODO():
		w.ready, w.parker = make(chan struct{}, 1), nil // From now on it waits on nothing else.
	case w.parker == nil:
		if p.unparked == nil {
			p.unparked = &parker{mu: mu}
		}
		w.parker = p.unparked
	}
	return w
}

// keep puts a waiter into the pool. The waiter must be out of the line, and its channel
// must be empty.
func (p *waiterPool) keep(w *waiter) {
	if p.len < p.most {
		w.next, p.head = p.head, w
		p.len++
	}
}
