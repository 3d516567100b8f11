package shaper

import (
	"context"
)

// Reserve is [Shaper.Acquire] for a request whose cost is known only when it has ended, such as the tokens of a
// language model. It waits as a request of cost estimate does. When the request has ended, the caller calls settle,
// once, with the actual cost: the bucket gets the difference back, or is charged it, and the requests in line are
// re-timed at once. settle also releases the seat.
//
//	settle, err := s.Reserve(ctx, 2000)
//	...
//	answer, err := call(ctx)
//	settle(answer.Usage.Total) // 1,240: the next request leaves sooner
//
// settle is never nil, may be called from any goroutine, and does nothing when it is called again, or with an error.
// If actual is negative, or settle is never called, the estimate stands, as it does with a [shared.Bucket]. An
// estimate of 0 waits for nothing and takes no seat; settle then only charges. In a dry run settle changes the
// shadow. Reserve promises:
//
//  1. As if known. After settle, with an actual of at most the estimate, the level is what it would be if the
//     request had left with the cost actual, or higher if others were charged meanwhile. So guarantee 1 holds for
//     settled costs, and what has drained since the request left does not come back.
//  2. Charge. An actual above the estimate raises the level at once: a window may hold more than guarantee 1
//     allows, by what its requests were charged. No request in line is refused for it.
//  3. Order. A settle changes when requests leave, but neither their order nor which are in line.
//  4. Bound. Of more than 4,096 reservations of one bucket that are not settled the oldest gets nothing back.
//
// If [Stats.Forfeited] grows, [Limits.Burst] is too small for the estimates that are unsettled at a time: their
// units have drained when they are settled.
func (s *Shaper) Reserve(ctx context.Context, estimate int) (settle func(actual int), err error) {
	v, err := s.reserve(ctx, nil, estimate, newcomer)
	return v.orNothing(), err
}

// reserve is Reserve for a request with a key, or nil, with a reservation in place of a function; nil with
// an error.
func (s *Shaper) reserve(ctx context.Context, key any, estimate int, kind entryKind) (*reservation, error) {
	v := newReservation(estimate)
	r := &request{ctx: ctx, key: key, cost: v.estimate, kind: kind, tellsEnd: true, with: &v.with}
	_, err := s.wait(r)
	return v.begin(r, &s.dispatcher, &s.flow, err)
}

// ReserveEach is [Shaper.Reserve] for a request that has an estimate at each level of a Shaper [WithMeters], as
// [Shaper.WaitEach] has costs. settle takes the actual costs in the same order, and settles all levels at one
// instant, each for itself. Where an actual is missing or negative the estimate stands; further ones are ignored. An
// estimate of 0 that is settled with more is charged; so estimates of 0 at all levels charge while a call goes on.
func (s *Shaper) ReserveEach(ctx context.Context, estimates ...int) (settle func(actual ...int), err error) {
	return s.reserveEach(ctx, nil, estimates)
}

// reserveEach is ReserveEach for a request with a key, or nil.
func (s *Shaper) reserveEach(ctx context.Context, key any, estimates []int) (settle func(actual ...int), err error) {
	s.mustBeMade()
	v, err := s.reserveAll(ctx, key, estimates, newcomer)
	switch {
	case err != nil:
		return settleNoneOf, err
	case v.numbers == nil:
		return settleFirst(v.settle), nil
	}
	return v.settleEach, nil
}

// reserveAll is reserveEach with a reservation in place of a function; nil with an error.
func (s *Shaper) reserveAll(ctx context.Context, key any, estimates []int, kind entryKind) (*reservation, error) {
	n, more, err := s.checkCosts("ReserveEach", estimates)
	if err != nil {
		return nil, err
	}
	if s.further == nil {
		return s.reserve(ctx, key, int(n), kind)
	}
	var all struct {
		reservation
		outlay
		moreNumbers
	}
	v := &all.reservation
	v.estimate, v.d, v.f = n, &s.dispatcher, &s.flow
	v.with.account, v.with.outlay, v.numbers = v, &all.outlay, &all.moreNumbers
	all.outlay.costs = more
	r := &request{ctx: ctx, key: key, cost: n, kind: kind, tellsEnd: true, with: &v.with}
	_, err = s.wait(r)
	if v, err = v.begin(r, &s.dispatcher, &s.flow, err); err != nil {
		return nil, err
	}
	v.countMore(1)
	return v, nil
}

func settleNoneOf(...int) {}

// Spend is [Shaper.Do] for such a request: f returns the cost, also together with an error. If f panics, the
// estimate stands.
func (s *Shaper) Spend(ctx context.Context, estimate int, f func(context.Context) (actual int, err error)) error {
	v, err := s.reserve(ctx, nil, estimate, newcomer)
	if err != nil {
		return err
	}
	return spend(ctx, v, f)
}

// AtMost notes that the upstream lets at most n more cost units pass at once, as a response has said: it raises the
// level to Burst − n if it is lower. It never lowers the level, so a number that is old, rounded or wrong can only
// slow down. Requests in line are re-timed. A negative n counts as 0. At [rate.Inf] and with a [shared.Bucket] it
// does nothing. A settle of [Shaper.Reserve] gives back as many units as it would without AtMost.
func (s *Shaper) AtMost(n int) {
	s.mustBeMade()
	now := s.lockFlow(&s.flow)
	defer s.unlockAndArm()
	s.flow.atMost(&s.dispatcher, now, n)
}

// AtMostEach is [Shaper.AtMost] for each level of a Shaper [WithMeters], at one instant: the first number is for the
// [Limits], and the others for the meters in their order. [math.MaxInt] says nothing of a level, and neither does a
// number that is missing. Further ones are ignored.
func (s *Shaper) AtMostEach(left ...int) {
	s.mustBeMade()
	now := s.lockFlow(&s.flow)
	defer s.unlockAndArm()
	raised := false
	for i, n := range left {
		switch {
		case i == 0:
			raised = s.flow.remote() == nil && s.flow.bucket.atMost(now, n)
		case s.further != nil && i <= len(s.further.buckets()):
			b := &s.further.buckets()[i-1]
			b.idleUntil(now)
			raised = b.atMost(now, n) || raised
		}
	}
	if raised {
		s.retimeLocked(&s.flow, now)
	}
}

// reserve is [KeyLimiter.Reserve] with a reservation in place of a function; nil with an error.
func (g *Group[K]) reserve(ctx context.Context, key K, estimate int, kind entryKind) (*reservation, error) {
	v := newReservation(estimate)
	r := &request{ctx: ctx, cost: v.estimate, kind: kind, tellsEnd: true, with: &v.with}
	in, kf, err := g.wait(key, r)
	v.holder = reservingKey[K]{g.shardOf(key), key, in, kf}
	if in == nil { // With a cost of 0 and with most errors no bucket has been looked for.
		return v.begin(r, nil, nil, err)
	}
	return v.begin(r, &in.dispatcher, &kf.Value, err)
}

// atMost is [KeyLimiter.AtMost].
func (s *keyShard[K]) atMost(key K, n int) {
	_ = s.withFlowOrNew(context.Background(), key, bucketInDrain, func(in *keyShard[K], kf *keyedFlow[K], now int64) {
		if kf != s.closedFlow {
			kf.Value.atMost(&in.dispatcher, now, n)
		}
	})
}

// Reserve is as [Shaper.Reserve] says. If the bucket of a key in a [Group] has been deleted, as it had drained,
// nothing is given back, and a charge is for the bucket that the key has then.
func (l *KeyLimiter) Reserve(ctx context.Context, estimate int) (settle func(actual int), err error) {
	v, err := l.made().reserve(ctx, estimate, newcomer)
	return settleOf(v), err
}

// Spend is as [Shaper.Spend] says.
func (l *KeyLimiter) Spend(ctx context.Context, estimate int, f func(context.Context) (actual int, err error)) error {
	return spendBy(ctx, l.made(), estimate, f)
}

// AtMost is as [Shaper.AtMost] says; of a [Shaper] it is for all keys. In a [Group] it makes the bucket of the key,
// as Hold does.
func (l *KeyLimiter) AtMost(n int) { l.made().atMost(n) }

// ReserveEach is as [Shaper.ReserveEach] says. The bucket of a key of a [Group] has one level.
func (l *KeyLimiter) ReserveEach(ctx context.Context, estimates ...int) (settle func(actual ...int), err error) {
	if k, ok := l.made().(keyOfShaper); ok {
		return k.Shaper.reserveEach(ctx, k.key, estimates)
	}
	n, _, err := new(dispatcher).checkCosts("ReserveEach", estimates)
	if err != nil {
		return settleNoneOf, err
	}
	one, err := l.Reserve(ctx, int(n))
	return settleFirst(one), err
}

// AtMostEach is as [Shaper.AtMostEach] says, for all keys of the Shaper. The bucket of a key of a [Group] has one level.
func (l *KeyLimiter) AtMostEach(left ...int) {
	if k, ok := l.made().(keyOfShaper); ok {
		k.Shaper.AtMostEach(left...)
	} else if len(left) > 0 {
		l.AtMost(left[0])
	}
}

// settleFirst returns a settle of ReserveEach for a settle of Reserve.
func settleFirst(settle func(actual int)) func(actual ...int) {
	return func(actual ...int) {
		if len(actual) == 0 {
			settle(-1)
		} else {
			settle(actual[0])
		}
	}
}

// A reservingKey is the holder of a reservation, with the shard and the bucket that the request has left; nil:
// it has left none.
type reservingKey[K comparable] struct {
	s   *keyShard[K]
	key K
	in  *keyShard[K]
	kf  *keyedFlow[K]
}

func (k reservingKey[K]) charge(n int64) {
	_ = k.s.withFlowOrNew(context.Background(), k.key, bucketInDrain, func(in *keyShard[K], kf *keyedFlow[K], now int64) {
		if kf == k.s.closedFlow {
			in.countSettledLocked(&kf.Value.bucket, 0, uint64(n), 0)
			return
		}
		in.chargeLocked(&kf.Value, &kf.Value.bucket, now, n)
		in.retimeLocked(&kf.Value, now)
	})
}

func (k reservingKey[K]) mayBeDrainedLocked() { k.in.rescheduleLocked(k.kf) }
