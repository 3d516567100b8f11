package shaper

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"
)

// ask is the meter: it asks the [Bucket] whether a request may leave now, and calls note with
// what has been decided, under the lock. It is called without the lock.
//
// There is one call of the Bucket at a time for each lease. Requests that come meanwhile wait for
// its answer, and are then asked for together: a thousand at once take a few round trips, and no
// more than one connection.
func (d *dispatcher) ask(f *flow, r *request, note func(now int64, dec decision)) (dec decision) {
	d.lockFlow(f)
	ls := d.shared.leases[f] // It stays while a call asks.
	if ls.metering {
		q := &question{request: *r, done: make(chan struct{})} // A copy, so that r need not be on the heap.
		ls.questions = append(ls.questions, q)
		d.unlockAndArm()
		return d.awaitAnswer(ls, q, r, note)
	}
	ls.metering = true
	d.unlockAndArm()
	defer d.askNext(ls)
	return d.askAlone(ls, r, note)
}

// askAlone asks for one request, in a call that ends with the request's context.
func (d *dispatcher) askAlone(ls *lease, r *request, note func(now int64, dec decision)) (dec decision) {
	f, ended := ls.f, false
	defer func() {
		if !ended { // The Bucket has panicked, or the context.
			d.mu.Lock()
			d.endAskLocked(ls)
			d.unlockAndArm()
		}
	}()
	for {
		now := d.lockFlow(f)
		t := ls.questionLocked(r.cost)
		d.shared.asksLocked(ls.backend, now)
		d.unlockAndArm()
		ctx, cancel := context.WithTimeout(r.ctx, d.shared.timeout)
		a := func() answer {
			defer cancel()
			return d.askBucket(ctx, t)
		}()
		a.gone = r.ctx.Err() // It is the caller's code, so the lock is not held.
		now = d.lockFlow(f)
		dec, ended = d.answeredLocked(ls, r, t, a)
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
func (d *dispatcher) awaitAnswer(ls *lease, q *question, r *request, note func(now int64, dec decision)) decision {
	select {
	case <-q.done:
	case <-r.ctx.Done():
	}
	gone := errOf(r.ctx)
	now := d.lockFlow(ls.f)
	defer d.unlockAndArm()
	if !q.ended {
		// The others are asked for all the same. What is taken for this one is dropped.
		q.ended, q.entered = true, now
		d.countAbandonmentLocked(ls.f, now)
		q.dec = decision{err: cmp.Or(gone, context.Canceled), event: abandonedEvent, waiting: int32(ls.f.waiting())}
		if i := slices.Index(ls.questions, q); i >= 0 {
			ls.questions = slices.Delete(ls.questions, i, i+1)
			d.endAskLocked(ls)
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
func (d *dispatcher) askNext(ls *lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ls.metering = len(ls.questions) > 0; ls.metering {
		go d.askForAll(ls)
	}
}

// askForAll asks for all questions of a lease.
func (d *dispatcher) askForAll(ls *lease) {
	defer d.askNext(ls)
	d.lockFlow(ls.f)
	batch := ls.questions
	ls.questions = nil
	d.unlockAndArm()
	for refused := 0; len(batch) > 0; {
		t, n := d.questionFor(ls, &batch, refused)
		if n == 0 {
			return
		}
		a, panicked := d.askTogether(batch, t)
		gone := make([]error, len(batch))
		for i, q := range batch {
			gone[i] = errOf(q.ctx) // It is the caller's code, so the lock is not held.
		}
		now := d.lockFlow(ls.f)
		if panicked != nil {
			batch[0].panicked = panicked
			d.endQuestionLocked(ls, batch[0], func() (dec decision) { return dec })
			batch = batch[1:]
		} else {
			batch = d.answeredTogetherLocked(ls, batch, gone, n, t, a, now)
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
func (d *dispatcher) questionFor(ls *lease, batch *[]*question, refused int) (t Take, n int) {
	now := d.lockFlow(ls.f)
	defer d.unlockAndArm()
	ls.checkFallbackLocked(now)
	if d.phase == closed || ls.fallback || d.isUnavailableLocked(ls, now) {
		for _, q := range *batch {
			d.endQuestionLocked(ls, q, func() decision { return d.decideWithoutLocked(ls, now, &q.request) })
		}
		*batch = nil
		return t, 0
	}
	cost, room := (*batch)[0].cost, ls.roomLocked(now)
	for n = 1; n < len(*batch) && refused < 3 && (*batch)[n].cost <= room-cost; n++ {
		cost += (*batch)[n].cost
	}
	d.shared.asksLocked(ls.backend, now)
	return ls.questionLocked(cost), n
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
func (d *dispatcher) endQuestionLocked(ls *lease, q *question, decide func() decision) {
	d.endAskLocked(ls) // passLocked takes a seat again.
	if !q.ended {
		q.ended, q.entered, q.dec = true, d.clock, decide()
		close(q.done)
	}
}

// answeredTogetherLocked decides upon a batch with the answer to the question for its first n. It
// returns those that are to be asked for again. gone are the errors of their contexts.
func (d *dispatcher) answeredTogetherLocked(ls *lease, batch []*question, gone []error, n int, t Take, a answer, now int64) (again []*question) {
	f := ls.f
	stay := slices.ContainsFunc(batch, func(q *question) bool { return !q.ended })
	answered := (a.err == nil || stay || slices.ContainsFunc(gone, func(err error) bool { return ls.isSilentLocked(a, err) })) &&
		ls.noteAnswerLocked(t, a)
	granted := answered && a.taken.OK
	empty := a.taken.Empty // when the level reaches 0, with what has been used of the batch so far
	if granted {
		ls.countLeasedLocked(t.Cost)
		ls.noteHighLocked(t, a.taken)
	}
	if answered && t.Rate == ls.rate && a.taken.Other == nil && ls.leasedLocked() == 0 {
		ls.estimateFromLocked(ls.paceIntervalLocked(), ls.clock.reaches(nanosOf(t.Rate, empty).Ceil())) // passLocked adds the costs.
	}
	current := t.Rate == ls.rate && a.taken.Other == nil // The answer says something about the rate in force.
	for i, q := range batch {
		due, has := empty, granted && i < n
		if has {
			empty = t.Rate.Plus(empty, t.Rate.Times(q.cost))
		}
		use := has && !q.ended && gone[i] == nil && d.phase != closed && !ls.given.interval.IsZero() && !ls.isLateLocked(t, due, now)
		if has && !use {
			ls.dropLocked(q.cost)
		}
		fits := fits(t, empty, a.taken.Now, q.cost) && (n > 1 || i > 0) // The Bucket has refused that one alone.
		switch {
		case q.ended, gone[i] != nil, d.phase == closed, ls.given.interval.IsZero(), !answered, use, !has && current && !fits:
			d.endQuestionLocked(ls, q, func() decision {
				switch r := &q.request; {
				case gone[i] != nil:
					d.countAbandonmentLocked(f, now)
					return decision{err: gone[i], event: abandonedEvent, waiting: int32(f.waiting())}
				case d.phase == closed:
					return d.refuseLocked(f, now, r, rejection{reason: refusedClosed})
				case ls.given.interval.IsZero(): // There is no rate any more.
					return d.admitLocked(f, now, r, d.judgeLocked(f, now, r))
				case use:
					dec := d.passLocked(f, now, r)
					dec.waiting = int32(f.waiting())
					ls.since = f.bucket.departures // It has used no units of the lease.
					return dec
				case answered:
					return d.refuseFullLocked(f, now, r, untilRoom(t, empty, a.taken.Now, q.cost))
				default:
					return d.decideWithoutLocked(ls, now, r)
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
func (d *dispatcher) endAskLocked(ls *lease) {
	f := ls.f
	if ls.asking--; ls.asking == 0 && d.phase == closed && d.keyed {
		delete(d.shared.leases, f)
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

// isLateLocked reports whether a unit that was taken for a request, and was due at an instant, can't be
// used any more: the answer took too long.
func (ls *lease) isLateLocked(t Take, due Instant, now int64) bool {
	return ls.clock.latest(now)-ls.latenessLocked() > nanosOf(t.Rate, due).Whole()
}

// isSilentLocked reports whether a call that ended early, as its caller has gone, says something
// about the [Bucket]: if it was a deadline that passed while the Bucket took much longer than it
// usually does.
func (ls *lease) isSilentLocked(a answer, gone error) bool {
	return errors.Is(gone, context.DeadlineExceeded) && a.received-a.sent >= max(int64(ls.d.shared.timeout)/5, 4*ls.meanTrip)
}

// answeredLocked decides upon a request with the answer to its question. done is false if it is
// to be asked again, as another rate is in force, or the answer came too late to be used.
func (d *dispatcher) answeredLocked(ls *lease, r *request, t Take, a answer) (dec decision, done bool) {
	f, now := ls.f, d.clock
	gone, answered := a.gone, false
	if gone == nil || a.err == nil || ls.isSilentLocked(a, gone) {
		answered = ls.noteAnswerLocked(t, a)
	}
	granted := answered && a.taken.OK // It leaves, even if another rate has come into force meanwhile.
	if granted {
		ls.countLeasedLocked(r.cost)
	}
	if granted && (gone != nil || d.phase == closed || ls.isLateLocked(t, a.taken.Empty, now)) {
		ls.dropLocked(r.cost)
		granted = false
	}
	if gone == nil && d.phase != closed && ls.given.interval.IsZero() { // There is no rate any more.
		if granted {
			ls.dropLocked(r.cost)
		}
		d.endAskLocked(ls)
		return d.admitLocked(f, now, r, d.judgeLocked(f, now, r)), true
	}
	if answered && !granted && gone == nil && d.phase != closed && (a.taken.OK || t.Rate != ls.rate) {
		return dec, false
	}
	d.endAskLocked(ls) // passLocked takes a seat again.
	if answered && t.Rate == ls.rate && a.taken.Other == nil && ls.leasedLocked() == 0 {
		ls.estimateFromLocked(ls.paceIntervalLocked(), ls.clock.reaches(nanosOf(t.Rate, a.taken.Empty).Ceil())) // passLocked adds the cost.
	}
	switch {
	case gone != nil:
		d.countAbandonmentLocked(f, now)
		return decision{err: gone, event: abandonedEvent, waiting: int32(f.waiting())}, true
	case d.phase == closed:
		return d.refuseLocked(f, now, r, rejection{reason: refusedClosed}), true
	case granted:
		ls.noteHighLocked(t, a.taken)
		dec = d.passLocked(f, now, r)
		dec.waiting = int32(f.waiting()) // Requests may have entered the line while the Bucket was asked.
		ls.since = f.bucket.departures   // It has used no units of the lease.
		return dec, true
	case answered:
		return d.refuseFullLocked(f, now, r, untilRoom(t, a.taken.Empty, a.taken.Now, r.cost)), true
	}
	return d.decideWithoutLocked(ls, now, r), true
}

// decideWithoutLocked decides upon a request of the meter for which the [Bucket] could not be asked, or
// is not any more.
func (d *dispatcher) decideWithoutLocked(ls *lease, now int64, r *request) decision {
	ls.checkFallbackLocked(now)
	if d.phase == closed {
		return d.refuseLocked(ls.f, now, r, rejection{reason: refusedClosed})
	}
	if ls.fallback {
		return d.admitLocked(ls.f, now, r, d.judgeLocked(ls.f, now, r))
	}
	return d.refuseUnavailableLocked(ls, now, r)
}

// noteHighLocked notes up to which instant the level has been raised.
func (ls *lease) noteHighLocked(t Take, taken Taken) {
	if t.Rate == ls.rate {
		ls.high = ls.high.Later(t.Rate.Plus(taken.Empty, t.Rise()))
	}
}

// untilRoom returns after which time from now on, a reading of the [Bucket]'s clock in microseconds,
// a request of cost n may leave, if the level reaches 0 at an instant. The Bucket counts in whole
// microseconds, so it says yes from the next one on.
func untilRoom(t Take, empty Instant, now, n int64) time.Duration {
	t.First = n
	first := t.Rate.Minus(empty, t.Room())
	if first.Part > 0 {
		first.Micros++
	}
	return max(time.Duration(first.Micros-now)*time.Microsecond, time.Microsecond)
}

// fits reports whether a request of cost n may leave at a reading of the [Bucket]'s clock.
func fits(t Take, empty Instant, now, n int64) bool {
	t.First = n
	first := t.Rate.Minus(empty, t.Room())
	return first.Micros < now || first.Micros == now && first.Part == 0
}
