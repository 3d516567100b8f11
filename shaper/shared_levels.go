package shaper

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"
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
	rates        rates
	leases       map[*flow]*lease
	backends     map[string]*backend
	pumps        int           // that run
	idle         chan struct{} // closed when the last pump ends; made by the call that waits for that
	counts       bucketCounts  // of all leases, also of those that are gone
	events       []BucketEvent // for which the hook is to run, in their order
	runningHooks bool          // a goroutine runs the hook for them
}

const (
	// defaultTimeout bounds a call of the [Bucket]; see [WithBucketTimeout]. Within it an answer is
	// still of use, as slots are leased ahead; and so long does a call at most delay the fallback.
	defaultTimeout = 250 * time.Millisecond

	// A backend is taken for unavailable after failuresToOpen failures in a row. Then it is
	// asked again after firstBackoff, and after twice as long each time, up to lastBackoff.
	failuresToOpen = 3
	firstBackoff   = 50 * time.Millisecond
	lastBackoff    = 2 * time.Second
)

// newSharedLevels returns the sharedLevels of a dispatcher; nil without a [Bucket].
func newSharedLevels(o sharedOptions) *sharedLevels {
	if !o.asked {
		return nil
	}
	s := &sharedLevels{
		bucket: o.bucket, fallback: o.fallback, guard: o.guard.Truncate(time.Microsecond), timeout: cmp.Or(o.timeout, defaultTimeout), patience: o.patience, version: o.version, ownVersions: o.version > 0,
		leases: make(map[*flow]*lease), backends: make(map[string]*backend),
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

// nextVersion makes the version greater, for rates that are put in force from now on.
func (s *sharedLevels) nextVersion() {
	s.version++
	if !s.ownVersions {
		s.version = max(s.version, time.Now().UnixMicro())
	}
}

// A backend is one of the servers of a [Bucket], whose keys can be asked for or can't
// together. It is a circuit breaker.
type backend struct {
	name     string
	failures int  // in a row
	open     bool // it counts as unavailable
	openedAt int64
	probeAt  int64
	backoff  time.Duration
	err      error // the latest failure
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

// backendNamed returns a backend.
func (s *sharedLevels) backendNamed(name string) *backend {
	b := s.backends[name]
	if b == nil {
		b = &backend{name: name}
		s.backends[name] = b
	}
	return b
}

// mayAsk reports whether the backend may be asked now; if not, it returns when it may be.
func (b *backend) mayAsk(now int64) (until int64, ok bool) {
	if !b.open || now >= b.probeAt { // A probe has moved that on; see asks.
		return now, true
	}
	return max(b.probeAt, now+int64(time.Millisecond)), false
}

// asksLocked notes that a backend is asked. If it is open, this is the one probe.
func (s *sharedLevels) asksLocked(b *backend, now int64) {
	if b.open {
		b.probeAt = now + int64(s.timeout+b.backoff)
	}
}

// failedLocked notes a failure of a backend.
func (d *dispatcher) failedLocked(b *backend, a answer, err error) {
	now := a.received
	b.failures++
	b.err = err
	switch {
	case b.open && a.sent < b.openedAt:
		return // It is no probe, and says nothing new.
	case b.open:
		b.backoff = min(2*b.backoff, lastBackoff)
	case b.failures >= failuresToOpen:
		b.open, b.backoff, b.openedAt = true, firstBackoff, now
		d.announceBackendLocked(b, now)
		d.updateLinesLocked(b, now)
	default:
		return
	}
	b.probeAt = now + int64(b.backoff)*3/4 + rand.Int64N(int64(b.backoff)/2)
}

// succeededLocked notes a success of a backend, and ends the fallback of those in line.
func (d *dispatcher) succeededLocked(b *backend, now int64) {
	b.failures, b.err = 0, nil
	if !b.open {
		return
	}
	b.open = false
	d.announceBackendLocked(b, now)
	d.updateLinesLocked(b, now)
}

// updateLinesLocked updates the lines whose levels are in a backend, after that has become
// unavailable, or can be asked again.
func (d *dispatcher) updateLinesLocked(b *backend, now int64) {
	for _, ln := range d.due {
		if ls := d.leaseOfLocked(ln.flow); ls != nil && ls.backend == b {
			ln.slot = d.nextInLineLocked(ln.flow, ls)
			ls.kickLocked(now)
		}
	}
	d.due.reorder()
	d.rearm = true
}

// announceBackendLocked makes the hook run that is told of the state of a backend, in a
// goroutine of its own, as the lock is held and a hook may call Close, which waits for pumps.
// One goroutine runs it for all events, so that it runs in their order.
func (d *dispatcher) announceBackendLocked(b *backend, now int64) {
	if d.trace.Bucket == nil {
		return
	}
	ev := BucketEvent{Name: d.name, Shard: b.name, State: d.shared.stateOf(b), At: d.timeOf(now), Err: b.err}
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
func (s *sharedLevels) stateOf(b *backend) BucketState {
	switch {
	case !b.open:
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
	for _, ls := range d.shared.leases {
		ls.kickLocked(now)
	}
	d.unlockAndArm()
	d.waitForPumps()
	d.mu.Lock()
	defer d.mu.Unlock()
	for f, ls := range d.shared.leases {
		ls.dropAllLocked()             // What could not be given back is lost.
		if d.keyed && ls.asking == 0 { // Its flow is gone.
			delete(d.shared.leases, f)
		}
	}
}
