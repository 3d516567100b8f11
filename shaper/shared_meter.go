package shaper

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"example.com/leakybucket/shaper/internal/lease"
	"example.com/leakybucket/shaper/shared"
)

// A meter asks the [shared.Bucket] for requests that may not wait, each whether it may leave now. The lock
// of the dispatcher guards it.
//
// There is one call of the Bucket at a time for each flow. Requests that come meanwhile wait for
// its answer, and are then asked for together: a thousand at once take a few round trips, and no
// more than one connection.
type meter struct {
	sf        *sharedFlow
	asking    int         // calls that ask the Bucket for themselves; see ask
	busy      bool        // one of them, or a goroutine for several, calls the Bucket
	questions []*question // the others, which wait for its end
}

// ask asks the [shared.Bucket] whether a request may leave now.
func (sf *sharedFlow) ask(r *request, note func(now int64, dec decision)) (dec decision) {
	d, m := sf.d, &sf.meter
	if sf.all.grantSeats() {
		if dec, has := sf.seating.reserve(r, note); !has {
			return dec
		}
	}
	d.lockFlow(sf.f)
	if m.busy {
		q := &question{request: r, done: make(chan struct{})}
		m.questions = append(m.questions, q)
		d.unlockAndArm()
		return m.awaitAnswer(q, note)
	}
	m.busy = true
	d.unlockAndArm()
	defer m.askNext()
	return m.askAlone(r, note)
}

// askAlone asks for one request, in a call that ends with the request's context.
func (m *meter) askAlone(r *request, note func(now int64, dec decision)) (dec decision) {
	sf, d := m.sf, m.sf.d
	f, ended := sf.f, false
	defer func() {
		if !ended { // The Bucket has panicked, or the context.
			d.mu.Lock()
			m.endAskLocked()
			d.unlockAndArm()
		}
	}()
	for {
		now := d.lockFlow(f)
		t := sf.questionLocked(r.cost, now)
		sf.breaker.Asks(now, sf.all.timeout)
		d.unlockAndArm()
		ctx, cancel := context.WithTimeout(r.ctx, sf.all.timeout)
		a := func() answer {
			defer cancel()
			return sf.all.call(ctx, t)
		}()
		a.gone = r.ctx.Err() // It is the caller's code, so the lock is not held.
		now = d.lockFlow(f)
		dec, ended = m.answeredLocked(r, t, a)
		if ended {
			r.entered = now
			note(now, dec)
		}
		d.unlockAndArm()
		if ended {
			return dec
		}
	}
}

// A question is a request of the meter that waits while the [shared.Bucket] is asked for others. The lock
// of the dispatcher guards it until done is closed.
type question struct {
	*request
	dec      decision
	ended    bool // dec is its outcome, or it has panicked
	panicked any
	cancel   func() // ends the call of the Bucket if all have gone that it is for; nil before the call
	done     chan struct{}
}

// awaitAnswer waits for the end of a question, or until the context of the request ends.
func (m *meter) awaitAnswer(q *question, note func(now int64, dec decision)) decision {
	sf, d := m.sf, m.sf.d
	select {
	case <-q.done:
	case <-q.ctx.Done():
	}
	gone := errOf(q.ctx)
	now := d.lockFlow(sf.f)
	defer d.unlockAndArm()
	if !q.ended {
		// The others are asked for all the same. Units that are taken for this one are dropped.
		q.ended, q.entered = true, now
		sf.f.countAbandonment(d.totals, now)
		q.dec = decision{err: cmp.Or(gone, context.Canceled), event: abandonedEvent, waiting: int32(sf.f.waiting())}
		if i := slices.Index(m.questions, q); i >= 0 {
			m.questions = slices.Delete(m.questions, i, i+1)
			m.endAskLocked()
		} else if q.cancel != nil {
			q.cancel()
		}
	}
	if q.panicked != nil {
		panic(q.panicked)
	}
	note(now, q.dec)
	return q.dec
}

// askNext asks for those that have come meanwhile, in a goroutine that ends when there are none.
func (m *meter) askNext() {
	d := m.sf.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.busy = len(m.questions) > 0; m.busy {
		go m.askForAll()
	}
}

// askForAll asks for all questions of a lease.
func (m *meter) askForAll() {
	sf, d := m.sf, m.sf.d
	defer m.askNext()
	d.lockFlow(sf.f)
	batch := m.questions
	m.questions = nil
	d.unlockAndArm()
	for refused := 0; len(batch) > 0; {
		t, n := m.questionFor(&batch, refused)
		if n == 0 {
			return
		}
		a, panicked := m.askTogether(batch, t)
		gone := make([]error, len(batch))
		for i, q := range batch {
			gone[i] = errOf(q.ctx) // It is the caller's code, so the lock is not held.
		}
		now := d.lockFlow(sf.f)
		if panicked != nil {
			batch[0].panicked = panicked
			m.endQuestionLocked(batch[0], func() (dec decision) { return dec })
			batch = batch[1:]
		} else {
			batch = m.answeredTogetherLocked(batch, gone, n, t, a, now)
		}
		if refused++; a.taken.OK {
			refused = 0
		}
		d.unlockAndArm()
	}
}

// questionFor returns the question for as many of a batch as the level seems to have room for, and
// how many these are; 0 if the [shared.Bucket] can't be asked, and all have been decided upon without it.
// refused is how many questions have been refused in a row: after a few, as other processes take
// the room, it asks for one request.
func (m *meter) questionFor(batch *[]*question, refused int) (t shared.Take, n int) {
	sf, d := m.sf, m.sf.d
	now := d.lockFlow(sf.f)
	defer d.unlockAndArm()
	sf.checkFallbackLocked(now)
	if d.phase == closed || sf.fallback || sf.isUnavailableLocked(now) {
		for _, q := range *batch {
			m.endQuestionLocked(q, func() decision { return m.decideWithoutLocked(now, q.request) })
		}
		*batch = nil
		return t, 0
	}
	cost, room := (*batch)[0].cost, sf.Room(now)
	for n = 1; n < len(*batch) && refused < 3 && (*batch)[n].cost <= room-cost; n++ {
		cost += (*batch)[n].cost
	}
	sf.breaker.Asks(now, sf.all.timeout)
	return sf.questionLocked(cost, now), n
}

// askTogether asks the [shared.Bucket] for the requests of a batch. Only if all of them have gone does the
// call end before its time. If the Bucket panics, it returns the value of the panic.
func (m *meter) askTogether(batch []*question, t shared.Take) (a answer, panicked any) {
	sf, d := m.sf, m.sf.d
	ctx, cancel := context.WithTimeout(context.Background(), sf.all.timeout)
	defer cancel()
	d.mu.Lock()
	staying := 0
	for _, q := range batch {
		q.cancel = func() {
			if staying--; staying == 0 {
				cancel()
			}
		}
		if !q.ended {
			staying++
		}
	}
	d.mu.Unlock()
	defer func() { panicked = recover() }()
	return sf.all.call(ctx, t), nil
}

// errOf returns the error of a context; also of one that panics, as nobody could be told here.
func errOf(ctx context.Context) (err error) {
	defer func() {
		if recover() != nil {
			err = context.Canceled
		}
	}()
	return ctx.Err()
}

// endQuestionLocked ends a question, and decides upon its request unless that has gone.
func (m *meter) endQuestionLocked(q *question, decide func() decision) {
	d := m.sf.d
	m.endAskLocked() // passLocked takes a seat again.
	if !q.ended {
		q.ended, q.entered, q.dec = true, d.clock, decide()
		close(q.done)
	}
}

// answeredTogetherLocked decides upon a batch with the answer to the question for its first n. It
// returns those that are to be asked for again. gone are the errors of their contexts.
func (m *meter) answeredTogetherLocked(batch []*question, gone []error, n int, t shared.Take, a answer, now int64) (again []*question) {
	sf, d := m.sf, m.sf.d
	f := sf.f
	stay := slices.ContainsFunc(batch, func(q *question) bool { return !q.ended })
	answered := (a.err == nil || stay || slices.ContainsFunc(gone, func(err error) bool { return sf.isSilentLocked(a, err) })) &&
		sf.noteAnswerLocked(t, a)
	granted := answered && a.taken.OK
	empty := a.taken.Empty // when the level reaches 0, with the part of the batch that has been used so far
	if granted {
		sf.CountLeased(t.Cost)
		sf.NoteHigh(t, a.taken)
	}
	if answered && t.Rate == sf.Rate && a.taken.Other == nil && sf.Leased() == 0 {
		sf.estimateFromLocked(sf.PaceInterval(), sf.Clock.Reaches(lease.NanosOf(t.Rate, empty).Ceil())) // passLocked adds the costs.
	}
	current := t.Rate == sf.Rate && a.taken.Other == nil // The answer says something about the rate in force.
	for i, q := range batch {
		due, has := empty, granted && i < n
		if has {
			empty = t.Rate.Plus(empty, t.Rate.Times(q.cost))
		}
		use := has && !q.ended && gone[i] == nil && d.phase != closed && !sf.Off && !sf.IsLate(t, due, now)
		if has && !use {
			sf.Drop(q.cost)
		}
		fits := lease.Fits(t, empty, a.taken.Now, q.cost) && (n > 1 || i > 0) // The Bucket has refused that one alone.
		switch {
		case q.ended, gone[i] != nil, d.phase == closed, sf.Off, !answered, use, !has && current && !fits:
			m.endQuestionLocked(q, func() decision {
				switch r := q.request; {
				case gone[i] != nil:
					f.countAbandonment(d.totals, now)
					return decision{err: gone[i], event: abandonedEvent, waiting: int32(f.waiting())}
				case d.phase == closed:
					return d.refuseLocked(f, now, r, rejection{reason: refusedClosed})
				case sf.Off: // There is no rate any more.
					return d.admitLocked(f, now, r, d.judgeLocked(f, now, r))
				case use:
					dec := d.passLocked(f, now, r)
					dec.waiting = int32(f.waiting())
					sf.NotUsed() // It has used no units of the lease.
					return dec
				case answered:
					return d.refuseFullLocked(f, now, r, lease.UntilRoom(t, empty, a.taken.Now, q.cost))
				default:
					return m.decideWithoutLocked(now, r)
				}
			})
		default:
			again = append(again, q)
		}
	}
	return again
}

// endAskLocked ends the question of a call to the [shared.Bucket], and releases the seat that was taken
// for it.
func (m *meter) endAskLocked() {
	sf, d := m.sf, m.sf.d
	f := sf.f
	m.endWithoutSeatLocked()
	if f.capped() {
		f.freeSeat(d.clock)
		d.markDirtyLocked(f)
	}
}

// endWithoutSeatLocked is endAskLocked for a call that has no seat.
func (m *meter) endWithoutSeatLocked() {
	sf, d := m.sf, m.sf.d
	if m.asking--; m.asking == 0 && d.phase == closed && d.host != nil {
		sf.all.drop(sf.f)
	}
}

// isSilentLocked reports whether a call that ended early, as its caller has gone, says something
// about the [shared.Bucket]: if it was a deadline that passed while the Bucket took much longer than it
// usually does.
func (sf *sharedFlow) isSilentLocked(a answer, gone error) bool {
	return errors.Is(gone, context.DeadlineExceeded) && a.received-a.sent >= max(int64(sf.all.timeout)/5, 4*sf.MeanTrip)
}

// answeredLocked decides upon a request with the answer to its question. done is false if it is
// to be asked again, as another rate is in force, or the answer came too late to be used.
func (m *meter) answeredLocked(r *request, t shared.Take, a answer) (dec decision, done bool) {
	sf, d := m.sf, m.sf.d
	f, now := sf.f, d.clock
	gone, answered := a.gone, false
	if gone == nil || a.err == nil || sf.isSilentLocked(a, gone) {
		answered = sf.noteAnswerLocked(t, a)
	}
	granted := answered && a.taken.OK // It leaves, even if another rate has come into force meanwhile.
	if granted {
		sf.CountLeased(r.cost)
	}
	if granted && (gone != nil || d.phase == closed || sf.IsLate(t, a.taken.Empty, now)) {
		sf.Drop(r.cost)
		granted = false
	}
	if gone == nil && d.phase != closed && sf.Off { // There is no rate any more.
		if granted {
			sf.Drop(r.cost)
		}
		m.endAskLocked()
		return d.admitLocked(f, now, r, d.judgeLocked(f, now, r)), true
	}
	if answered && !granted && gone == nil && d.phase != closed && (a.taken.OK || t.Rate != sf.Rate) {
		return dec, false
	}
	m.endAskLocked() // passLocked takes a seat again.
	if answered && t.Rate == sf.Rate && a.taken.Other == nil && sf.Leased() == 0 {
		sf.estimateFromLocked(sf.PaceInterval(), sf.Clock.Reaches(lease.NanosOf(t.Rate, a.taken.Empty).Ceil())) // passLocked adds the cost.
	}
	switch {
	case gone != nil:
		f.countAbandonment(d.totals, now)
		return decision{err: gone, event: abandonedEvent, waiting: int32(f.waiting())}, true
	case d.phase == closed:
		return d.refuseLocked(f, now, r, rejection{reason: refusedClosed}), true
	case granted:
		sf.NoteHigh(t, a.taken)
		dec = d.passLocked(f, now, r)
		dec.waiting = int32(f.waiting()) // Requests may have entered the line while the Bucket was asked.
		sf.NotUsed()                     // It has used no units of the lease.
		return dec, true
	case answered:
		return d.refuseFullLocked(f, now, r, lease.UntilRoom(t, a.taken.Empty, a.taken.Now, r.cost)), true
	}
	return m.decideWithoutLocked(now, r), true
}

// decideWithoutLocked decides upon a request of the meter for which the [shared.Bucket] could not be asked, or
// is not any more.
func (m *meter) decideWithoutLocked(now int64, r *request) decision {
	sf, d := m.sf, m.sf.d
	sf.checkFallbackLocked(now)
	if d.phase == closed {
		return d.refuseLocked(sf.f, now, r, rejection{reason: refusedClosed})
	}
	if sf.fallback {
		return d.admitLocked(sf.f, now, r, d.judgeLocked(sf.f, now, r))
	}
	return d.refuseLocked(sf.f, now, r, sf.unavailableLocked(now))
}
