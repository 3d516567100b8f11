// Package shared has what goes with a level that several processes share. Programs that use one need
// [Options], and find its state in [Stats]; shaper.WithBucket takes both it and the store of the level, a
// [Bucket]. Everything else is for authors of a Bucket. Package buckettest has the tests that every
// Bucket must pass.
package shared

import (
	"context"
	"time"
)

// A Bucket holds levels that several processes share: for each key the one instant at
// which its level reaches 0, on the Bucket's own clock. Packages redisbucket and pgbucket
// have one on servers; package buckettest has one in memory, and the tests that every
// Bucket must pass.
//
// The state of a key is that instant, which is called Empty here ([BucketLevel.Empty]); the
// [BucketRate] in force; the time of the Bucket's clock at which both were written; and until when
// a hold lets no request leave ([BucketLevel.Hold]). A
// key that has no state, or one that can't be read, is at level 0. A Bucket may forget a
// key a while after its level has reached 0.
//
// A Bucket on several servers may also have a method
//
//	Shard(key string) string
//
// which names the server of a key, or whatever fails as one: while one of them can't be asked,
// the keys of the others are not affected ([Event]).
//
// A Bucket must be safe for concurrent use. Both methods must return soon after ctx has ended,
// which is after some 250 ms ([Options.Timeout]): until a call returns, the requests in line do
// not learn of an outage. If connecting takes longer, the Bucket must go on with that, or it would
// begin anew with each call. Neither method may be repeated by the Bucket when it does not know
// whether the first attempt was carried out: its units would be taken twice.
type Bucket interface {
	// Take raises the level of a key by t.Cost if a request of cost t.First could leave by
	// now + t.Ahead, in one atomic step; else it takes nothing. [Take] says what that step
	// is. An error means that it is not known whether anything was taken.
	Take(ctx context.Context, t Take) (Taken, error)

	// GiveBack takes off the units taken last, if nothing has been taken since: if the
	// [BucketLevel.Empty] of t.Key is exactly end, and t.Rate is in force, of whatever
	// version, it becomes earlier by t.Rise(). Otherwise GiveBack does nothing, and that is
	// no error. Of t only [Take.Key], [Take.Cost] and [Take.Rate] count.
	GiveBack(ctx context.Context, t Take, end Instant) error
}

// An Instant is a moment on the clock of a [Bucket], counted from 1970 as in Unix time, or a
// span of that clock: Micros whole microseconds and Part parts of one more. How many parts
// a microsecond has depends on the rate ([BucketRate.Parts]), so that nothing is ever
// rounded: the millionth departure at 3/s is where the rate puts it. The zero Instant
// stands for none.
type Instant struct{ Micros, Part int64 }

// A Take asks a [Bucket] to raise the level of a key, so that the process that asks may
// let requests leave. [Take.Apply] is the atomic step that it asks for.
type Take struct {
	Key   string        // of the level; not empty
	Cost  int64         // how many cost units are taken; at least 1
	First int64         // the cost of the first request that is to leave; at least 1
	Ahead time.Duration // how far from now that request may leave; whole microseconds, from 0 to [MaxAhead]
	Rate  BucketRate

	// High and Seen are what this process remembers of the level, in case that the [Bucket] has lost
	// it or got an older one back: then Apply raises the level to High. High is the latest
	// instant up to which this process knows the level to have been raised at Rate. Seen is the
	// latest reading of the Bucket's clock that it knows, in microseconds; if the clock is behind
	// Seen it has gone back, and High says nothing. 0 means that nothing is known.
	High Instant
	Seen int64

	// Hold is the latest instant, a reading of the Bucket's clock in microseconds, before which this
	// process knows that no request may leave; 0: none. A process that has just learnt of one tells
	// the [Bucket] by a Take that takes nothing, as its First is above the Burst.
	Hold int64

	// Guard is how far in the future a level without a state reaches 0, so that requests wait while
	// other processes may still use slots of the state that was lost. With a Burst a request leaves
	// before the level is 0; a process that wants none to leave for a time adds as much to
	// Guard. Whole microseconds.
	Guard time.Duration
}

// MaxAhead is the greatest [Take.Ahead]: no process holds a slot that is farther away.
const MaxAhead = 2 * time.Second

// Taken is the answer of a [Bucket]. With it a process works out when each of its requests
// leaves, by the same rule as without a Bucket: a request of cost n leaves when the level
// is at most max(0, [BucketRate.Burst] − n), and raises it by n.
type Taken struct {
	OK    bool    // the level has been raised
	Now   int64   // the Bucket's clock in this step, in microseconds since 1970, rounded down
	Empty Instant // when the level reaches 0, without the units taken in this step; not before Now
	Cold  bool    // there was no state

	// Hold is the reading of the Bucket's clock, in microseconds, before which no request may leave; 0 if
	// no hold is in force, or if the [Bucket] knows of none. Then holds are each process's own.
	Hold int64

	// Other is the rate in force if it conflicts with the rate of the [Take]: then nothing was
	// taken, and Empty counts in the [BucketRate.Parts] of Other. Rates that differ in
	// nothing but their versions do not conflict.
	Other *BucketRate
}

// A BucketLevel is the state of one key of a [Bucket]: the instant at which the level
// reaches 0, the rate in force, the reading of the Bucket's clock, in microseconds,
// at which both were written, and the reading before which no request may leave, 0 if there is no
// such hold. The zero BucketLevel stands for a key without a state. A
// Bucket takes a state that is damaged for none: one that is not of this form, or has a
// number outside of its range.
type BucketLevel struct {
	Empty Instant // Micros is from 0 to 2⁵³, and Part less than Rate.Parts
	Rate  BucketRate
	At    int64 // from 1 to 2⁵³
	Hold  int64 // from 0 to 2⁵³
}

// valid reports whether all numbers are within their ranges.
func (l BucketLevel) valid() bool {
	const most = 1 << 53
	return l.Rate.valid() && 0 <= l.Empty.Part && l.Empty.Part < l.Rate.Parts &&
		0 <= l.Empty.Micros && l.Empty.Micros <= most && 0 < l.At && l.At <= most && 0 <= l.Hold && l.Hold <= most
}

// Apply is the atomic step of [Bucket.Take]. l is the state of the key, and now the
// [Bucket]'s clock, in microseconds rounded down, read after the key was locked. Apply
// returns the state to be written, which is l if there is nothing to write, and the answer.
// A Bucket whose server can't call Apply does the same in the server's language; package
// buckettest compares the two.
//
// The steps are these. Nothing is ever rounded, but for a change of the rate.
//
//  1. Without a state the answer is [Taken.Cold], [BucketLevel.Empty] is now + t.Guard, and
//     t.Rate comes into force. That is written even if nothing is taken: otherwise the guard
//     would begin again with each Take, and would not end.
//  2. If the state was written at a time w after now, the clock has gone back. Empty
//     becomes Empty − (w − now), and Hold, if there is one, becomes earlier by as much, but not below 0.
//  3. If the rate in force and t.Rate differ in their versions at most, the greater version
//     comes into force, and nothing else changes. Otherwise the greater version decides. If
//     t.Rate has the greater version, it comes into force, and Empty becomes the result of
//     [BucketRate.Rescale], as of now or of Hold if that is later: a hold is time, which a rate does not
//     stretch. If it is not, or if both are equal, nothing is taken or written,
//     and the answer has the rate in force in [Taken.Other], and the hold in force.
//  4. If t.High is after Empty, and now is not before t.Seen, Empty becomes t.High: the
//     state has been lost, or an old copy of it has been restored. Where now is before
//     t.Seen, the clock has gone back since.
//     4b. Hold becomes t.Hold if that is later, and now is not before t.Seen. While Hold is after now, Empty
//     is at least Hold plus the time of Burst − 1 units, at the rate in force: so a request of cost 1
//     leaves when the hold ends, and the others follow at the rate, without a burst. A Hold that is not
//     after now has ended, and becomes 0. The answer has the Hold that is in force.
//  5. If Empty is before now it becomes now: time in which no request leaves is not saved up.
//  6. If Empty − t.Room() is at most now + t.Ahead, a request of cost [Take.First] could
//     leave: the answer is [Taken.OK], and Empty becomes Empty + t.Rise(). Else nothing is
//     taken.
//
// The state is written if something has been taken, if t.Rate or its version has come into
// force (step 1 or 3), if the clock has gone back, or if Hold has become later and is after now. A Bucket keeps it at least until
// Empty, and for a minute longer.
func (t Take) Apply(l BucketLevel, now int64) (BucketLevel, Taken) {
	answer := Taken{Now: now, Cold: !l.valid()}
	next := BucketLevel{Empty: Instant{Micros: now + t.Guard.Microseconds()}, Rate: t.Rate, At: now}
	changed := answer.Cold
	if !answer.Cold {
		next.Empty, next.Hold = l.Empty, l.Hold
		if l.At > now {
			next.Empty.Micros, next.Hold, changed = l.Empty.Micros-(l.At-now), max(0, l.Hold-(l.At-now)), true
		}
		switch {
		case l.Rate.Agrees(t.Rate):
			next.Rate.Version = max(l.Rate.Version, t.Rate.Version)
			changed = changed || l.Rate.Version < t.Rate.Version
		case l.Rate.Version < t.Rate.Version:
			next.Empty, changed = t.Rate.Rescale(l.Rate, next.Empty, max(now, next.Hold)), true
		default:
			answer.Empty, answer.Other = next.Empty.Later(Instant{Micros: now}), &l.Rate
			if next.Hold > now {
				answer.Hold = next.Hold
			}
			return l, answer
		}
	}
	if now >= t.Seen {
		next.Empty = next.Empty.Later(t.High)
		if t.Hold > next.Hold {
			next.Hold, changed = t.Hold, changed || t.Hold > now
		}
	}
	if next.Hold > now {
		answer.Hold = next.Hold
		next.Empty = next.Empty.Later(t.Rate.Plus(Instant{Micros: next.Hold}, t.Rate.Times(t.Rate.Burst-1)))
	} else {
		next.Hold = 0
	}
	next.Empty = next.Empty.Later(Instant{Micros: now})
	answer.Empty = next.Empty
	latest := Instant{Micros: now + t.Ahead.Microseconds()}
	if first := t.Rate.Minus(next.Empty, t.Room()); first.Later(latest) != latest {
		if changed {
			return next, answer
		}
		return l, answer
	}
	answer.OK = true
	next.Empty = t.Rate.Plus(next.Empty, t.Rise())
	return next, answer
}

// ApplyGiveBack is the atomic step of [Bucket.GiveBack]: it returns the state to be
// written, which is l if there is nothing to do.
func (t Take) ApplyGiveBack(l BucketLevel, end Instant) BucketLevel {
	if l.Rate.Agrees(t.Rate) && l.Empty == end {
		l.Empty = t.Rate.Minus(end, t.Rise())
	}
	return l
}

// Rise returns the time by which t makes the level reach 0 later: Cost times the time of a
// unit.
func (t Take) Rise() Instant { return t.Rate.Times(t.Cost) }

// Room returns how long before the level reaches 0 a request of cost First may leave:
// max(0, [BucketRate.Burst] − First) times the time of a unit.
func (t Take) Room() Instant { return t.Rate.Times(max(0, t.Rate.Burst-t.First)) }
