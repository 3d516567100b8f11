package shaper

// spares are waiters used before, to be used again by the same Shaper or Group
// only. A pool shared by the whole process would hand a channel made in one
// testing/synctest bubble to another, which is fatal.
type spares struct {
	head *waiter // linked by next
	len  int
}

// maxSpares bounds what an empty line holds on to after a burst, to some
// 200 KB. A longer line in steady use still allocates nothing, as only those
// between two waits are spare.
const maxSpares = 1024

// take returns a waiter for a request of cost n that enters a line, new or used
// before.
func (s *spares) take(n, now int64) *waiter {
	w := s.head
	if w == nil {
		w = &waiter{ready: make(chan struct{}, 1)}
	} else {
		s.head, w.next = w.next, nil
		s.len--
	}
	w.state, w.cost, w.admitted, w.again = queued, n, now, false
	return w
}

// keep keeps a waiter that is out of the line and whose channel is empty for
// another request.
func (s *spares) keep(w *waiter) {
	if s.len < maxSpares {
		w.next, s.head = s.head, w
		s.len++
	}
}
