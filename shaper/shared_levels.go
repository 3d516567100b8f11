package shaper

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"example.com/leakybucket/shaper/internal/lease"
)

// sharedLevels is what the leases of a dispatcher have in common. The lock of the dispatcher
// guards what changes.
type sharedLevels struct {
	bucket    Bucket
	backendOf func(key string) string // of the Bucket, if it has several servers; else nil
	fallback  Fallback
	guard     time.Duration
	timeout   time.Duration // of a call
	patience  time.Duration // 0: without end

	version      int64 // of the rates that are put in force now
	ownVersions  bool  // WithRateVersion has set the first one
	rates        lease.Rates
	flows        map[*flow]*sharedFlow
	breakers     map[string]*lease.Breaker
	pumps        int           // that run
	idle         chan struct{} // closed when the last pump ends; made by the call that waits for that
	counts       lease.Counts  // of all leases, also of those that are gone
	events       []BucketEvent // for which the hook is to run, in their order
	runningHooks bool          // a goroutine runs the hook for them
}

// defaultTimeout bounds a call of the [Bucket]; see [WithBucketTimeout]. Within it an answer is
// still of use, as slots are leased ahead; and so long does a call at most delay the fallback.
const defaultTimeout = 250 * time.Millisecond

// newSharedLevels returns the sharedLevels of a dispatcher; nil without a [Bucket].
func newSharedLevels(o sharedOptions) *sharedLevels {
	if !o.asked {
		return nil
	}
	s := &sharedLevels{
		bucket: o.bucket, fallback: o.fallback, guard: o.guard.Truncate(time.Microsecond), timeout: cmp.Or(o.timeout, defaultTimeout), patience: o.patience, version: o.version, ownVersions: o.version > 0,
		flows: make(map[*flow]*sharedFlow), breakers: make(map[string]*lease.Breaker),
	}
	if !o.patient {
		s.patience = DefaultPatience
	}
	if sharded, ok := o.bucket.(interface{ Shard(key string) string }); ok {
		s.backendOf = sharded.Shard
	}
	if !s.ownVersions {
		s.version = time.Now().UnixMicro()
	}
	return s
}

// rateOf returns the [BucketRate] of a plan with a version.
func (s *sharedLevels) rateOf(p *plan, version int64) BucketRate {
	r := s.rates.Of(p.limits.Rate, p.burst)
	r.Version = version
	return r
}

// nextVersion makes the version greater, for rates that are put in force from now on.
func (s *sharedLevels) nextVersion() {
	s.version++
	if !s.ownVersions {
		s.version = max(s.version, time.Now().UnixMicro())
	}
}

// bucketKeyOf returns a key with the name of its backend. It calls the [Bucket], so the
// lock is not held.
func (s *sharedLevels) bucketKeyOf(key string) bucketKey {
	k := bucketKey{key: key}
	if s.backendOf != nil {
		k.backend = s.backendOf(key)
	}
	return k
}

// A bucketKey is a key of the [Bucket], and the name of its backend.
type bucketKey struct{ key, backend string }

// breakerOf returns the circuit breaker of a server.
func (s *sharedLevels) breakerOf(name string) *lease.Breaker {
	b := s.breakers[name]
	if b == nil {
		b = &lease.Breaker{Name: name}
		s.breakers[name] = b
	}
	return b
}

// failedLocked notes a failure in a circuit breaker, and begins the outage of the lines if that
// opens it.
func (d *dispatcher) failedLocked(b *lease.Breaker, a answer, err error) {
	if b.Failed(a.sent, a.received, err) {
		d.announceBackendLocked(b, a.received)
		d.updateLinesLocked(b, a.received)
	}
}

// succeededLocked notes a success in a circuit breaker, and ends the outage of the lines if that
// closes it.
func (d *dispatcher) succeededLocked(b *lease.Breaker, now int64) {
	if b.Succeeded() {
		d.announceBackendLocked(b, now)
		d.updateLinesLocked(b, now)
	}
}

// updateLinesLocked updates the lines whose levels are in a backend, after that has become
// unavailable, or can be asked again.
func (d *dispatcher) updateLinesLocked(b *lease.Breaker, now int64) {
	for _, ln := range d.due {
		if sf := d.sharedFlowLocked(ln.flow); sf != nil && sf.breaker == b {
			ln.slot = d.nextInLineLocked(ln.flow, sf)
			sf.kickLocked(now)
		}
	}
	d.due.reorder()
	d.rearm = true
}

// announceBackendLocked makes the hook run that is told of the state of a backend, in a
// goroutine of its own, as the lock is held and a hook may call Close, which waits for pumps.
// One goroutine runs it for all events, so that it runs in their order.
func (d *dispatcher) announceBackendLocked(b *lease.Breaker, now int64) {
	if d.trace.Bucket == nil {
		return
	}
	ev := BucketEvent{Name: d.name, Shard: b.Name, State: d.shared.stateOf(b), At: d.timeOf(now), Err: b.Err}
	d.shared.events = append(d.shared.events, ev)
	if !d.shared.runningHooks {
		d.shared.runningHooks = true
		go d.runBucketHooks()
	}
}

// runBucketHooks runs the hook for each event until there is none.
func (d *dispatcher) runBucketHooks() {
	for {
		d.mu.Lock()
		events := d.shared.events
		d.shared.events, d.shared.runningHooks = nil, len(events) > 0
		d.mu.Unlock()
		if len(events) == 0 {
			return
		}
		for _, ev := range events {
			d.trace.Bucket(context.Background(), ev)
		}
	}
}

// stateOf returns the state of the keys of a backend.
func (s *sharedLevels) stateOf(b *lease.Breaker) BucketState {
	switch {
	case !b.Open:
		return BucketShared
	case s.fallback == FallbackClosed:
		return BucketDown
	case s.fallback == FallbackOpen:
		return BucketOpen
	default:
		return BucketLocal
	}
}

// A tooSlowError says that slots can't be used in time.
type tooSlowError struct{ slack, rtt time.Duration }

func (e tooSlowError) Error() string {
	return fmt.Sprintf("shaper: Limits.Slack is %v, which is not above the round trip of %v to the shared bucket: no slot could be used in time", e.slack, e.rtt)
}

// waitForPumps returns when no pump runs. The lock is not held.
func (d *dispatcher) waitForPumps() {
	d.mu.Lock()
	var idle chan struct{}
	if d.shared.pumps > 0 {
		if d.shared.idle == nil {
			d.shared.idle = make(chan struct{})
		}
		idle = d.shared.idle
	}
	d.mu.Unlock()
	if idle != nil {
		<-idle
	}
}

// closeShared gives back what is leased, after the lines have been emptied, and returns when
// that is done, or has failed. The lock is not held.
func (d *dispatcher) closeShared() {
	now := d.lockAndAdvance()
	for _, sf := range d.shared.flows {
		sf.kickLocked(now)
	}
	d.unlockAndArm()
	d.waitForPumps()
	d.mu.Lock()
	defer d.mu.Unlock()
	for f, sf := range d.shared.flows {
		sf.DropAll()                   // What could not be given back is lost.
		if d.keyed && sf.asking == 0 { // Its flow is gone.
			delete(d.shared.flows, f)
		}
	}
}

// BucketStats tells about the [Bucket] that a level is in. Of a [Group] it has only the State,
// Err and the totals: those of all keys together, with the state of a server that can't be
// asked if there is one.
type BucketStats struct {
	State BucketState // "" without a Bucket
	Err   error       // the latest failure; nil if the latest call succeeded

	RTT   time.Duration // the shortest round trip of late; 0 if there was none
	Share float64       // the part of the slots that this process has had of late, from 0 to 1; 0 if that is not known

	Lateness time.Duration // for how long after its instant a slot may be used

	Held       int64  // cost units that are leased and not used yet
	Ahead      int64  // the most cost units that may be leased ahead, as round trips and costs have been so far: L in docs/shared.md
	RoundTrips uint64 // calls of Take, and of GiveBack
	Failures   uint64 // calls that failed
	Leased     uint64 // cost units taken
	Dropped    uint64 // cost units whose slots have passed unused
	GivenBack  uint64 // cost units given back
}

// BucketState says how requests leave that share a level.
type BucketState string

const (
	BucketShared BucketState = "shared" // at the slots of the Bucket
	BucketDown   BucketState = "down"   // not at all: it can't be asked (FallbackClosed)
	BucketLocal  BucketState = "local"  // at a part of the rate: it can't be asked (FallbackLocal)
	BucketOpen   BucketState = "open"   // at the whole rate in each process: it can't be asked (FallbackOpen)
)

// A BucketEvent reports that a [Bucket] can't be asked any more, or can be again: for all keys of
// one of its servers, or for a single key that fails while others are answered. A [Group] that
// forgets such a key reports that it can be asked for again.
type BucketEvent struct {
	Name  string      // the name of the Shaper or Group
	Shard string      // which of the Bucket's servers, if it tells; see [Bucket]
	State BucketState // from now on
	At    time.Time
	Err   error // the failure; nil if it can be asked again
}

// statsLocked returns the [BucketStats] of one lease.
func (sf *sharedFlow) statsLocked() BucketStats {
	st := bucketTotals(sf.Counts)
	st.State, st.Err = sf.d.shared.stateOf(sf.breaker), sf.failed
	if st.Err == nil && sf.breaker.Open { // Another key has found the outage.
		st.Err = sf.breaker.Err
	}
	st.RTT, st.Held, st.Lateness = time.Duration(sf.RTT), sf.Leased(), time.Duration(sf.Lateness())
	st.Ahead = sf.MostAhead()
	if sf.Counts.Leased > 0 {
		st.Share = 1 / sf.Pace
	}
	return st
}

// bucketTotals returns the totals of [BucketStats].
func bucketTotals(c lease.Counts) BucketStats {
	return BucketStats{RoundTrips: c.RoundTrips, Failures: c.Failures, Leased: c.Leased, Dropped: c.Dropped, GivenBack: c.GivenBack}
}

// stats returns the [BucketStats] of all keys together. State and Err are those of a
// backend that can't be asked, if there is one.
func (s *sharedLevels) stats() BucketStats {
	st := bucketTotals(s.counts)
	st.State = BucketShared
	for _, b := range s.breakers {
		if b.Open {
			st.State, st.Err = s.stateOf(b), b.Err
		}
	}
	return st
}
