package shaper

import (
	"math/bits"

	"example.com/leakybucket/shaper/internal/exact"
)

// A waiter is a request in the line: the channel on which its goroutine waits, and what
// the line needs to know about the request. The lock of the dispatcher guards all fields
// but the channel.
type waiter struct {
	prev, next *waiter

	// ready gets one value when the state changes from queued, which happens once per
	// wait. There is room for one value, so that a send never blocks. The goroutine
	// always receives it, so the next wait finds the channel empty.
	ready chan struct{}
	cost  int64

	admitted    int64  // the instant at which the request entered the line
	slot        int64  // the instant at which it was given its slot
	departureNo uint32 // the bucket's departures when it left, itself included
	waiting     int32  // how many were in the line just after it left
	state       state
	reentry     bool // pushReentry has put it in
}

// wake wakes the waiter's goroutine, after its state has changed.
func (w *waiter) wake() { w.ready <- struct{}{} }

// state is what has become of a waiter. It changes once, under the lock, from queued
// to one of the others.
type state uint8

const (
	queued    state = iota
	departed        // it has been given its slot
	refused         // by Close
	abandoned       // its context ended
)

// queue is the line of the requests that wait, first in, first out. It is a doubly
// linked list of the waiters, so that one that gives up is removed in constant time,
// wherever it is, and those behind it move up. (A channel of waiters would keep the
// places of those that have given up; see ARCHITECTURE.md.) [Limits.Depth] is enforced
// before a request is pushed.
type queue struct {
	head, tail  *waiter
	lastReentry *waiter // the last of the waiters in line that pushReentry has put in, or nil
	len         int32   // it fits: 2³¹ waiting goroutines would take 4 TiB

	// above is by how much the level was above Burst just after line.left; negative if below,
	// NaN if noteNewHead says that no spacing is to be counted.
	// It is used with that, and is here because here is room for it. (The level itself would be
	// too inexact: for a great Burst, a float32 does not tell one cost unit from the next.)
	above float32

	cost        costs // of all waiters
	reentryCost costs // of those that pushReentry has put in
}

// push puts a waiter at the tail.
func (q *queue) push(w *waiter) {
	q.count(w)
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
	q.count(w)
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
	q.lastReentry, w.reentry = w, true
	q.reentryCost.add(w.cost)
}

// count adds a waiter that enters to len and cost.
func (q *queue) count(w *waiter) {
	q.len++
	q.cost.add(w.cost)
}

// remove takes a waiter out of the line, wherever it is. s is its new state.
func (q *queue) remove(w *waiter, s state) {
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
	w.prev, w.next = nil, nil
	w.state = s
	q.len--
	q.cost.take(w.cost)
	if w.reentry {
		q.reentryCost.take(w.cost)
	}
	w.waiting = q.len
}

// ahead returns the k-th waiter from the head, counting from 1, and the sum of the
// costs ahead of it, saturating. It walks from the nearer end; but if the total has
// saturated, nothing can be subtracted from it, and the walk begins at the head.
func (q *queue) ahead(k int) (w *waiter, cost int64) {
	total := q.cost.total()
	n := int(q.len)
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

// A waiterPool keeps waiters for further requests of the same [Shaper] or [Group]. A
// [sync.Pool] for the whole process could pass a channel from one testing/synctest
// bubble to another, and its use there is a fatal error.
type waiterPool struct {
	head *waiter // linked by next
	len  int
}

// maxSpares is the largest number of waiters in a pool. These take some 200 KB, so
// little memory is kept after a burst. A line that is always longer allocates nothing
// either, because only the waiters between two waits are in the pool.
const maxSpares = 1024

// take returns a waiter, new or from the pool, for a request of cost n that enters a
// line now.
func (s *waiterPool) take(n, now int64) *waiter {
	w := s.head
	if w == nil {
		w = &waiter{ready: make(chan struct{}, 1)}
	} else {
		s.head, w.next = w.next, nil
		s.len--
	}
	w.state, w.cost, w.admitted, w.reentry = queued, n, now, false
	return w
}

// keep puts a waiter into the pool. The waiter must be out of the line, and its channel
// must be empty.
func (s *waiterPool) keep(w *waiter) {
	if s.len < maxSpares {
		w.next, s.head = s.head, w
		s.len++
	}
}
