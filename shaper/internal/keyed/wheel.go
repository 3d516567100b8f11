package keyed

import (
	"time"

	"example.com/leakybucket/internal/exact"
)

const (
	// Resolution is by how much later an entry comes up at most than it is due.
	Resolution = 500 * time.Millisecond
	spoke      = int64(Resolution)
	// spokes is how many spokes a wheel has; together they are half a minute. An entry that is
	// due later comes up then, and is put further on.
	spokes = 64
)

// A Wheel holds entries by the instants at which they are due, rounded up to whole spokes: a
// timing wheel (Varghese and Lauck, SOSP 1987, scheme 5). An entry that is due later than it was
// need not be moved: when its turn comes it is put further on. Only one that is due earlier has to
// be moved. The zero Wheel is empty.
type Wheel[K comparable, V any] struct {
	heads [spokes]*Entry[K, V] // of doubly linked rings
	at    int64                // the number of the spoke that comes next
	len   int
}

// Add puts in an entry that is due at an instant ([exact.Forever]: that is unknown), and returns
// the instant at which its turn comes.
func (w *Wheel[K, V]) Add(e *Entry[K, V], now, due int64) (at int64) {
	if w.len == 0 {
		w.at = max(w.at, now/spoke)
	}
	if due == exact.Forever {
		due = now + spoke
	}
	i := w.at
	if due > w.at*spoke {
		i = min((due-1)/spoke+1, w.at+spokes-1)
	}
	e.spoke = uint8(i % spokes)
	head := &w.heads[e.spoke]
	if *head == nil {
		*head, e.prev, e.next = e, e, e
	} else {
		e.prev, e.next = (*head).prev, *head
		e.prev.next, e.next.prev = e, e
	}
	w.len++
	return i * spoke
}

// Remove takes an entry out.
func (w *Wheel[K, V]) Remove(e *Entry[K, V]) {
	head := &w.heads[e.spoke]
	switch {
	case e.next == e:
		*head = nil
	case *head == e:
		*head = e.next
		fallthrough
	default:
		e.prev.next, e.next.prev = e.next, e.prev
	}
	e.prev, e.next = nil, nil
	w.len--
}

// Take takes out the first entry whose turn has come, and returns nil if there is none.
func (w *Wheel[K, V]) Take(now int64) *Entry[K, V] {
	for ; w.len > 0 && w.at*spoke <= now; w.at++ {
		if e := w.heads[w.at%spokes]; e != nil {
			w.Remove(e)
			return e
		}
	}
	return nil
}

// Next returns the instant at which the turn of the next entry comes; [exact.Forever] if there
// is none.
func (w *Wheel[K, V]) Next() int64 {
	if w.len == 0 {
		return exact.Forever
	}
	i := w.at
	for w.heads[i%spokes] == nil {
		i++
	}
	return i * spoke
}

// A Timer calls a function when the next entry of a [Wheel] is due. It is a timer and not a
// goroutine, so that its owner can be forgotten without Close, and does not keep a testing/synctest
// bubble from ending.
type Timer struct {
	f     func() // in a goroutine of its own
	timer *time.Timer
	at    int64 // when the timer fires; forever: never
	next  int64 // when it should fire
}

// NewTimer returns a Timer that calls f.
func NewTimer(f func()) *Timer { return &Timer{f: f, at: exact.Forever, next: exact.Forever} }

// Earlier notes that the function is to be called at an instant at the latest, and reports whether
// that is earlier than before. [Timer.Arm] is to be called then.
func (t *Timer) Earlier(at int64) bool {
	if at >= t.next {
		return false
	}
	t.next = at
	return true
}

// Next notes that the function is to be called at an instant, and not before.
func (t *Timer) Next(at int64) { t.next = at }

// Fired notes that the function runs, and reports whether it was to be called by now. [Timer.Arm]
// is to be called after it.
func (t *Timer) Fired(now int64) bool {
	t.at = exact.Forever
	return now >= t.next
}

// Stop lets the function not be called until [Timer.Arm] finds that another instant was noted.
func (t *Timer) Stop() { t.timer.Stop() }

// Arm sets the timer to the instant at which it should fire.
func (t *Timer) Arm(now int64) {
	if t.at == t.next {
		return
	}
	t.at = t.next
	// A call that is due at once waits for 1 ns. In a testing/synctest bubble a timer that is set to
	// fire at once runs in the call that sets it, and go1.26.8 has crashed in that, with the race
	// detector.
	switch d := max(time.Duration(t.next-now), 1); {
	case t.next == exact.Forever:
		t.timer.Stop()
	case t.timer == nil:
		t.timer = time.AfterFunc(d, t.f)
	default:
		t.timer.Reset(d)
	}
}
