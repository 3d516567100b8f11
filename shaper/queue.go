package shaper

import (
	"math/bits"

	"example.com/leakybucket/shaper/internal/exact"
)

// A waiter is a request in the line: a channel on which its goroutine waits,
// and what the others need to know of it. The lock of the dispatcher guards all of
// it but the channel.
type waiter struct {
	prev, next *waiter

	// ready has room for one: what is sent is the news that state has changed
	// from queued, which happens once per wait. So a send never blocks, and
	// the next wait finds the channel empty.
	ready chan struct{}
	cost  int64

	admitted    int64  // when it entered the line
	slot        int64  // when its slot was handed out
	departureNo uint64 // the number of its departure
	waiting     int32  // in the line just after it
	state       state
	reentry     bool // pushAgain has put it in
}

// tell sends the waiter the news that its state has changed.
func (w *waiter) wake() { w.ready <- struct{}{} }

// state says what has become of a waiter. It changes from queued to one of the
// others once, under the lock.
type state uint8

const (
	queued    state = iota
	departed        // its slot has been handed out
	refused         // by Close
	abandoned       // its context ended
)

// queue is the bounded line of those who wait, first in, first out: a doubly
// linked list through the waiters, so that one who gives up leaves it from
// anywhere in constant time and those behind move up. (A channel of waiters
// would keep the places of those who have gone; see ARCHITECTURE.md.)
type queue struct {
	head, tail  *waiter
	lastReentry *waiter // the last of those that pushAgain has put in, who are the first in line
	len         int

	cost        costs // of all in line
	reentryCost costs // of those that pushAgain has put in
}

// push appends a waiter.
func (q *queue) push(w *waiter) {
	q.count(w)
	if w.prev = q.tail; w.prev == nil {
		q.head = w
	} else {
		w.prev.next = w
	}
	q.tail = w
}

// pushAgain puts a request that has left before in front of all newcomers,
// behind those like it, which were sent back before it.
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

// count counts a waiter that enters.
func (q *queue) count(w *waiter) {
	q.len++
	q.cost.add(w.cost)
}

// remove takes a waiter out of the line, from wherever it is, and says what
// has become of it.
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
	w.waiting = int32(q.len) // As many as goroutines at most, of which 2³¹ would take 4 TiB.
}

// ahead returns the k-th waiter from the head, counting from 1, and the cost
// of those ahead of it, saturating. It walks from the nearer end, if it can
// take what it passes off the total.
func (q *queue) ahead(k int) (w *waiter, cost int64) {
	total := q.cost.total()
	if k <= q.len/2 || total == exact.Forever {
		for w = q.head; k > 1; k-- {
			cost = exact.Sum(cost, w.cost)
			w = w.next
		}
		return w, cost
	}
	cost = total
	for w = q.tail; k < q.len; k++ {
		cost -= w.cost
		w = w.prev
	}
	return w, cost - w.cost
}

// costs is a sum of costs. At rate.Inf, where none is too great, it may be more than
// one word holds.
type costs struct{ low, high uint64 }

func (c *costs) add(n int64) {
	var carry uint64
	c.low, carry = bits.Add64(c.low, uint64(n), 0)
	c.high += carry
}

func (c *costs) take(n int64) {
	var borrow uint64
	c.low, borrow = bits.Sub64(c.low, uint64(n), 0)
	c.high -= borrow
}

// total is the sum, saturating.
func (c *costs) total() int64 {
	if c.high > 0 || c.low > exact.Forever {
		return exact.Forever
	}
	return int64(c.low)
}

// spares are waiters used before, to be used again by the same Shaper or Group
// only. A pool shared by the whole process would hand a channel made in one
// testing/synctest bubble to another, which is fatal.
type waiterPool struct {
	head *waiter // linked by next
	len  int
}

// maxSpares bounds what an empty line holds on to after a burst, to some
// 200 KB. A longer line in steady use still allocates nothing, as only those
// between two waits are spare.
const maxSpares = 1024

// take returns a waiter for a request of cost n that enters a line, new or used
// before.
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

// keep keeps a waiter that is out of the line and whose channel is empty for
// another request.
func (s *waiterPool) keep(w *waiter) {
	if s.len < maxSpares {
		w.next, s.head = s.head, w
		s.len++
	}
}
