package model

import (
	"fmt"
	"math/big"

	"example.com/leakybucket/shaper"
)

// A sharedEngine is the state of one key of a [shaper.Bucket]. It does each step twice: by
// [shaper.Take.Apply], and in exact fractions as the comment of Apply says in words. If the
// two differ, differs says how.
type sharedEngine struct {
	state   shaper.BucketLevel
	mistake SharedMistake
	differs string
}

// take does the step of [shaper.Bucket.Take]. Only a run that makes a mistake believes the
// fractions; the others believe Apply, which is what is tested.
func (e *sharedEngine) take(t shaper.Take, now int64) shaper.Taken {
	exact := exactTake{Take: t, now: now, mistake: e.mistake}
	exact.do(e.state)
	if e.mistake != NoSharedMistake {
		e.state = exact.next
		return exact.taken
	}
	next, taken := t.Apply(e.state, now)
	if difference := exact.compare(next, taken); difference != "" && e.differs == "" {
		e.differs = fmt.Sprintf("%+v.Apply(%+v, %d) is %+v, %+v: %s", t, e.state, now, next, taken, difference)
	}
	e.state = next
	return taken
}

// giveBack does the step of [shaper.Bucket.GiveBack], and reports whether anything was
// given back.
func (e *sharedEngine) giveBack(t shaper.Take, end shaper.Instant) bool {
	back := fromFraction(sub(fraction(end, t.Rate), times(t.Cost, t.Rate)), t.Rate)
	if e.mistake == GiveBackUnconditional && agree(e.state.Rate, t.Rate) {
		e.state.Empty = fromFraction(sub(fraction(e.state.Empty, t.Rate), times(t.Cost, t.Rate)), t.Rate)
		return true
	}
	before, want := e.state, e.state
	if agree(before.Rate, t.Rate) && before.Empty == end {
		want.Empty = back
	}
	e.state = t.ApplyGiveBack(before, end)
	if e.state != want && e.differs == "" {
		e.differs = fmt.Sprintf("%+v.ApplyGiveBack(%+v, %+v) is %+v, want %+v", t, before, end, e.state, want)
	}
	return e.state != before
}

// An exactTake does what the comment of [shaper.Take.Apply] says, in fractions of a
// microsecond.
type exactTake struct {
	shaper.Take
	now     int64
	mistake SharedMistake

	empty    *big.Rat // what the answer says
	rescaled bool
	next     shaper.BucketLevel
	taken    shaper.Taken
}

func (t *exactTake) do(l shaper.BucketLevel) {
	now := new(big.Rat).SetInt64(t.now)
	t.taken = shaper.Taken{Now: t.now, Cold: l == shaper.BucketLevel{}}
	t.next = l
	rate := t.Rate // after the step

	changed := t.taken.Cold
	switch {
	case t.taken.Cold && t.mistake == GuardForgotten:
		t.empty = now
	case t.taken.Cold:
		t.empty = sum(now, new(big.Rat).SetInt64(t.Guard.Microseconds()))
	default:
		t.empty = fraction(l.Empty, l.Rate)
		if l.At > t.now {
			changed = true
			switch t.mistake {
			case ClockBackNotShifted:
			case ClockBackEmptied:
				t.empty = now
			default:
				t.empty = sub(t.empty, new(big.Rat).SetInt64(l.At-t.now))
			}
		}
		switch {
		case agree(l.Rate, t.Rate):
			rate.Version = max(l.Rate.Version, t.Rate.Version)
			changed = changed || l.Rate.Version < t.Rate.Version
		case l.Rate.Version >= t.Rate.Version:
			t.empty = later(t.empty, now)
			t.taken.Other = &l.Rate
			t.taken.Empty = fromFraction(t.empty, l.Rate)
			return
		default:
			t.rescale(l.Rate, now)
			changed, t.rescaled = true, true
		}
	}
	if t.now >= t.Seen || t.mistake == SeenIgnored {
		t.empty = later(t.empty, fraction(t.High, t.Rate))
	}
	if t.mistake == IdleTimeSaved {
		// As much as a second of it.
		t.empty = later(t.empty, sub(now, big.NewRat(1_000_000, 1)))
	} else {
		t.empty = later(t.empty, now)
	}
	first := sub(t.empty, times(max(0, t.Rate.Burst-t.First), t.Rate))
	t.taken.OK = first.Cmp(sum(now, new(big.Rat).SetInt64(t.Ahead.Microseconds()))) <= 0
	left := t.empty
	if t.taken.OK {
		left = sum(t.empty, times(t.Cost, t.Rate))
	}
	t.taken.Empty = fromFraction(t.empty, t.Rate)
	if t.taken.OK || changed {
		t.next = shaper.BucketLevel{Empty: fromFraction(left, t.Rate), Rate: rate, At: t.now}
	}
}

// rescale keeps the level in cost units, now and when the slots of the old rate have left.
func (t *exactTake) rescale(old shaper.BucketRate, now *big.Rat) {
	span := sub(t.empty, now)
	if span.Sign() <= 0 {
		t.empty = now
		return
	}
	kept := new(big.Rat).Mul(span, times(1, t.Rate))
	kept.Quo(kept, times(1, old))
	next := sub(span, times(old.Burst-1, old))
	if most := new(big.Rat).SetInt64(shaper.MaxAhead.Microseconds()); next.Cmp(most) > 0 {
		next = most
	}
	if next.Sign() > 0 && t.mistake != OutstandingIgnored {
		then := sub(span, next)
		then.Mul(then, times(1, t.Rate))
		then.Quo(then, times(1, old))
		kept = later(kept, sum(next, then))
		kept = later(kept, sum(next, times(t.Rate.Burst-1, t.Rate)))
	}
	t.empty = sum(now, kept)
	if t.mistake != NoSharedMistake {
		t.empty = new(big.Rat).SetInt(seen(t.empty))
	}
}

// compare says in what Apply's result differs; "" if in nothing.
func (t *exactTake) compare(next shaper.BucketLevel, taken shaper.Taken) string {
	late := new(big.Rat) // how much later Apply may be, in microseconds
	if t.rescaled {
		late.SetInt64(2)
	}
	rate := t.Rate
	if t.taken.Other != nil {
		rate = *t.taken.Other
	}
	off := sub(fraction(taken.Empty, rate), t.empty)
	switch {
	case (taken.Other == nil) != (t.taken.Other == nil), taken.Other != nil && *taken.Other != *t.taken.Other:
		return fmt.Sprintf("Other should be %+v", t.taken.Other)
	case taken.Now != t.now, taken.Cold != t.taken.Cold:
		return fmt.Sprintf("Now should be %d and Cold %v", t.now, t.taken.Cold)
	case off.Sign() < 0 || off.Cmp(late) > 0:
		return fmt.Sprintf("Empty should be %s", t.empty.FloatString(6))
	case taken.OK != t.taken.OK && !(t.rescaled && t.taken.OK):
		return fmt.Sprintf("OK should be %v", t.taken.OK)
	case t.rescaled:
		return ""
	case next != t.next:
		return fmt.Sprintf("the state should become %+v", t.next)
	}
	return ""
}

// agree reports whether two rates differ in their versions at most.
func agree(a, b shaper.BucketRate) bool {
	a.Version = b.Version
	return a == b
}

// fraction returns an instant in microseconds.
func fraction(a shaper.Instant, r shaper.BucketRate) *big.Rat {
	if a.Part == 0 {
		return new(big.Rat).SetInt64(a.Micros)
	}
	return sum(new(big.Rat).SetInt64(a.Micros), big.NewRat(a.Part, r.Parts))
}

// fromFraction returns what fraction was made of.
func fromFraction(a *big.Rat, r shaper.BucketRate) shaper.Instant {
	micros, rest := new(big.Int).DivMod(a.Num(), a.Denom(), new(big.Int))
	part := rest.Mul(rest, big.NewInt(r.Parts))
	if _, odd := part.QuoRem(part, a.Denom(), new(big.Int)); odd.Sign() != 0 {
		// Only a rate that came into force in between makes such a fraction.
		part.Add(part, big.NewInt(1))
	}
	return shaper.Instant{Micros: micros.Int64(), Part: part.Int64()}
}

// times returns the time of n cost units in microseconds.
func times(n int64, r shaper.BucketRate) *big.Rat {
	unit := sum(new(big.Rat).SetInt64(r.Micros), big.NewRat(r.Part, r.Parts))
	return unit.Mul(unit, new(big.Rat).SetInt64(n))
}

func sum(a, b *big.Rat) *big.Rat { return new(big.Rat).Add(a, b) }
func sub(a, b *big.Rat) *big.Rat { return new(big.Rat).Sub(a, b) }
