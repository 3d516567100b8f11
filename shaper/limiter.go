package shaper

import (
	"context"
	"sync"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/watch"
)

// A Limiter blocks until the caller may spend n units. [*Shaper] is one, and so
// is x/time's *rate.Limiter.
type Limiter interface {
	WaitN(ctx context.Context, n int) error
}

// An inner is a [Limiter] with the other methods that [Middleware], [Transport] and
// [Chain] need. innerOf makes an inner of any Limiter.
type inner interface {
	Limiter

	// enter lets a request of cost n ≥ 0 wait; one of cost 0 passes. The caller must call release once when
	// the request has ended. release is nil if there is nothing to give back, and with
	// an error. A [Shaper] and the bucket of a key heed kind. For all others each request is a
	// newcomer.
	enter(ctx context.Context, n int, kind entryKind) (release func(), err error)

	// reserve is enter for a request whose cost is known only when it has ended. The caller must
	// settle it, in place of the release. It is nil with an error, and only then.
	reserve(ctx context.Context, estimate int, kind entryKind) (unsettled, error)

	// reserves reports whether to settle does more than to release.
	reserves() bool

	// forecast returns how long [Limiter.WaitN] would wait, or its refusal. The wait is 0 if it is
	// unknown, and for a [Shaper] or [Group] in a dry run, where no request waits.
	forecast(n int) (wait time.Duration, err error)

	// hold calls Hold, if there is one, and reports whether requests now wait for the
	// end of the hold. The bucket of a key waits for the key's [Limits] until the context ends
	// at most.
	hold(ctx context.Context, d time.Duration) bool

	// stats returns the state of the one bucket behind the [Limiter]; only the fields that
	// RateLimit fields need are sure to be set. ok reports whether there is one.
	stats() (st Stats, ok bool)

	// mayDryRun reports whether a dry run may leave a [Verdict] on a request.
	mayDryRun() bool

	// asksDoneToWait reports whether enter asks for the Done channel of a context only
	// when the request has to wait.
	asksDoneToWait() bool
}

// innerOf returns the inner of a [Limiter]. No other function of the package asks which
// type or which methods a Limiter has.
func innerOf(l Limiter) inner {
	switch l := l.(type) {
	case *Shaper:
		l.mustBeMade()
		return shaperLimiter{l}
	case *KeyLimiter:
		return l.made()
	case *ChainLimiter:
		return &l.chain
	case inner: // A keyLimiter, a keyOfShaper or a priced. No other type can embed them, as they are not exported.
		return l
	}
	f := foreign{Limiter: l}
	if a, ok := l.(acquirer); ok && mayBeCapped(l) {
		f.acquirer = a
	}
	return f
}

// A shaperLimiter is the inner of a [*Shaper]. If *Shaper itself were an inner, a type
// that embeds a *Shaper would be one too, and the methods of the *Shaper would pass over
// the type's own [Limiter.WaitN].
type shaperLimiter struct{ *Shaper }

func (s shaperLimiter) enter(ctx context.Context, n int, kind entryKind) (release func(), err error) {
	t, err := s.acquire(s.claimOf(ctx), n, kind)
	if t.by == nil {
		return nil, err
	}
	return t.end, nil
}

func (s shaperLimiter) reserve(ctx context.Context, estimate int, kind entryKind) (unsettled, error) {
	v, err := s.Shaper.reserve(s.claimOf(ctx), nil, estimate, kind)
	if err != nil {
		return nil, err
	}
	return v, nil
}

func (s shaperLimiter) reserves() bool { return true }

func (s shaperLimiter) forecast(n int) (wait time.Duration, err error) {
	if s.letsAllThrough() {
		return 0, nil
	}
	return s.Forecast(n)
}

func (s shaperLimiter) hold(_ context.Context, d time.Duration) bool {
	s.Hold(d)
	return !s.letsAllThrough()
}

// stats does not withdraw the publication for refusals without the lock. Otherwise a middleware
// that adds RateLimit fields to each refusal would make each refusal take the lock.
func (s shaperLimiter) stats() (st Stats, ok bool) {
	now := int64(time.Since(s.epoch))
	s.mu.Lock()
	// As long as it is published, nothing has changed since then.
	if p := s.published.Load(); p != nil && p.at <= now && now < p.until {
		st = s.statsLocked(&s.flow, now)
		s.mu.Unlock()
		return st, true
	}
	s.mu.Unlock()
	return s.Stats(), true
}

func (s shaperLimiter) asksDoneToWait() bool { return true }

// of returns s as the requests of a key see it.
func (s *Shaper) of(key string) keyOfShaper {
	if !s.ordered {
		return keyOfShaper{shaperLimiter{s}, nil}
	}
	return keyOfShaper{shaperLimiter{s}, key}
}

// A keyOfShaper is a [Shaper] as the requests of a key see it.
type keyOfShaper struct {
	shaperLimiter
	key any // nil: the Shaper knows no keys
}

func (k keyOfShaper) WaitN(ctx context.Context, n int) error {
	if k.capped {
		return errUseAcquire
	}
	_, err := k.wait(&request{ctx: ctx, cost: int64(n), key: k.key})
	return err
}

func (k keyOfShaper) enter(ctx context.Context, n int, kind entryKind) (release func(), err error) {
	held, err := k.wait(&request{ctx: k.claimOf(ctx), cost: int64(n), kind: kind, tellsEnd: true, key: k.key})
	if held.by == nil {
		return nil, err
	}
	return held.end, nil
}

func (k keyOfShaper) reserve(ctx context.Context, estimate int, kind entryKind) (unsettled, error) {
	v, err := k.Shaper.reserve(k.claimOf(ctx), k.key, estimate, kind)
	if err != nil {
		return nil, err
	}
	return v, nil
}

func (k keyOfShaper) do(ctx context.Context, n int, f func(context.Context) error) error {
	release, err := k.enter(ctx, n, newcomer)
	if err != nil {
		return err
	}
	if release != nil {
		defer release()
	}
	return f(ctx)
}

func (k keyOfShaper) allow(n int) bool {
	if n <= 0 {
		return n == 0
	}
	r := &request{ctx: context.Background(), cost: int64(n), deadline: exact.Forever, kind: allow, key: k.key}
	return k.Shaper.enter(r).passed()
}

func (k keyOfShaper) predict(n int) (wait time.Duration, err error) {
	return k.Shaper.forecast(&request{cost: int64(n), deadline: exact.Forever, key: k.key})
}

func (k keyOfShaper) forecast(n int) (wait time.Duration, err error) {
	if k.mayDryRun() {
		return 0, nil
	}
	return k.predict(n)
}

func (k keyOfShaper) atMost(n int) { k.AtMost(n) }

func (k keyOfShaper) state() Stats { return k.Stats() }

// A foreign is the inner of any other [Limiter], which may embed a [*Shaper]. The Limiter's
// abilities show in its methods.
type foreign struct {
	Limiter
	acquirer acquirer // the Limiter, if it caps requests in flight; else nil
}

// An acquirer is a [Limiter] that needs to know when a request has ended. It may return
// a nil release for a request whose end it does not need to know.
type acquirer interface {
	Acquire(ctx context.Context, n int) (release func(), err error)
}

// mayBeCapped reports whether a [Limiter] that has Acquire may cap the requests in flight. A
// type that embeds a [*Shaper] without a cap, to override [Limiter.WaitN], inherits Acquire
// too. Its inherited method [Shaper.Limits] shows that there is no cap, so its WaitN is used.
// A Shaper without a cap never gets one later. A type without a method Limits is taken to
// have a cap.
func mayBeCapped(l Limiter) bool {
	limited, ok := l.(interface{ Limits() Limits })
	if s, is := l.(interface{ takesSeats() bool }); is && s.takesSeats() {
		return true // Its level grants the seats.
	}
	return !ok || limited.Limits().InFlight > 0
}

// WaitN does not ask for a cost of 0, for which a request may wait in some Limiters, x/time's among
// them. Only a [Chain] whose Limiters have costs of their own calls it with one.
func (f foreign) WaitN(ctx context.Context, n int) error {
	if n == 0 {
		return ctx.Err()
	}
	return f.Limiter.WaitN(ctx, n)
}

// enter asks the context after the wait, because the [Limiter] may not have done so. What
// the Limiter has spent by then is lost, but at least the request is not sent or served.
func (f foreign) enter(ctx context.Context, n int, _ entryKind) (release func(), err error) {
	ctx = withoutClaim(ctx)
	if n == 0 {
		return nil, ctx.Err()
	}
	if f.acquirer == nil {
		if err = f.WaitN(ctx, n); err != nil {
			return nil, err
		}
		return nil, ctx.Err()
	}
	given, err := f.acquirer.Acquire(ctx, n)
	if err != nil {
		return nil, err
	}
	if given == nil {
		return nil, ctx.Err()
	}
	handedOn := false
	defer func() {
		if !handedOn { // The context has ended, or its Err has panicked.
			given()
		}
	}()
	if err = ctx.Err(); err != nil {
		return nil, err
	}
	handedOn = true
	return given, nil
}

// An unsettled is a request that has left, and is to be settled once. Another time does nothing.
type unsettled interface {
	settle(actual int)     // as Reserve says of its settle; it gives back the seat, too
	settleCost(actual int) // settles the cost alone; settle then only gives back the seat
	releaseSeat()          // gives back the seat alone
	notSent()              // settles for a request that has not been sent after all
}

// firstOf returns the actual cost at the first level; below 0: its estimate stands.
func firstOf(actual []int) int {
	if len(actual) == 0 {
		return -1
	}
	return actual[0]
}

// settleEach settles a request with an actual cost at each level, and gives back its seat.
func settleEach(v unsettled, actual []int) {
	switch v := v.(type) {
	case *reservation:
		if v.numbers != nil {
			v.settleEach(actual...)
			return
		}
	case sending:
		if largestOf(actual) >= 0 && len(actual) > 0 {
			v.settling.settle(actual)
		}
		return
	}
	v.settle(firstOf(actual))
}

// settleCosts is settleEach without the seat.
func settleCosts(v unsettled, actual []int) {
	if r, ok := v.(*reservation); ok && r.numbers != nil {
		r.settleCosts(actual)
		return
	}
	v.settleCost(firstOf(actual))
}

// reserveEach is the reserve of an inner for a request with an estimate at each level. Only a [Shaper] can have several.
func reserveEach(ctx context.Context, l inner, estimates []int, kind entryKind) (unsettled, error) {
	if len(estimates) == 1 {
		return l.reserve(ctx, estimates[0], kind)
	}
	var v *reservation
	var err error
	switch l := l.(type) {
	case shaperLimiter:
		v, err = l.reserveAll(l.claimOf(ctx), nil, estimates, kind)
	case keyOfShaper:
		v, err = l.reserveAll(l.claimOf(ctx), l.key, estimates, kind)
	default:
		_, _, err = new(dispatcher).checkCosts("ReserveEach", estimates)
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

// settleOf returns the settle of an unsettled, which may be nil.
func settleOf(v unsettled) (settle func(actual int)) {
	if v == nil {
		return settleNothing
	}
	return v.settle
}

func settleNothing(int) {}

// spend calls f for a request that has left, and settles with what that returns.
func spend(ctx context.Context, v unsettled, f func(context.Context) (int, error)) (err error) {
	actual := -1 // What a panic leaves.
	defer func() { v.settle(actual) }()
	actual, err = f(ctx)
	return err
}

// spendBy is Spend of any Limiter.
func spendBy(ctx context.Context, l inner, estimate int, f func(context.Context) (int, error)) error {
	v, err := l.reserve(ctx, estimate, newcomer)
	if err != nil {
		return err
	}
	return spend(ctx, v, f)
}

// A reserver is a [Limiter] whose requests may have costs that are known only when they have ended.
type reserver interface {
	Reserve(ctx context.Context, estimate int) (settle func(actual int), err error)
}

func (f foreign) reserves() bool {
	_, ok := f.Limiter.(reserver)
	return ok
}

// reserve asks the context after the wait, as enter does.
func (f foreign) reserve(ctx context.Context, estimate int, kind entryKind) (unsettled, error) {
	l, ok := f.Limiter.(reserver)
	if !ok {
		release, err := f.enter(ctx, estimate, kind)
		if err != nil {
			return nil, err
		}
		return &onlyReleased{release: release}, nil
	}
	ctx = withoutClaim(ctx)
	settle, err := l.Reserve(ctx, estimate)
	if err != nil {
		return nil, err
	}
	v := &foreignReservation{given: settle}
	handedOn := false
	defer func() {
		if !handedOn { // The context has ended, or its Err has panicked.
			v.notSent()
		}
	}()
	if err = ctx.Err(); err != nil {
		return nil, err
	}
	handedOn = true
	return v, nil
}

// A foreignReservation is a request that a [Limiter] of another type has let leave. The function may be nil,
// and may not bear a second call. Its seat can't be told from its cost.
type foreignReservation struct {
	once  sync.Once
	given func(actual int)
}

func (v *foreignReservation) settle(actual int) {
	v.once.Do(func() {
		if v.given != nil {
			v.given(actual)
		}
	})
}

func (v *foreignReservation) settleCost(actual int) { v.settle(actual) }
func (v *foreignReservation) releaseSeat()          {}
func (v *foreignReservation) notSent()              { v.settle(0) }

// An onlyReleased is a request whose estimate stands. The function may be nil, and may not bear a second call.
type onlyReleased struct {
	once    sync.Once
	release func()
}

func (v *onlyReleased) releaseSeat() {
	v.once.Do(func() {
		if v.release != nil {
			v.release()
		}
	})
}

func (v *onlyReleased) settle(int)     { v.releaseSeat() }
func (v *onlyReleased) settleCost(int) {}
func (v *onlyReleased) notSent()       { v.releaseSeat() }

func (f foreign) forecast(n int) (wait time.Duration, err error) {
	if l, ok := f.Limiter.(interface {
		Forecast(n int) (time.Duration, error)
	}); ok && !f.mayDryRun() {
		return l.Forecast(n)
	}
	return 0, nil
}

// hold calls Hold in a dry run too, as the Verdicts are to take the hold into account.
func (f foreign) hold(_ context.Context, d time.Duration) bool {
	l, ok := f.Limiter.(interface{ Hold(d time.Duration) })
	if ok {
		l.Hold(d)
	}
	return ok && !f.mayDryRun()
}

func (f foreign) stats() (st Stats, ok bool) {
	l, ok := f.Limiter.(interface{ Stats() Stats })
	if ok {
		st = l.Stats()
	}
	return st, ok
}

// mayDryRun reports whether this is a dry run. It is a method, so that a type that embeds
// a [*Shaper] or a [*Group] has it too.
func (d *dispatcher) mayDryRun() bool { return d.letsAllThrough() }

// mayDryRun reports whether the [Limiter] embeds one of this package's in a dry run.
func (f foreign) mayDryRun() bool {
	l, ok := f.Limiter.(interface{ mayDryRun() bool })
	return ok && l.mayDryRun()
}

// asksDoneToWait reports false, because it is unknown when a foreign [Limiter] asks.
func (f foreign) asksDoneToWait() bool { return false }

// A KeyLimiter is a [Limiter] for the requests of one key of a [Group] ([Group.Limiter]), or of a [Shaper] whose
// keys share its rate ([Shaper.For]). It takes no memory in them, and in a Group works whether the key has a bucket
// or not. Its methods do for requests of the key what those of a Shaper do. The zero KeyLimiter is not usable, and
// its methods panic.
type KeyLimiter struct {
	bucket keyBucket // nil: the KeyLimiter is zero
}

// A keyBucket is the bucket of a key, whatever has it. It is apart from KeyLimiter, so that a type
// which embeds a *KeyLimiter is no inner, and its own [Limiter.WaitN] is called.
type keyBucket interface {
	inner
	allow(n int) bool
	do(ctx context.Context, n int, f func(context.Context) error) error
	atMost(n int)
	line(most int) []watch.Waiter
	predict(n int) (wait time.Duration, err error) // also in a dry run
	state() Stats
}

// made returns the bucket, and panics if there is none.
func (l *KeyLimiter) made() keyBucket {
	if l == nil || l.bucket == nil {
		panic("shaper: this KeyLimiter is nil or zero and can't be used; get one from Group.Limiter or Shaper.For")
	}
	return l.bucket
}

// Wait is shorthand for WaitN(ctx, 1).
func (l *KeyLimiter) Wait(ctx context.Context) error { return l.WaitN(ctx, 1) }

// WaitN is as [Group.WaitN] and [Shaper.WaitN] say.
func (l *KeyLimiter) WaitN(ctx context.Context, n int) error { return l.made().WaitN(ctx, n) }

// Acquire is as [Group.Acquire] and [Shaper.Acquire] say.
func (l *KeyLimiter) Acquire(ctx context.Context, n int) (release func(), err error) {
	if release, err = l.made().enter(ctx, n, newcomer); release == nil {
		release = nothing
	}
	return release, err
}

// Do is as [Shaper.Do] says.
func (l *KeyLimiter) Do(ctx context.Context, n int, f func(context.Context) error) error {
	return l.made().do(ctx, n, f)
}

// Allow is shorthand for AllowN(1).
func (l *KeyLimiter) Allow() bool { return l.AllowN(1) }

// AllowN is as [Group.AllowN] and [Shaper.AllowN] say.
func (l *KeyLimiter) AllowN(n int) bool { return l.made().allow(n) }

// Forecast is as [Shaper.Forecast] says. In a [Group] it makes no bucket: for a key that has none it calls the limits
// function, and predicts for a new one.
func (l *KeyLimiter) Forecast(n int) (wait time.Duration, err error) { return l.made().predict(n) }

// Hold is as [Shaper.Hold] says; of a [Shaper] it is for all keys. In a [Group] it makes the bucket of the key,
// unless its [Limits] can't be had.
func (l *KeyLimiter) Hold(d time.Duration) { l.made().hold(context.Background(), d) }

// Line is as [Shaper.Line] says; of a key of a [Shaper] with the requests of the key alone. Of a key that shares a
// bucket in a [Group] it is the line of all that share it.
func (l *KeyLimiter) Line(max int) []watch.Waiter { return l.made().line(max) }

// Stats returns the state of the key's bucket in a [Group], or of a new one if the key has none; only the name if
// the limits function returns an error. Of a [Shaper] it is [Shaper.Stats], for all keys together.
func (l *KeyLimiter) Stats() Stats { return l.made().state() }

// mayDryRun is for a type that embeds a KeyLimiter; see foreign.
func (l *KeyLimiter) mayDryRun() bool { return l.made().mayDryRun() }

// Limiter returns the bucket of a key, as a [Limiter] with more methods.
func (g *Group[K]) Limiter(key K) *KeyLimiter {
	g.mustBeMade()
	return &KeyLimiter{keyLimiter[K]{g, key}}
}

// A keyLimiter is the bucket of one key of a [Group].
type keyLimiter[K comparable] struct {
	group *Group[K]
	key   K
}

func (k keyLimiter[K]) WaitN(ctx context.Context, n int) error { return k.group.WaitN(ctx, k.key, n) }

func (k keyLimiter[K]) do(ctx context.Context, n int, f func(context.Context) error) error {
	return k.group.Do(ctx, k.key, n, f)
}

func (k keyLimiter[K]) allow(n int) bool { return k.group.AllowN(k.key, n) }

func (k keyLimiter[K]) state() (st Stats) {
	g := k.group
	err := g.shardOf(k.key).withFlow(k.key, func(d *dispatcher, f *flow, now int64) { st = d.statsLocked(f, now) })
	if err != nil {
		return Stats{Name: g.overflow.name}
	}
	return st
}

func (k keyLimiter[K]) stats() (st Stats, ok bool) { return k.group.StatsOf(k.key) }

func (k keyLimiter[K]) enter(ctx context.Context, n int, kind entryKind) (release func(), err error) {
	return k.group.acquire(k.group.overflow.claimOf(ctx), k.key, n, kind)
}

func (k keyLimiter[K]) reserve(ctx context.Context, estimate int, kind entryKind) (unsettled, error) {
	v, err := k.group.reserve(k.group.overflow.claimOf(ctx), k.key, estimate, kind)
	if err != nil {
		return nil, err
	}
	return v, nil
}

func (k keyLimiter[K]) reserves() bool { return true }

func (k keyLimiter[K]) atMost(n int) { k.group.shardOf(k.key).atMost(k.key, n) }

// line makes no bucket, but may call the limits function to find the one that the key shares.
func (k keyLimiter[K]) line(most int) []watch.Waiter {
	g := k.group
	line, found := g.shardOf(k.key).line(k.key, most)
	if found || most <= 0 || g.rings.Len() == 0 {
		return line
	}
	limits, err := g.shardOf(k.key).callLimits(k.key)
	if err != nil { // They say which bucket it shares.
		return nil
	}
	if line, found = g.shardOf(k.key).line(k.key, most); found {
		return line
	}
	line, _ = g.overflow.lineOf(most, nil, func() (f *flow, waiting int) {
		if kf := g.overflow.usedLocked(k.key, limits); kf != nil {
			f, waiting = &kf.Value, kf.Value.waiting()
		}
		return f, waiting
	})
	return line
}

// predict makes no bucket: for a key that has none it asks for its [Limits], and predicts for a new one.
func (k keyLimiter[K]) predict(n int) (wait time.Duration, err error) {
	if n < 0 {
		return 0, ErrNegativeCost
	}
	if n == 0 {
		return 0, nil
	}
	unknown := k.group.shardOf(k.key).withFlow(k.key, func(d *dispatcher, f *flow, now int64) {
		wait, err = d.forecastLocked(f, now, &request{cost: int64(n), deadline: exact.Forever})
	})
	if unknown != nil {
		return 0, unknown
	}
	return wait, err
}

func (k keyLimiter[K]) forecast(n int) (wait time.Duration, err error) {
	if k.group.mayDryRun() {
		return 0, nil
	}
	return k.predict(n)
}

// hold reports false if the [Limits] of the key can't be had: then there is no line to hold.
func (k keyLimiter[K]) hold(ctx context.Context, d time.Duration) bool {
	return k.group.shardOf(k.key).hold(ctx, k.key, d) && !k.group.mayDryRun()
}

func (k keyLimiter[K]) mayDryRun() bool { return k.group.mayDryRun() }

func (k keyLimiter[K]) asksDoneToWait() bool { return true }
