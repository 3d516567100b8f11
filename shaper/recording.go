package shaper

import (
	"strings"
	"sync/atomic"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/watch"
)

// A Recording keeps the outcomes of the latest requests of one bucket. [Shaper.Record] and
// [Group.Record] begin one. A bucket may have several. It costs memory and time until Stop
// is called; without any there is next to no cost.
type Recording struct {
	d      *dispatcher
	remove func() // takes it away from those that are recorded into; the lock is held

	// The lock of the dispatcher guards these.
	latest  []*arrival // a ring of max
	max     int
	count   uint64 // of all arrivals; the next one goes to this index, modulo max
	stopped bool
	left    []departure // a ring of max
	leftAll uint64      // as count, of all departures
}

// An Arrival is a request that came while a [Recording] was made, with its outcome.
type Arrival struct {
	At       time.Time
	Cost     int
	Deadline time.Time     // of its context; zero: it had none
	Allow    bool          // it was a call of AllowN, which never waits
	Waited   time.Duration // from At to the slot, or to the instant of Err; with Done
	Err      error         // why it has not left: the error of the call, or for AllowN the reason; nil: it has, or still waits
	Done     bool          // false: it still waits
}

// An arrival is an [Arrival] in a [Recording]. Its end may be noted under the lock of another
// shard of a [Group] than the shard of the Recording.
type arrival struct {
	at, deadline, cost int64
	allow              bool
	end                atomic.Pointer[ending] // nil: it still waits
}

// An ending is the outcome of an arrival. It never changes.
type ending struct {
	waited int64
	err    error
}

// A departure is a [watch.Departure] in a [Recording].
type departure struct {
	at, cost int64
	key      string
}

// maxRecordedKey is how many bytes of a key a departure keeps. Keys may come from clients, and
// a Recording must not keep what they have sent in memory.
const maxRecordedKey = 256

const (
	// copiedAtOnce is how many arrivals Arrivals copies while it holds the lock.
	copiedAtOnce = 256

	// maxRestarts is how often Arrivals begins anew because so many requests come meanwhile
	// that there would be a gap. After that it copies all at once.
	maxRestarts = 3
)

// Record begins a [Recording] of the latest max requests; a max below 1 counts as 1. A call
// that is not counted in [Stats], such as one of cost 0, is not recorded. In a dry run
// [Arrival.Waited] and [Arrival.Err] are taken from the [Verdict].
func (s *Shaper) Record(max int) *Recording {
	s.mustBeMade()
	r := newRecording(&s.dispatcher, max)
	s.lockAndAdvance() // Nothing is refused without the lock any more.
	defer s.unlockAndArm()
	s.recordings = append(s.recordings, r)
	s.watched = true
	r.remove = func() {
		s.recordings = without(s.recordings, r)
		s.watched = len(s.recordings) > 0
	}
	return r
}

// Record is [Shaper.Record] for the calls with one key, whether the key has a bucket, shares
// one, or has none for a while. It makes no bucket. A key that does not equal itself,
// such as NaN, has no [Recording]: it stays empty. A call whose [Limits] cannot be had is
// recorded with that error.
func (g *Group[K]) Record(key K, max int) *Recording {
	g.mustBeMade()
	s := g.shardOf(key)
	r := newRecording(&s.dispatcher, max)
	r.remove = func() {}
	if key != key {
		return r
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recordingsOf == nil {
		s.recordingsOf = make(map[K][]*Recording)
	}
	s.recordingsOf[key] = append(s.recordingsOf[key], r)
	s.watched = true
	r.remove = func() {
		if others := without(s.recordingsOf[key], r); len(others) > 0 {
			s.recordingsOf[key] = others
		} else {
			delete(s.recordingsOf, key)
		}
		s.watched = len(s.recordingsOf) > 0
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

// Stop ends the [Recording]. Its arrivals are kept, and the outcomes of requests that wait are
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
	kept := len(r.latest)
	first, end := r.count-uint64(kept), r.count
	d.unlockAndArm()
	arrivals := make([]Arrival, 0, kept)
	for restarts, atOnce := 0, copiedAtOnce; first+uint64(len(arrivals)) < end; {
		d.mu.Lock()
		if oldest := r.count - uint64(len(r.latest)); first+uint64(len(arrivals)) < oldest { // There would be a gap.
			first, end, arrivals = oldest, r.count, arrivals[:0]
			if restarts++; restarts > maxRestarts {
				atOnce = r.max
			}
		}
		for range min(atOnce, int(end-first)-len(arrivals)) {
			arrivals = append(arrivals, r.latest[(first+uint64(len(arrivals)))%uint64(r.max)].value(d))
		}
		d.mu.Unlock()
	}
	return arrivals
}

// Departures returns the requests that have left since the Recording of a [Shaper]
// [WithFairQueue] began, also those that came before it: the latest max of them, without the first
// after ones. It also returns how many have left, which is what to give the next time to be told of
// new ones only. They are in the order in which their calls returned. Without [WithFairQueue] there
// are none.
func (r *Recording) Departures(after uint64) (left []watch.Departure, all uint64) {
	r.d.lockAndAdvance()
	defer r.d.unlockAndArm()
	all = r.leftAll
	first := max(after, all-uint64(len(r.left)))
	for n := first; n < all; n++ {
		each := r.left[n%uint64(r.max)]
		left = append(left, watch.Departure{At: r.d.timeOf(each.at), Key: each.key, Cost: int(each.cost)})
	}
	return left, all
}

// addLeft adds a departure. The lock is held.
func (r *Recording) addLeft(left departure) {
	if len(r.left) < r.max {
		r.left = append(r.left, left)
	} else {
		r.left[r.leftAll%uint64(r.max)] = left
	}
	r.leftAll++
}

// record adds a request to recordings, with the decision. It returns the arrival if the request waits, else nil.
func (o *observer) record(into []*Recording, r arrived, dec decision) *arrival {
	if len(into) == 0 || dec.event == noEvent || dec.event == askEvent {
		return nil
	}
	a := &arrival{at: r.at, deadline: r.deadline, cost: r.cost, allow: r.kind == allow}
	switch {
	case r.verdict != nil:
		a.ended(int64(r.verdict.Wait), r.verdict.Err)
	case dec.waiter != nil:
	case a.allow && dec.event == refusedEvent && dec.err == nil: // No RejectError is made for it.
		a.ended(0, reasonErrors[o.refusalRing.last().reason])
	default:
		a.ended(0, dec.err)
	}
	for _, recording := range into {
		recording.add(a)
	}
	if dec.waiter == nil || r.verdict != nil {
		return nil
	}
	return a
}

// ended notes the outcome of a request.
func (a *arrival) ended(waited int64, err error) { a.end.Store(&ending{waited, err}) }

// recordLeft tells the recordings of a request with a key whose departure is counted.
func (o *observer) recordLeft(at, cost int64, key any) {
	name, ok := key.(string)
	if len(o.recordings) == 0 || !ok {
		return
	}
	if len(name) > maxRecordedKey {
		name = strings.Clone(name[:maxRecordedKey]) // Else all of it would stay in memory.
	}
	for _, recording := range o.recordings {
		recording.addLeft(departure{at, cost, name})
	}
}

// value returns an arrival as it is now. The instants are on the clock of d.
func (a *arrival) value(d *dispatcher) Arrival {
	v := Arrival{At: d.timeOf(a.at), Cost: int(a.cost), Allow: a.allow}
	if a.deadline != exact.Forever {
		v.Deadline = d.timeOf(a.deadline)
	}
	if o := a.end.Load(); o != nil {
		v.Waited, v.Err, v.Done = time.Duration(o.waited), o.err, true
	}
	return v
}

// add adds an arrival. The lock is held.
func (r *Recording) add(a *arrival) {
	if len(r.latest) < r.max {
		r.latest = append(r.latest, a)
	} else {
		r.latest[r.count%uint64(r.max)] = a
	}
	r.count++
}
