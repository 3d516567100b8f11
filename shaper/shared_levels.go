package shaper

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// sharedLevels is what the leases of a dispatcher have in common. The lock of the dispatcher
// guards what changes.
type sharedLevels struct {
	bucket   Bucket
	shardKey func(key string) string // of the Bucket, if it has several servers; else nil
	fallback Fallback
	guard    time.Duration

	version     int64 // of the rates that are put in force now
	ownVersions bool  // WithRateVersion has set the first one
	rates       rates
	leases      map[*flow]*lease
	shards      map[string]*shard
	pumps       int           // that run
	idle        chan struct{} // closed when the last pump ends; made by who waits for that
	counts      bucketCounts  // of all leases, also of those that are gone
	events      []BucketEvent // to be told, in their order
	telling     bool          // a goroutine tells them
	unavailable uint64
}

const (
	// callTimeout bounds a call of the Bucket. Within it an answer is still of use, as slots
	// are leased ahead; and so long does a call at most delay the fallback.
	callTimeout = 250 * time.Millisecond

	// A shard is taken for unavailable after failuresToOpen failures in a row. Then it is
	// asked again after firstBackoff, and after twice as long each time, up to lastBackoff.
	failuresToOpen = 3
	firstBackoff   = 50 * time.Millisecond
	lastBackoff    = 2 * time.Second
)

// newSharedLevels returns the sharedLevels of a dispatcher; nil without a Bucket.
func newSharedLevels(o sharedOptions) *sharedLevels {
	if !o.asked {
		return nil
	}
	s := &sharedLevels{
		bucket: o.bucket, fallback: o.fallback, guard: o.guard.Truncate(time.Microsecond), version: o.version, ownVersions: o.version > 0,
		leases: make(map[*flow]*lease), shards: make(map[string]*shard),
	}
	if sharded, ok := o.bucket.(interface{ Shard(key string) string }); ok {
		s.shardKey = sharded.Shard
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

// A shard is one of the servers of a Bucket, whose keys can be asked for or can't together. It
// is a circuit breaker.
type shard struct {
	name     string
	failures int  // in a row
	open     bool // it counts as unavailable
	openedAt int64
	probeAt  int64
	backoff  time.Duration
	err      error // the latest failure
}

// bucketKeyOf returns a key with the name of its shard. It calls the Bucket, so the lock is not
// held.
func (s *sharedLevels) bucketKeyOf(key string) bucketKey {
	k := bucketKey{key: key}
	if s.shardKey != nil {
		k.shard = s.shardKey(key)
	}
	return k
}

// A bucketKey is a key of the Bucket, and the name of its shard.
type bucketKey struct{ key, shard string }

// shardNamed returns a shard.
func (s *sharedLevels) shardNamed(name string) *shard {
	sh := s.shards[name]
	if sh == nil {
		sh = &shard{name: name}
		s.shards[name] = sh
	}
	return sh
}

// mayAsk reports whether the shard may be asked now; if not, it returns when it may be.
func (sh *shard) mayAsk(now int64) (until int64, ok bool) {
	if !sh.open || now >= sh.probeAt { // A probe has moved that on; see asks.
		return now, true
	}
	return max(sh.probeAt, now+int64(time.Millisecond)), false
}

// asks notes that the shard is asked. If it is open, this is the one probe.
func (sh *shard) asks(now int64) {
	if sh.open {
		sh.probeAt = now + int64(callTimeout+sh.backoff)
	}
}

// failedLocked notes a failure of a shard.
func (d *dispatcher) failedLocked(sh *shard, a answer, err error) {
	now := a.received
	sh.failures++
	sh.err = err
	switch {
	case sh.open && a.sent < sh.openedAt:
		return // It is no probe, and says nothing new.
	case sh.open:
		sh.backoff = min(2*sh.backoff, lastBackoff)
	case sh.failures >= failuresToOpen:
		sh.open, sh.backoff, sh.openedAt = true, firstBackoff, now
		d.announceShardLocked(sh, now)
	default:
		return
	}
	sh.probeAt = now + int64(sh.backoff)*3/4 + rand.Int64N(int64(sh.backoff)/2)
}

// succeededLocked notes a success of a shard, and ends the fallback of those in line.
func (d *dispatcher) succeededLocked(sh *shard, now int64) {
	sh.failures, sh.err = 0, nil
	if !sh.open {
		return
	}
	sh.open = false
	d.announceShardLocked(sh, now)
	for _, ln := range d.due {
		if ls := d.leaseOfLocked(ln.flow); ls != nil && ls.shard == sh {
			ls.kickLocked(now)
		}
	}
}

// announceShardLocked makes the hook run that is told of the state of a shard, in a goroutine
// of its own, as the lock is held and a hook may call Close, which waits for pumps. One
// goroutine tells all events, so that they are told in their order.
func (d *dispatcher) announceShardLocked(sh *shard, now int64) {
	if d.trace.Bucket == nil {
		return
	}
	ev := BucketEvent{Name: d.name, Shard: sh.name, State: d.shared.stateOf(sh), At: d.timeOf(now), Err: sh.err}
	d.shared.events = append(d.shared.events, ev)
	if !d.shared.telling {
		d.shared.telling = true
		go d.tellBucketEvents()
	}
}

// tellBucketEvents runs the hook for each event until there is none.
func (d *dispatcher) tellBucketEvents() {
	for {
		d.mu.Lock()
		events := d.shared.events
		d.shared.events, d.shared.telling = nil, len(events) > 0
		d.mu.Unlock()
		if len(events) == 0 {
			return
		}
		for _, ev := range events {
			d.trace.Bucket(context.Background(), ev)
		}
	}
}

// stateOf returns the state of the keys of a shard.
func (s *sharedLevels) stateOf(sh *shard) BucketState {
	switch {
	case !sh.open:
		return BucketShared
	case s.fallback == FallbackClosed:
		return BucketDown
	case s.fallback == FallbackOpen:
		return BucketOpen
	default:
		return BucketLocal
	}
}

// An unavailableError is ErrUnavailable with the reason.
type unavailableError struct{ why error }

func (e unavailableError) Error() string        { return fmt.Sprintf("%v: %v", ErrUnavailable, e.why) }
func (e unavailableError) Unwrap() error        { return e.why }
func (e unavailableError) Is(target error) bool { return target == ErrUnavailable }

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
		ls.dropAll()                   // What could not be given back is lost.
		if d.keyed && ls.asking == 0 { // Its flow is gone.
			delete(d.shared.leases, f)
		}
	}
}
