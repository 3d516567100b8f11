package model

import (
	"math/big"
	"slices"
)

// do brings the bucket up to the instant of an operation and does it.
func (m *model) do(o *op) {
	index, fresh := len(m.answers), o.at > m.now
	m.answers = append(m.answers, answer{})
	if o.kind == opClose && m.mistake == closeFirst {
		m.advance(o.at - 1)
	} else {
		m.advance(o.at)
	}
	m.now = o.at
	if o.race && fresh && (m.lateAt == m.now || m.endAt == m.now) {
		m.leaveOpen("an operation races with the end of a context")
	}
	w := &waiter{op: o, index: index, came: m.now}
	switch o.kind {
	case opWait:
		if m.capped() {
			m.finish(w, resultMisused)
		} else {
			m.enter(w)
		}
	case opAllow:
		if m.capped() && w.n > 0 {
			m.finish(w, resultMisused)
		} else {
			m.enter(w)
		}
	case opAcquire:
		m.enter(w)
	case opRelease:
		m.release(w)
	case opHold:
		m.held(w)
	case opForecast:
		m.foresee(w)
	case opLook:
		m.finish(w, resultLeft)
		m.answers[index].look = m.look(o.race)
	case opSet:
		m.set(w)
	case opCancel:
		m.cancel(w)
	case opClose:
		m.close()
		m.finish(w, resultLeft)
	case opShutdown:
		m.stop(w)
	}
}

// enter is the arrival of a request. One that leaves at once enters the line
// as its only member, and is gone before anybody sees it.
func (m *model) enter(w *waiter) {
	switch {
	case w.n < 0:
		m.finish(w, resultNegative)
		return
	case w.gone(m.now):
		m.finish(w, resultGone)
		return
	case w.deadline != 0 && w.deadline <= m.now && !w.deaf:
		m.finish(w, resultExceeded)
		return
	case w.n == 0:
		m.finish(w, resultLeft)
		return
	}
	if _, refusal := m.judge(w.op); refusal.result != "" {
		m.refused(w, refusal)
		return
	}
	if len(m.line) == 0 {
		m.since = instant(m.now)
	}
	if m.overtakes(w.n) {
		m.line = slices.Insert(slices.Clone(m.line), 0, w)
		m.since = instant(m.now)
	} else {
		m.line = append(m.line, w)
	}
	waiting := len(m.line)
	m.settle()
	if slices.Contains(m.line, w) {
		m.answers[w.index].entered = event{hook: "enqueued", at: m.now, cost: w.n, waiting: waiting}
	}
}

// overtakes reports that a newcomer slips past the line, which is a mistake.
func (m *model) overtakes(n int) bool {
	return m.mistake == overtaking && len(m.line) > 0 && m.allowed(m.empty, n).Cmp(instant(m.now)) <= 0
}

func (m *model) refused(w *waiter, refusal answer) {
	m.totals.refused++
	switch refusal.result {
	case resultClosed:
		m.totals.closed++
	case resultTooCostly:
		m.totals.tooCostly++
	case resultQueueFull:
		m.totals.queueFull++
	case resultTooLate:
		m.totals.tooLate++
	}
	m.finish(w, refusal.result)
	a := &m.answers[w.index]
	a.retry, a.missed = refusal.retry, refusal.missed
	m.ended(w, "refused", refusal.result)
}

// foresee is a look ahead that takes nothing.
func (m *model) foresee(w *waiter) {
	a := &m.answers[w.index]
	switch {
	case w.n < 0:
		m.finish(w, resultNegative)
		return
	case w.n == 0:
		m.finish(w, resultLeft)
		return
	}
	wait, refusal := m.judge(w.op)
	if refusal.result != "" {
		m.finish(w, refusal.result)
		a.retry = refusal.retry
		return
	}
	m.finish(w, resultLeft)
	a.wait = wait
}

// set changes the limits: the level is kept, and everybody is re-timed.
func (m *model) set(w *waiter) {
	if !valid(w.limits) || m.capped() != (w.limits.InFlight > 0) {
		m.finish(w, resultInvalid)
		return
	}
	level := m.level()
	if m.mistake == noRetime && len(m.line) > 0 {
		m.frozen = m.due()
	}
	m.limits, m.interval = w.limits, intervalOf(w.limits.Rate)
	m.emptyAt(new(big.Rat).Add(instant(m.now), level.Mul(level, m.interval)))
	m.since = instant(m.now)
	m.finish(w, resultLeft)
	m.settle()
}

// release is the end of a request that an earlier call has let go.
func (m *model) release(w *waiter) {
	m.finish(w, resultLeft)
	if w.target < 0 {
		return
	}
	if a := m.answers[w.target]; w.race && a.returned && a.at == m.now {
		m.leaveOpen("a release races with the return of its call")
	}
	i := slices.IndexFunc(m.upstream, func(other *waiter) bool { return other.index == w.target })
	if i < 0 && m.mistake == freedTwice && m.answers[w.target].result == resultLeft && len(m.upstream) > 0 {
		i = 0
	}
	if i < 0 {
		return
	}
	m.free(m.upstream[i])
	m.settle()
}

// held is Hold.
func (m *model) held(w *waiter) {
	m.finish(w, resultLeft)
	until := instant(m.now + min(w.hold, year))
	switch {
	case w.hold < 0:
	case w.hold > 0 && m.mistake == holdShortens:
		m.hold = until
	case w.hold > 0:
		m.hold = later(m.hold, until)
	case m.hold.Cmp(until) > 0: // Those whom it has kept could not leave before.
		m.hold, m.since = new(big.Rat), until
	}
	m.settle()
}

// cancel ends the context of an earlier call.
func (m *model) cancel(w *waiter) {
	m.finish(w, resultLeft)
	if w.target < 0 {
		return
	}
	if a := m.answers[w.target]; w.race && a.returned && a.at == m.now {
		m.leaveOpen("a cancel races with the departure")
	}
	for _, other := range m.line {
		if other.index == w.target {
			m.abandon(other, resultCanceled)
			return
		}
	}
	m.stopping = slices.DeleteFunc(m.stopping, func(other *waiter) bool {
		if other.index == w.target {
			m.finish(other, resultCanceled)
		}
		return other.index == w.target
	})
}

// close refuses everybody.
func (m *model) close() {
	m.closed = true
	var late []*waiter
	for len(m.line) > 0 {
		w := m.line[0]
		m.line = m.line[1:]
		if w.gone(m.now) {
			late = append(late, w)
		} else {
			m.refused(w, answer{result: resultClosed})
		}
	}
	for _, w := range late {
		m.abandoned(w, resultGone)
	}
	m.settle()
}

// stop is Shutdown.
func (m *model) stop(w *waiter) {
	m.closed = true
	m.stopping = append(m.stopping, w)
	if len(m.line) > 0 && w.deadline != 0 && w.deadline <= m.now {
		m.stopping = m.stopping[:len(m.stopping)-1]
		m.finish(w, resultExceeded)
	}
	m.settle()
}

func (m *model) look(race bool) look {
	level, _ := m.level().Float64()
	l := look{waiting: len(m.line), inFlight: len(m.upstream), level: level, last: -1, held: -1}
	if m.hold.Cmp(instant(m.now)) > 0 {
		l.held = saturated(seen(m.hold))
	}
	if len(m.line) > 0 {
		l.oldest = m.now - m.line[0].came
	}
	if !race {
		l.totals, l.last = m.totals, m.last
	}
	return l
}
