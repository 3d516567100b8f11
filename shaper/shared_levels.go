package shaper

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper/internal/lease"
	"example.com/leakybucket/shaper/shared"
)

// sharedLevels has the state that all shared flows of a dispatcher have in common. The lock of the
// dispatcher guards the fields that change.
type sharedLevels struct {
	d         *dispatcher
	bucket    shared.Bucket
	backendOf func(key string) string // of the Bucket, if it has several servers; else nil
	fallback  shared.Fallback
	guard     time.Duration
	timeout   time.Duration // of a call
	patience  time.Duration // 0: without end

	seater shared.Seater // the Bucket, if there is a cap of all; else nil
	cap    int           // how many requests of all processes may be in flight, for each key
	id     string        // of this process, as seats go to it
	asked  int64         // how many times it has asked for seats

	version      int64 // of the rates that are put in force now
	ownVersions  bool  // Options.RateVersion has set the first one
	rates        lease.Rates
	flows        map[*flow]*sharedFlow
	breakers     map[string]*lease.Breaker
	pumps        int            // that run, and holdings and seatings
	idle         chan struct{}  // closed when the last of them ends; made by the call that waits for its end
	counts       lease.Counts   // of all leases, also of those that are gone
	events       []shared.Event // for which the hook is to run, in their order
	runningHooks bool           // a goroutine runs the hook for them
}

// newLevels returns the levels of a dispatcher; nil without a [shared.Bucket].
func (o sharedOptions) newLevels(d *dispatcher) levels {
	if !o.asked {
		return nil
	}
	s := &sharedLevels{
		d: d, bucket: o.bucket, fallback: o.Fallback, guard: o.ColdGuard.Truncate(time.Microsecond), timeout: cmp.Or(o.Timeout, defaultTimeout),
		patience: max(0, cmp.Or(o.Patience, shared.DefaultPatience)), version: o.RateVersion, ownVersions: o.RateVersion > 0,
		flows: make(map[*flow]*sharedFlow), breakers: make(map[string]*lease.Breaker),
	}
	if o.InFlight > 0 {
		s.seater, s.cap, s.id = o.bucket.(shared.Seater), o.InFlight, rand.Text()
	}
	if sharded, ok := o.bucket.(interface{ Shard(key string) string }); ok {
		s.backendOf = sharded.Shard
	}
	if !s.ownVersions {
		s.version = time.Now().UnixMicro()
	}
	return s
}

// rateOf returns the [shared.BucketRate] of a plan with a version, or with the greatest one if that is
// greater.
func (s *sharedLevels) rateOf(p *plan, version int64) shared.BucketRate {
	r := s.rates.Of(p.limits.Rate, p.burst)
	r.Version = min(version, maxVersion)
	return r
}

// plan makes the rate of a plan. That takes long, so it is done before the lock is needed for it.
func (s *sharedLevels) plan(p *plan) {
	s.rateOf(p, 0)
	if s.grantSeats() {
		p.cap = grantedCap
	}
}

// grantSeats reports whether there is a cap of all processes.
func (s *sharedLevels) grantSeats() bool { return s.seater != nil }

// check returns why a rate can't be shared.
func (s *sharedLevels) check(l Limits) error {
	if l.Rate == rate.Inf {
		return errSharedInf
	}
	return nil
}

// changes makes the version greater, for rates that are put in force from now on.
func (s *sharedLevels) changes() {
	s.version++
	if !s.ownVersions {
		s.version = max(s.version, time.Now().UnixMicro())
	}
}

// drop takes the level of a flow away.
func (s *sharedLevels) drop(f *flow) {
	delete(s.flows, f)
	f.setRemote(nil)
}

// keyOf returns a key with the name of its backend. It calls the [shared.Bucket], so the
// lock is not held.
func (s *sharedLevels) keyOf(key string) levelKey {
	k := levelKey{key: key}
	if s.backendOf != nil {
		k.backend = s.backendOf(key)
	}
	return k
}

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
func (s *sharedLevels) failedLocked(b *lease.Breaker, a answer, err error) {
	if b.Failed(a.sent, a.received, err) {
		s.announceLocked(b, a.received)
		s.updateLinesLocked(b, a.received)
	}
}

// succeededLocked notes a success in a circuit breaker, and ends the outage of the lines if that
// closes it.
func (s *sharedLevels) succeededLocked(b *lease.Breaker, now int64) {
	if b.Succeeded() {
		s.announceLocked(b, now)
		s.updateLinesLocked(b, now)
	}
}

// reorder puts all lines in their places after the slots of many have changed.
func (d departures) reorder() {
	for i := len(d)/2 - 1; i >= 0; i-- {
		d.down(i)
	}
}

// announceLocked makes the hook run that is told of the state of a backend, in a
// goroutine of its own, as the lock is held and a hook may call Close, which waits for pumps.
// One goroutine runs it for all events, so that it runs in their order.
func (s *sharedLevels) announceLocked(b *lease.Breaker, now int64) {
	d := s.d
	if d.trace.Bucket == nil {
		return
	}
	ev := shared.Event{Name: d.name, Shard: b.Name, State: s.stateOf(b), At: d.timeOf(now), Err: b.Err}
	s.events = append(s.events, ev)
	if !s.runningHooks {
		s.runningHooks = true
		go s.runHooks()
	}
}

// runHooks runs the hook for each event until there is none.
func (s *sharedLevels) runHooks() {
	d := s.d
	for {
		d.mu.Lock()
		events := s.events
		s.events, s.runningHooks = nil, len(events) > 0
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
func (s *sharedLevels) stateOf(b *lease.Breaker) shared.State {
	switch {
	case !b.Open:
		return shared.StateShared
	case s.fallback == shared.FallbackClosed:
		return shared.StateDown
	case s.fallback == shared.FallbackOpen:
		return shared.StateOpen
	default:
		return shared.StateLocal
	}
}

// A tooSlowError says that slots can't be used in time.
type tooSlowError struct{ slack, rtt time.Duration }

func (e tooSlowError) Error() string {
	return fmt.Sprintf("shaper: Limits.Slack is %v, which is not above the round trip of %v to the shared bucket: no slot could be used in time", e.slack, e.rtt)
}

// waitForPumps returns when no pump, no holding and no seating runs. The lock is not held.
func (s *sharedLevels) waitForPumps() {
	d := s.d
	d.mu.Lock()
	var idle chan struct{}
	if s.pumps > 0 {
		if s.idle == nil {
			s.idle = make(chan struct{})
		}
		idle = s.idle
	}
	d.mu.Unlock()
	if idle != nil {
		<-idle
	}
}

// bucketTotals returns the totals of [shared.Stats].
func bucketTotals(c lease.Counts) shared.Stats {
	return shared.Stats{RoundTrips: c.RoundTrips, Failures: c.Failures, Leased: c.Leased, Dropped: c.Dropped, GivenBack: c.GivenBack}
}

// stats returns the [shared.Stats] of all keys together. State and Err describe a
// backend that can't be asked, if there is one.
func (s *sharedLevels) stats() shared.Stats {
	st := bucketTotals(s.counts)
	st.State, st.InFlight = shared.StateShared, s.cap
	for _, b := range s.breakers {
		if b.Open {
			st.State, st.Err = s.stateOf(b), b.Err
		}
	}
	return st
}

// An answer is the result of a call of [shared.Bucket.Take], with the instants between which it was made.
type answer struct {
	taken          shared.Taken
	sent, received int64
	err            error
	gone           error // of the context of the request that has asked for itself
}

// call calls [shared.Bucket.Take], and returns between which instants of the dispatcher's
// clock that was.
func (s *sharedLevels) call(ctx context.Context, t shared.Take) (a answer) {
	a.sent = int64(time.Since(s.d.epoch))
	a.taken, a.err = s.bucket.Take(ctx, t)
	a.received = int64(time.Since(s.d.epoch))
	if a.err == nil {
		a.err = lease.Check(t, a.taken)
	}
	return a
}
