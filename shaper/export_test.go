package shaper

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/shared"

	"example.com/leakybucket/shaper/internal/lease"
)

// EnterAsReentry is Acquire for a request that was let go before, as Transport
// lets it enter again. release is nil if the request has no seat.
func EnterAsReentry(s *Shaper, ctx context.Context, n int) (release func(), err error) {
	t, err := s.acquire(ctx, n, reentry)
	if t.by == nil {
		return nil, err
	}
	return t.end, err
}

// RetryOf is EnterAsReentry for a request that has first asked at a time.
func RetryOf(s *Shaper, ctx context.Context, n int, asked time.Time) (release func(), err error) {
	r := &request{ctx: &claim{ctx, s.instantOf(asked), exact.Forever}, cost: int64(n), kind: reentry, tellsEnd: true}
	_, err = s.wait(r)
	if r.seat == nil {
		return nil, err
	}
	return heldSeat{s, r.seat}.end, err
}

// LineIsEmpty reports whether nothing is linked into the line, nor counted.
func LineIsEmpty(s *Shaper) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := s.flow.line
	return line.head == nil && line.tail == nil && line.lastReentry == nil && line.cost.total() == 0
}

// SpreadHomes seeds the hash of a new Group until no two of the keys have one home.
// With a random seed two keys share a bucket in one of 960 runs.
func SpreadHomes[K comparable](g *Group[K], keys ...K) {
	for {
		homes := map[int16]bool{}
		for _, key := range keys {
			homes[g.homeOf(key)] = true
		}
		if len(homes) == len(keys) {
			return
		}
		g.seed = maphash.MakeSeed()
	}
}

// HashAlike gives a new Group the hash of another one, so that the same keys share shards.
func HashAlike[K comparable](g, other *Group[K]) { g.seed = other.seed }

// AuditRefusals lets a new Shaper refuse without its lock wherever it can, not only when many
// calls are refused in a row. It repeats each such refusal under the lock at the same instant,
// unless the lock has been taken meanwhile, and panics if that leads to anything else. It
// returns how many it has compared.
func AuditRefusals(s *Shaper) *atomic.Int64 {
	compared := new(atomic.Int64)
	AuditRefusalsInto(s, compared)
	return compared
}

// AuditRefusalsInto is AuditRefusals with a count that several Shapers share.
func AuditRefusalsInto(s *Shaper, compared *atomic.Int64) {
	s.stripes = newRefusalStripes()
	s.stripes.audit = func(p *publication, now int64, r request, why rejection) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.published.Load() != p {
			return
		}
		s.flow.bucket.idleUntil(now) // As lockFlow does.
		due := s.waiting > 0 && s.flow.headMayLeave() <= now
		want := s.judgeLocked(&s.flow, now, &r).refusal
		if due || s.watched || now < s.clock || want != why || int(p.waiting) != s.flow.waiting() {
			panic(fmt.Sprintf("refused without the lock at %d: %+v; with it, the clock at %d: %+v, a slot is due: %v",
				now, why, s.clock, want, due))
		}
		compared.Add(1)
	}
}

// RefusesWithoutLock reports whether something is published that refusals are made from.
func RefusesWithoutLock(s *Shaper) bool { return s.published.Load() != nil }

// WatchesDepartures reports whether requests that leave at once are told of.
func WatchesDepartures(s *Shaper) bool { return s.watched }

// LockAt takes the lock as a call does that has read the clock long ago, and returns the
// instant that it goes by. Instants are in nanoseconds since New.
func LockAt(s *Shaper, now int64) int64 {
	defer s.unlockAndArm()
	return s.lockAt(now, headFirst)
}

// PublishAfter is how many refusals in a row it takes.
const PublishAfter = publishAfter

// HoldLock takes the lock as somebody does who is about to change something, and has come no
// further. It returns what releases the lock.
func HoldLock(s *Shaper) (release func()) {
	s.mu.Lock()
	return s.mu.Unlock
}

// BucketRateOf returns the rate of [Limits] with a version, for the tests of what an engine does.
func BucketRateOf(l Limits, version int64) shared.BucketRate {
	r := new(lease.Rates).Of(l.Rate, l.burst())
	r.Version = version
	return r
}

// Shadows returns how many reservations a dry run remembers whose requests are in its shadow.
func Shadows(s *Shaper) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.flow.bucket.reservations().shadows)
}
