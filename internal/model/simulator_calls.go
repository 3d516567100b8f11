package model

import (
	"math"
	"math/big"
	"slices"
)

// do brings the bucket to the instant of an operation and does the operation.
func (m *simulator) do(o *Op) {
	index, fresh := len(m.answers), o.At > m.now
	m.answers = append(m.answers, Answer{})
	if o.Kind == OpClose && m.mistake == CloseFirst {
		m.advance(o.At - 1)
	} else {
		m.advance(o.At)
	}
	m.now = o.At
	if o.Race && fresh && (m.lateAt == m.now || m.endAt == m.now || m.boundAt == m.now) {
		m.leaveOpen("an operation races with the end of a context, or a bound")
	}
	w := &waiter{Op: o, index: index, came: m.now}
	switch o.Kind {
	case OpWait:
		if m.capped() {
			m.finish(w, Misused)
		} else {
			m.enter(w)
		}
	case OpAllow:
		if m.capped() && w.N > 0 && !m.closed {
			m.finish(w, Misused)
		} else {
			m.enter(w)
		}
	case OpAcquire, OpReserve, OpRetry:
		m.enter(w)
	case OpRelease:
		m.release(w)
	case OpSettle:
		m.settled(w)
	case OpAtMost:
		m.atMost(w)
	case OpHold:
		m.held(w)
	case OpForecast:
		m.foresee(w)
	case OpLook:
		m.finish(w, Left)
		m.answers[index].Look = m.stats(o.Race)
	case OpSet:
		m.set(w)
	case OpSetMeters:
		m.setMeters(w)
	case OpSave:
		m.save(w)
	case OpRestore:
		m.restore(w)
	case OpCancel:
		m.cancel(w)
	case OpClose:
		m.close()
		m.finish(w, Left)
	case OpShutdown:
		m.stop(w)
	}
}

// enter is the arrival of a request. A request that leaves at once enters the
// line as its only member, and has left before any other operation sees it.
func (m *simulator) enter(w *waiter) {
	w.turn = m.turnOf(w.Op)
	switch {
	case w.N < 0 || slices.ContainsFunc(w.More, func(n int) bool { return n < 0 }):
		m.finish(w, Negative)
		return
	case w.gone(m.now):
		m.finish(w, Gone)
		return
	case w.Deadline != 0 && w.Deadline <= m.now && !w.Deaf:
		m.finish(w, Exceeded)
		return
	case w.isFree():
		m.finish(w, Left)
		if w.Kind == OpReserve {
			m.reserved(w)
		}
		return
	}
	if m.dryRun {
		m.shadow(w)
		return
	}
	var refusal Answer
	if w.Kind == OpRetry {
		refusal = m.judgeRetry(w)
	} else {
		_, refusal = m.judge(w.Op)
	}
	if refusal.Result != "" {
		m.refused(w, refusal)
		return
	}
	w.bound = m.boundOf(w.asked())
	if w.Kind == OpRetry && m.mistake == RetryBoundAnew {
		w.bound = m.boundOf(m.now)
	}
	alone := len(m.line) == 0
	if alone {
		m.since = instant(m.now)
	}
	if m.turns != nil {
		m.takesPlace(w)
	} else if at := m.retries(); w.Kind == OpRetry {
		if m.line = slices.Insert(slices.Clone(m.line), at, w); at == 0 {
			m.since = instant(m.now)
		}
	} else if m.overtakes(w.N) {
		m.line = slices.Insert(slices.Clone(m.line), 0, w)
		m.since = instant(m.now)
	} else {
		m.line = append(m.line, w)
	}
	waiting := len(m.line)
	m.settle()
	if slices.Contains(m.line, w) || !alone && (m.turns != nil || w.Kind == OpRetry) { // Whose turn it is enters the line, and leaves it at once.
		m.answers[w.index].Entered = Event{Hook: HookEnqueued, At: m.now, Cost: w.N, Waiting: waiting}
	}
}

// overtakes reports whether a newcomer slips past the line, which is a mistake.
func (b *bucket) overtakes(n int) bool {
	return b.mistake == Overtaking && len(b.line) > 0 && b.allowed(b.empty, n).Cmp(instant(b.now)) <= 0
}

func (m *simulator) refused(w *waiter, refusal Answer) {
	m.totals.Refused++
	switch refusal.Result {
	case Closed:
		m.totals.Closed++
	case TooCostly:
		m.totals.TooCostly++
	case QueueFull:
		m.totals.QueueFull++
	case TooLate:
		m.totals.TooLate++
	}
	if m.dryRun {
		m.last = max(m.last, w.came)
		return
	}
	m.finish(w, refusal.Result)
	a := &m.answers[w.index]
	a.Retry, a.Missed = refusal.Retry, refusal.Missed
	m.told(w, HookRefused, refusal.Result)
}

// foresee is Forecast: it predicts and changes nothing.
func (m *simulator) foresee(w *waiter) {
	a := &m.answers[w.index]
	switch {
	case w.N < 0:
		m.finish(w, Negative)
		return
	case w.N == 0:
		m.finish(w, Left)
		return
	}
	wait, refusal := m.judge(w.Op)
	if refusal.Result != "" {
		m.finish(w, refusal.Result)
		a.Retry = refusal.Retry
		return
	}
	m.finish(w, Left)
	place := len(m.line) + 1
	if m.asksTurns(w.Op) {
		_, place, _ = m.judgeTurn(w.Op)
	}
	a.Wait = max(wait, m.seatWait(place))
}

// set is SetLimits: the level is kept, and the line is timed anew.
func (m *simulator) set(w *waiter) {
	if !valid(w.Limits) || (m.limits.InFlight > 0) != (w.Limits.InFlight > 0) {
		m.finish(w, Invalid)
		return
	}
	level := m.level()
	if m.mistake == NoRetime && len(m.line) > 0 {
		m.frozen = m.due()
	}
	m.limits, m.interval = w.Limits, intervalOf(w.Limits.Rate)
	m.events = append(slices.Clip(m.events), past{at: instant(m.now), interval: m.interval, of: -1})
	m.emptyAt(new(big.Rat).Add(instant(m.now), level.Mul(level, m.interval)))
	m.since = instant(m.now)
	if m.mistake == BoundMoves {
		for _, other := range m.line {
			other.bound = m.boundOf(other.asked())
		}
	}
	m.finish(w, Left)
	m.settle()
}

// release is the end of a request that left by an earlier call of Acquire.
func (m *simulator) release(w *waiter) {
	m.finish(w, Left)
	if w.Target < 0 {
		return
	}
	if a := m.answers[w.Target]; w.Race && a.Returned && a.At == m.now {
		m.leaveOpen("a release races with the return of its call")
	}
	i := slices.IndexFunc(m.upstream, func(other *waiter) bool { return other.index == w.Target && other.Kind != OpReserve })
	if i < 0 && m.mistake == FreedTwice && m.answers[w.Target].Result == Left && len(m.upstream) > 0 {
		i = 0
	}
	if i < 0 {
		return
	}
	m.noteStay(m.upstream[i])
	m.free(m.upstream[i])
	m.settle()
}

// held is Hold.
func (m *simulator) held(w *waiter) {
	m.finish(w, Left)
	until := instant(m.now + min(w.Hold, year))
	switch {
	case w.Hold < 0:
	case w.Hold > 0 && m.mistake == HoldShortens:
		m.hold = until
	case w.Hold > 0:
		m.hold = later(m.hold, until)
	case m.hold.Cmp(until) > 0: // The head, which was held, could not leave before.
		m.hold, m.since = new(big.Rat), until
	}
	if w.Hold > 0 {
		m.overdueAtOnce()
	}
	m.settle()
}

// cancel ends the context of an earlier call.
func (m *simulator) cancel(w *waiter) {
	m.finish(w, Left)
	if w.Target < 0 || m.dryRun {
		return
	}
	if a := m.answers[w.Target]; w.Race && a.Returned && a.At == m.now {
		m.leaveOpen("a cancel races with the departure")
	}
	for _, other := range m.line {
		if other.index == w.Target {
			m.abandon(other, Canceled)
			return
		}
	}
	m.stopping = slices.DeleteFunc(m.stopping, func(other *waiter) bool {
		if other.index == w.Target {
			m.finish(other, Canceled)
		}
		return other.index == w.Target
	})
}

// close refuses the whole line.
func (m *simulator) close() {
	m.closed = true
	var late []*waiter
	if m.turns != nil {
		m.turns.keys = make(map[string]*payer)
	}
	for len(m.line) > 0 {
		w := m.line[0]
		m.line = m.line[1:]
		if w.gone(m.now) {
			late = append(late, w)
		} else {
			m.refused(w, Answer{Result: Closed})
		}
	}
	for _, w := range late {
		m.abandoned(w, Gone)
	}
	m.settle()
}

// stop is Shutdown.
func (m *simulator) stop(w *waiter) {
	if m.dryRun {
		m.close()
		m.finish(w, Left)
		return
	}
	m.closed = true
	m.stopping = append(m.stopping, w)
	if len(m.line) > 0 && w.Deadline != 0 && w.Deadline <= m.now {
		m.stopping = m.stopping[:len(m.stopping)-1]
		m.finish(w, Exceeded)
	}
	m.settle()
}

// stats is Stats. With race the counts are left out, because departures may be
// under way.
func (m *simulator) stats(race bool) Look {
	level, _ := m.level().Float64()
	l := Look{Meters: m.meterLooks(race), Waiting: len(m.line), InFlight: len(m.upstream), Level: level, Last: -1, Held: -1}
	if m.hold.Cmp(instant(m.now)) > 0 {
		l.Held = saturated(seen(m.hold))
	}
	if len(m.line) > 0 {
		l.Oldest = m.now - m.line[0].came
		for _, w := range m.line {
			if m.turns != nil {
				l.Oldest = max(l.Oldest, m.now-w.came)
			}
		}
	}
	if !race {
		l.Totals, l.Last = m.totals, m.last
		l.Totals.Reserved = AtMostMaxInt(m.totals.Reserved)
	}
	return l
}

// finish notes the return of a call.
func (m *simulator) finish(w *waiter, result string) {
	a := &m.answers[w.index]
	a.Returned, a.At, a.Result, a.Estimated = true, m.now, result, m.seatWait(len(m.line)+1) > 0
}

// told notes the call of a hook that ends a request.
func (m *simulator) told(w *waiter, hook, err string) {
	a := &m.answers[w.index]
	a.Ended = Event{hook, m.now, m.now - w.came, w.N, len(m.line), err, a.Retry}
	m.last = max(m.last, w.came)
}

// leaveOpen notes that the guarantees allow more than one outcome from here on.
func (m *simulator) leaveOpen(why string) {
	if m.open == "" {
		m.open = why
	}
}

// AtMostMaxInt returns a sum of reserved units as Stats shows it: a sum above the greatest int, which became
// negative, is the greatest int.
func AtMostMaxInt(sum int) int { return int(min(uint64(sum), math.MaxInt)) }
