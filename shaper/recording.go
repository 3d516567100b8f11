package shaper

import (
	"time"

	"example.com/leakybucket/shaper/internal/exact"
)

// A Recording keeps what became of the latest requests of one bucket. [Shaper.Record] and
// [Group.Record] begin one. A bucket may have several. It costs memory and time until Stop
// is called; without any there is next to no cost.
type Recording struct {
	d      *dispatcher
	remove func() // takes it away from those that are recorded into; the lock is held

	// The lock of the dispatcher guards these.
	latest  []*arrival // a ring of max
	max     int
	count   int // of all arrivals; the next one goes to this index, modulo max
	stopped bool
}

// An Arrival is a request that came while a [Recording] was made, and what became of it.
type Arrival struct {
	At       time.Time
	Cost     int
	Deadline time.Time     // of its context; zero: it had none
	Allow    bool          // it was a call of AllowN, which never waits
	Waited   time.Duration // from At to the slot, or to the instant of Err; with Done
	Err      error         // why it has not left: what the call returned, or for AllowN the reason; nil: it has, or still waits
	Done     bool          // false: it still waits
}

// An arrival is an Arrival in a Recording.
type arrival struct {
	at, deadline, cost int64
	waited             int64
	err                error
	allow, done        bool
}

const (
	// copiedAtOnce is how many arrivals Arrivals copies while it holds the lock.
	copiedAtOnce = 256

	// maxRestarts is how often Arrivals begins anew because so many requests come meanwhile
	// that there would be a gap. After that it copies all at once.
	maxRestarts = 3
)

// Record begins a Recording of the latest max requests; a max below 1 counts as 1. A call
// that is not counted in [Stats], such as one of cost 0, is not recorded. In a dry run
// Waited and Err are those of the [Verdict].
func (s *Shaper) Record(max int) *Recording {
	s.mustBeMade()
	r := newRecording(&s.dispatcher, max)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordings = append(s.recordings, r)
	s.recorded = true
	r.remove = func() {
		s.recordings = without(s.recordings, r)
		s.recorded = len(s.recordings) > 0
	}
	return r
}

// Record is [Shaper.Record] for the calls with one key, whether the key has a bucket, shares
// one, or has none for a while. It makes no bucket. A key that does not equal itself,
// such as NaN, has no Recording: it stays empty. A call whose [Limits] cannot be had is recorded with
// that error.
func (g *Group[K]) Record(key K, max int) *Recording {
	g.mustBeMade()
	mustBeComparable(key)
	r := newRecording(&g.dispatcher, max)
	r.remove = func() {}
	if key != key {
		return r
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.recordingsOf == nil {
		g.recordingsOf = make(map[K][]*Recording)
	}
	g.recordingsOf[key] = append(g.recordingsOf[key], r)
	g.recorded = true
	r.remove = func() {
		if left := without(g.recordingsOf[key], r); len(left) > 0 {
			g.recordingsOf[key] = left
		} else {
			delete(g.recordingsOf, key)
		}
		g.recorded = len(g.recordingsOf) > 0
	}
	return r
}

func newRecording(d *dispatcher, most int) *Recording { return &Recording{d: d, max: max(most, 1)} }

// without returns a new slice without one of its elements.
func without(all []*Recording, r *Recording) []*Recording {
	var others []*Recording
	for _, other := range all {
		if other != r {
			others = append(others, other)
		}
	}
	return others
}

// Stop ends the Recording. What it has is kept, and what becomes of requests that wait is
// still noted. It may be called several times.
func (r *Recording) Stop() {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	if !r.stopped {
		r.stopped = true
		r.remove()
	}
}

// Arrivals returns the latest requests, in the order in which they came.
func (r *Recording) Arrivals() []Arrival {
	d := r.d
	d.lockAndAdvance()
	first, end := max(0, r.count-r.max), r.count
	d.unlockAndArm()
	copies := make([]arrival, 0, end-first)
	for restarts, atOnce := 0, copiedAtOnce; first+len(copies) < end; {
		d.mu.Lock()
		if oldest := r.count - r.max; first+len(copies) < oldest { // There would be a gap.
			first, end, copies = oldest, r.count, copies[:0]
			if restarts++; restarts > maxRestarts {
				atOnce = r.max
			}
		}
		for range min(atOnce, end-first-len(copies)) {
			copies = append(copies, *r.latest[(first+len(copies))%r.max])
		}
		d.mu.Unlock()
	}
	arrivals := make([]Arrival, len(copies))
	for i, a := range copies {
		arrivals[i] = Arrival{At: d.timeOf(a.at), Cost: int(a.cost), Allow: a.allow, Waited: time.Duration(a.waited), Err: a.err, Done: a.done}
		if a.deadline != exact.Forever {
			arrivals[i].Deadline = d.timeOf(a.deadline)
		}
	}
	return arrivals
}

// add adds an arrival. The lock is held.
func (r *Recording) add(a *arrival) {
	if len(r.latest) < r.max {
		r.latest = append(r.latest, a)
	} else {
		r.latest[r.count%r.max] = a
	}
	r.count++
}

// recordLocked adds a request to recordings, with what has been decided.
func (d *dispatcher) recordLocked(into []*Recording, now int64, r *request, dec decision) {
	if len(into) == 0 || dec.event == noEvent || dec.event == askEvent {
		return
	}
	a := &arrival{at: now, deadline: r.deadline, cost: r.cost, allow: r.kind == allow, err: dec.err, done: dec.waiter == nil}
	switch {
	case r.verdict != nil:
		a.waited, a.err = int64(r.verdict.Wait), r.verdict.Err
	case a.allow && dec.event == refusedEvent && a.err == nil:
		a.err = reasonErrors[d.refusalRing.last().reason] // No RejectError is made for it.
	case !a.done:
		r.arrival = a
	}
	for _, recording := range into {
		recording.add(a)
	}
}

// settleLocked notes what has become of a request that has waited, if it is recorded.
func (r *request) settleLocked(waited int64, err error) {
	if a := r.arrival; a != nil {
		a.waited, a.err, a.done = waited, err, true
	}
}
