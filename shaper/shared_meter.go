package shaper

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"example.com/leakybucket/shaper/internal/lease"
)

// ask is the meter: it asks the [Bucket] whether a request may leave now, and calls note with
// what has been decided, under the lock. It is called without the lock.
//
// There is one call of the Bucket at a time for each lease. Requests that come meanwhile wait for
// its answer, and are then asked for together: a thousand at once take a few round trips, and no
// more than one connection.
func (d *dispatcher) ask(f *flow, r *request, note func(now int64, dec decision)) (dec decision) {
	d.lockFlow(f)
	sf := d.shared.flows[f] // It stays while a call asks.
	if sf.metering {
		q := &question{request: *r, done: make(chan struct{})} // A copy, so that r need not be on the heap.
		sf.questions = append(sf.questions, q)
		d.unlockAndArm()
		return d.awaitAnswer(sf, q, r, note)
	}
	sf.metering = true
	d.unlockAndArm()
	defer d.askNext(sf)
	return d.askAlone(sf, r, note)
}

// askAlone asks for one request, in a call that ends with the request's context.
func (d *dispatcher) askAlone(sf *sharedFlow, r *request, note func(now int64, dec decision)) (dec decision) {
	f, ended := sf.f, false
	defer func() {
		if !ended { // The Bucket has panicked, or the context.
			d.mu.Lock()
			d.endAskLocked(sf)
			d.unlockAndArm()
		}
	}()
	for {
		now := d.lockFlow(f)
		t := sf.Question(r.cost)
		sf.breaker.Asks(now, d.shared.timeout)
		d.unlockAndArm()
		ctx, cancel := context.WithTimeout(r.ctx, d.shared.timeout)
		a := func() answer {
			defer cancel()
			return d.askBucket(ctx, t)
		}()
		a.gone = r.ctx.Err() // It is the caller's code, so the lock is not held.
		now = d.lockFlow(f)
		dec, ended = d.answeredLocked(sf, r, t, a)
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

// A question is a request of the meter that waits while the [Bucket] is asked for others. The lock
// of the dispatcher guards it until done is closed.
type question struct {
	request
	dec      decision
	ended    bool // dec says what has become of it, or it has panicked
	panicked any
	cancel   func() // ends the call of the Bucket if all have gone that it is for; nil before the call
	done     chan struct{}
}

// awaitAnswer waits for what becomes of a question, or until the context of the request ends.
func (d *dispatcher) awaitAnswer(sf *sharedFlow, q *question, r *request, note func(now int64, dec decision)) decision {
	select {
	case <-q.done:
	case <-r.ctx.Done():
	}
	gone := errOf(r.ctx)
	now := d.lockFlow(sf.f)
	defer d.unlockAndArm()
	if !q.ended {
		// The others are asked for all the same. What is taken for this one is dropped.
		q.ended, q.entered = true, now
		d.countAbandonmentLocked(sf.f, now)
		q.dec = decision{err: cmp.Or(gone, context.Canceled), event: abandonedEvent, waiting: int32(sf.f.waiting())}
		if i := slices.Index(sf.questions, q); i >= 0 {
			sf.questions = slices.Delete(sf.questions, i, i+1)
			d.endAskLocked(sf)
		} else if q.cancel != nil {
			q.cancel()
		}
	}
	if q.panicked != nil {
		panic(q.panicked)
	}
	*r = q.request
	note(now, q.dec)
	return q.dec
}

// askNext asks for those that have come meanwhile, in a goroutine that ends when there are none.
func (d *dispatcher) askNext(sf *sharedFlow) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if sf.metering = len(sf.questions) > 0; sf.metering {
		go d.askForAll(sf)
	}
}

// askForAll asks for all questions of a lease.
func (d *dispatcher) askForAll(sf *sharedFlow) {
	defer d.askNext(sf)
	d.lockFlow(sf.f)
	batch := sf.questions
	sf.questions = nil
	d.unlockAndArm()
	for refused := 0; len(batch) > 0; {
		t, n := d.questionFor(sf, &batch, refused)
		if n == 0 {
			return
		}
		a, panicked := d.askTogether(batch, t)
		gone := make([]error, len(batch))
		for i, q := range batch {
			gone[i] = errOf(q.ctx) // It is the caller's code, so the lock is not held.
		}
		now := d.lockFlow(sf.f)
		if panicked != nil {
			batch[0].panicked = panicked
			d.endQuestionLocked(sf, batch[0], func() (dec decision) { return dec })
			batch = batch[1:]
		} else {
			batch = d.answeredTogetherLocked(sf, batch, gone, n, t, a, now)
		}
		if refused++; a.taken.OK {
			refused = 0
		}
		d.unlockAndArm()
	}
}

// questionFor returns the question for as many of a batch as the level seems to have room for, and
// how many these are; 0 if the [Bucket] can't be asked, and all have been decided upon without it.
// refused is how many questions have been refused in a row: after a few, as other processes take
// the room, it asks for one request.
func (d *dispatcher) questionFor(sf *sharedFlow, batch *[]*question, refused int) (t Take, n int) {
	now := d.lockFlow(sf.f)
	defer d.unlockAndArm()
	sf.checkFallbackLocked(now)
	if d.phase == closed || sf.fallback || d.isUnavailableLocked(sf, now) {
		for _, q := range *batch {
			d.endQuestionLocked(sf, q, func() decision { return d.decideWithoutLocked(sf, now, &q.request) })
		}
		*batch = nil
		return t, 0
	}
	cost, room := (*batch)[0].cost, sf.Room(now)
	for n = 1; n < len(*batch) && refused < 3 && (*batch)[n].cost <= room-cost; n++ {
		cost += (*batch)[n].cost
	}
	sf.breaker.Asks(now, d.shared.timeout)
	return sf.Question(cost), n
}

// askTogether asks the [Bucket] for the requests of a batch. Only if all of them have gone does the
// call end before its time. If the Bucket panics, it returns with what.
func (d *dispatcher) askTogether(batch []*question, t Take) (a answer, panicked any) {
	ctx, cancel := context.WithTimeout(context.Background(), d.shared.timeout)
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
	return d.askBucket(ctx, t), nil
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
func (d *dispatcher) endQuestionLocked(sf *sharedFlow, q *question, decide func() decision) {
	d.endAskLocked(sf) // passLocked takes a seat again.
	if !q.ended {
		q.ended, q.entered, q.dec = true, d.clock, decide()
		close(q.done)
	}
}

// answeredTogetherLocked decides upon a batch with the answer to the question for its first n. It
// returns those that are to be asked for again. gone are the errors of their contexts.
func (d *dispatcher) answeredTogetherLocked(sf *sharedFlow, batch []*question, gone []error, n int, t Take, a answer, now int64) (again []*question) {
	f := sf.f
	stay := slices.ContainsFunc(batch, func(q *question) bool { return !q.ended })
	answered := (a.err == nil || stay || slices.ContainsFunc(gone, func(err error) bool { return sf.isSilentLocked(a, err) })) &&
		sf.noteAnswerLocked(t, a)
	granted := answered && a.taken.OK
	empty := a.taken.Empty // when the level reaches 0, with what has been used of the batch so far
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
			d.endQuestionLocked(sf, q, func() decision {
				switch r := &q.request; {
				case gone[i] != nil:
					d.countAbandonmentLocked(f, now)
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
					return d.decideWithoutLocked(sf, now, r)
				}
			})
		default:
			again = append(again, q)
		}
	}
	return again
}

// endAskLocked ends the question of a call to the [Bucket], and releases the seat that was taken
// for it.
func (d *dispatcher) endAskLocked(sf *sharedFlow) {
	f := sf.f
	if sf.asking--; sf.asking == 0 && d.phase == closed && d.keyed {
		delete(d.shared.flows, f)
	}
	if f.capped() {
		f.freeSeat(d.clock)
		d.markDirtyLocked(f)
	}
}

// An answer is what a call of [Bucket.Take] has returned, and between which instants it was made.
type answer struct {
	taken          Taken
	sent, received int64
	err            error
	gone           error // of the context of the request that has asked for itself
}

// isSilentLocked reports whether a call that ended early, as its caller has gone, says something
// about the [Bucket]: if it was a deadline that passed while the Bucket took much longer than it
// usually does.
func (sf *sharedFlow) isSilentLocked(a answer, gone error) bool {
	return errors.Is(gone, context.DeadlineExceeded) && a.received-a.sent >= max(int64(sf.d.shared.timeout)/5, 4*sf.MeanTrip)
}

// answeredLocked decides upon a request with the answer to its question. done is false if it is
// to be asked again, as another rate is in force, or the answer came too late to be used.
func (d *dispatcher) answeredLocked(sf *sharedFlow, r *request, t Take, a answer) (dec decision, done bool) {
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
		d.endAskLocked(sf)
		return d.admitLocked(f, now, r, d.judgeLocked(f, now, r)), true
	}
	if answered && !granted && gone == nil && d.phase != closed && (a.taken.OK || t.Rate != sf.Rate) {
		return dec, false
	}
	d.endAskLocked(sf) // passLocked takes a seat again.
	if answered && t.Rate == sf.Rate && a.taken.Other == nil && sf.Leased() == 0 {
		sf.estimateFromLocked(sf.PaceInterval(), sf.Clock.Reaches(lease.NanosOf(t.Rate, a.taken.Empty).Ceil())) // passLocked adds the cost.
	}
	switch {
	case gone != nil:
		d.countAbandonmentLocked(f, now)
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
	return d.decideWithoutLocked(sf, now, r), true
}

// decideWithoutLocked decides upon a request of the meter for which the [Bucket] could not be asked, or
// is not any more.
func (d *dispatcher) decideWithoutLocked(sf *sharedFlow, now int64, r *request) decision {
	sf.checkFallbackLocked(now)
	if d.phase == closed {
		return d.refuseLocked(sf.f, now, r, rejection{reason: refusedClosed})
	}
	if sf.fallback {
		return d.admitLocked(sf.f, now, r, d.judgeLocked(sf.f, now, r))
	}
	return d.refuseUnavailableLocked(sf, now, r)
}
