package model

import (
	"cmp"
	"slices"
	"time"
)

// This file is what the model knows of WithLineTimeout, and of requests that a Transport sends again.

// noBound is the bound of a request that may wait for ever.
const noBound = 250 * year

// boundOf returns the bound of a request that has first asked at an instant.
func (r *rule) boundOf(asked time.Duration) time.Duration {
	d := r.timeout
	if d == 0 {
		d = r.limits.MaxWait
	}
	if !r.bounded || d == 0 {
		return noBound
	}
	return asked + d
}

// asked returns when a request has first asked.
func (w *waiter) asked() time.Duration {
	if w.Kind == OpRetry {
		return w.Asked
	}
	return w.came
}

// nextBound returns the request in line whose bound comes next, of equal ones the one that entered
// first; nil if none has a bound.
func (b *bucket) nextBound() (next *waiter) {
	for _, w := range b.line {
		if w.bound != noBound && (next == nil || cmp.Or(cmp.Compare(w.bound, next.bound), cmp.Compare(w.index, next.index)) < 0) {
			next = w
		}
	}
	return next
}

// overdue refuses those in line whose bound comes before an instant, one after the other.
func (m *simulator) overdue(before time.Duration) {
	var refused, late []*waiter
	for w := m.nextBound(); w != nil && w.bound < before; w = m.nextBound() {
		if w.bound == m.now && w.Deadline == m.now && !w.Deaf {
			m.leaveOpen("a deadline falls on a bound")
		}
		if m.lateAt == m.now {
			m.leaveOpen("a slot is handed on at a bound")
		}
		m.boundAt = m.now
		m.leaveLine(w)
		if w.gone(m.now) {
			late = append(late, w)
		} else {
			m.refused(w, Answer{Result: TooLate})
			if !m.dryRun {
				refused = append(refused, w)
			}
		}
		m.settle()
	}
	for _, w := range late {
		m.abandoned(w, Gone)
	}
	for _, w := range refused {
		a := &m.answers[w.index]
		a.Retry = m.retryOfOverdue(w)
		a.Ended.Retry = a.Retry
	}
}

// retryOfOverdue returns after which time a call like that of a request would be admitted, but not before
// the next one leaves.
func (m *simulator) retryOfOverdue(w *waiter) time.Duration {
	again := *w.Op
	again.Kind = OpWait
	if again.Deadline != 0 {
		again.Deadline += m.now - w.came
	}
	_, refusal := m.judge(&again)
	if m.mistake == RetryAtOnce {
		return max(1, refusal.Retry)
	}
	next := max(m.waits(w.N)[0], m.seatWait(1))
	return max(1, next, refusal.Retry)
}

// overdueAtOnce refuses those in line whose bound comes before the end of the hold.
func (m *simulator) overdueAtOnce() {
	until := saturated(seen(m.hold))
	switch m.mistake {
	case HoldDoomsNobody:
		return
	case HoldDoomsAtItsEnd:
		until++
	}
	m.overdue(until)
}

// judgeRetry is judge for a request that a Transport sends again. Only others like it are ahead of it.
func (m *simulator) judgeRetry(w *waiter) (refusal Answer) {
	if m.closed && len(m.line) == 0 {
		return Answer{Result: Closed}
	}
	alone := m.bucket
	alone.line = m.line[:m.retries()]
	waits := alone.waits(w.N)
	wait := waits[len(waits)-1]
	if wait == 0 && (len(m.line) > 0 || !m.hasRoom()) {
		wait = 1
	}
	var again time.Duration
	late := false
	if rest := max(0, w.Deadline-m.now); w.Deadline != 0 && wait >= rest {
		late, again = true, wait-rest+1
		refusal.Missed = true
	}
	if bound := m.boundOf(w.asked()); bound != noBound && wait > bound-m.now {
		late, again = true, max(again, wait-(bound-m.now))
	}
	if late {
		refusal.Result, refusal.Retry = TooLate, max(again, m.seatWait(1))
	}
	return refusal
}

// retries returns how many at the head of the line are sent again.
func (b *bucket) retries() int {
	for i, w := range b.line {
		if w.Kind != OpRetry {
			return i
		}
	}
	return len(b.line)
}

// shadow lets a request through, and its shadow wait in line, which nobody can end.
func (m *simulator) shadow(w *waiter) {
	if _, refusal := m.judge(w.Op); refusal.Result != "" {
		m.refused(w, refusal)
	} else {
		o := *w.Op
		o.Deadline, o.Late = 0, 0
		if len(m.line) == 0 {
			m.since = instant(m.now)
		}
		m.line = append(slices.Clip(m.line), &waiter{Op: &o, index: w.index, came: m.now, bound: m.boundOf(m.now)})
		if m.mistake == ShadowsStay {
			m.line[len(m.line)-1].bound = noBound
		}
		m.settle()
	}
	m.finish(w, Left)
	m.answers[w.index].Ended = Event{Hook: HookDeparted, At: m.now, Cost: w.N, Waiting: len(m.line)}
}
