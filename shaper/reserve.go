package shaper

import (
	"context"
	"math"
	"math/big"
	"slices"
	"sync/atomic"

	"example.com/leakybucket/internal/exact"
)

// Reserve is [Shaper.Acquire] for a request whose cost is known only when it has ended, such as the tokens
// of a language model. It waits as a request of cost estimate does. When the request has ended, the
// caller calls settle, once, with the actual cost. If the estimate was too high, the bucket gets the
// difference back; if it was too low, the bucket is charged the difference. The requests in line are
// re-timed at once. With [Limits.InFlight] settle also releases the seat.
//
//	settle, err := s.Reserve(ctx, 2000)
//	...
//	answer, err := call(ctx)
//	settle(answer.Usage.Total) // 1,240: the next request leaves sooner
//
// settle is never nil, and may be called from any goroutine. It does nothing when it is called again,
// and with an error. A negative actual means that the cost is not known: the estimate stands. It
// also stands if settle is never called.
//
// Units that have drained since the request left do not come back, because a bucket that had known
// the cost would not hold less now. The package documentation states the promises.
// [Stats.Forfeited] counts the units that had drained: if it grows, [Limits.Burst] is too small for
// the units that are reserved and not settled at a time.
//
// An estimate of 0 waits for nothing and takes no seat; settle then only charges. A negative
// estimate is [ErrNegativeCost]. An estimate above Burst waits for an empty bucket, as any cost above
// Burst does. settle also works after [Shaper.Close]. In a dry run it changes the shadow when the
// request has left the shadow; verdicts stand. Predictions for requests in line, such as that a deadline
// is too early, are made as if nothing were settled.
//
// A [Shaper.Snapshot] does not have the reservations that are open: their estimates stand in it. With a level in a [Bucket]
// ([WithBucket]) the estimate stands, too, and settle only releases the seat.
func (s *Shaper) Reserve(ctx context.Context, estimate int) (settle func(actual int), err error) {
	v, err := reserveIn(ctx, s, nil, estimate, newcomer)
	return v.orNothing(), err
}

// reserveIn is Reserve for a request with a key, or nil, with a reservation in place of a function; nil with
// an error.
func reserveIn(ctx context.Context, s *Shaper, key any, estimate int, kind entryKind) (*reservation, error) {
	v := newReservation(estimate)
	r := &request{ctx: ctx, key: key, cost: v.estimate, kind: kind, releases: true, arrival: &v.arrival}
	_, err := s.wait(r)
	return v.begin(r, &s.dispatcher, &s.flow, err)
}

// Spend is [Shaper.Do] for such a request: f returns the cost, also together with an error. If f panics, the
// estimate stands.
func (s *Shaper) Spend(ctx context.Context, estimate int, f func(context.Context) (actual int, err error)) error {
	v, err := reserveIn(ctx, s, nil, estimate, newcomer)
	if err != nil {
		return err
	}
	return spend(ctx, v, f)
}

// AtMost notes that the upstream lets at most n more cost units pass at once, as a response has said:
// it raises the level to Burst − n if it is lower. It never lowers the level, so a number that is old,
// rounded or wrong can only slow down. Requests in line are re-timed.
//
// A negative n counts as 0. For an n of [Limits.Burst] or more it does nothing, and neither at [rate.Inf],
// where the level is always 0, nor with a level in a [Bucket]. The units that it adds to the level are
// no part of any reservation: a settle gives back as many as it would without AtMost.
func (s *Shaper) AtMost(n int) {
	s.mustBeMade()
	now := s.lockFlow(&s.flow)
	defer s.unlockAndArm()
	s.flow.atMost(&s.dispatcher, now, n)
}

// Reserve is [Shaper.Reserve] on the bucket of a key. If the bucket has drained and has been deleted,
// nothing is given back. A settle charges the bucket that the key has then. To make that bucket it may
// call the limits function, and if the function returns an error, nothing is charged.
func (g *Group[K]) Reserve(ctx context.Context, key K, estimate int) (settle func(actual int), err error) {
	v, err := reserve(ctx, g, key, estimate, newcomer)
	return v.orNothing(), err
}

// reserve is Reserve with a reservation in place of a function; nil with an error.
func reserve[K comparable](ctx context.Context, g *Group[K], key K, estimate int, kind entryKind) (*reservation, error) {
	v := newReservation(estimate)
	r := &request{ctx: ctx, cost: v.estimate, kind: kind, releases: true, arrival: &v.arrival}
	in, kf, err := waitIn(g, key, r)
	v.holder = reservingKey[K]{g.shardOf(key).of(key), in, kf}
	if in == nil { // With a cost of 0 and with most errors no bucket has been looked for.
		return v.begin(r, nil, nil, err)
	}
	return v.begin(r, &in.dispatcher, &kf.Value, err)
}

// Spend is [Shaper.Spend] on the bucket of a key.
func (g *Group[K]) Spend(ctx context.Context, key K, estimate int, f func(context.Context) (int, error)) error {
	v, err := reserve(ctx, g, key, estimate, newcomer)
	if err != nil {
		return err
	}
	return spend(ctx, v, f)
}

// AtMost is [Shaper.AtMost] on the bucket of a key. It makes the bucket if there is none, as
// [Group.Hold] does. If the [Limits] of the key can't be had it does nothing.
func (g *Group[K]) AtMost(key K, n int) {
	g.mustBeMade()
	g.shardOf(key).of(key).atMost(n)
}

// atMost is AtMost.
func (k ofKey[K]) atMost(n int) {
	_ = k.withFlowOrNew(context.Background(), bucketInDrain, func(in *keyShard[K], kf *keyedFlow[K], now int64) {
		if kf != k.s.closedFlow {
			kf.Value.atMost(&in.dispatcher, now, n)
		}
	})
}

// Reserve is [Group.Reserve] or [Shaper.Reserve].
func (l *KeyLimiter) Reserve(ctx context.Context, estimate int) (settle func(actual int), err error) {
	v, err := l.made().reserve(ctx, estimate, newcomer)
	return settleOf(v), err
}

// ReserveRetry is Reserve for a request that has left before and that the upstream has refused: it enters
// the line at the head, as a retry of a [Transport] does ([Transport.Retry]).
func (l *KeyLimiter) ReserveRetry(ctx context.Context, estimate int) (settle func(actual int), err error) {
	v, err := l.made().reserve(ctx, estimate, reentry)
	return settleOf(v), err
}

// Spend is [Group.Spend] or [Shaper.Spend].
func (l *KeyLimiter) Spend(ctx context.Context, estimate int, f func(context.Context) (actual int, err error)) error {
	return spendBy(ctx, l.made(), estimate, f)
}

// AtMost is [Group.AtMost], or [Shaper.AtMost] for all keys.
func (l *KeyLimiter) AtMost(n int) { l.made().atMost(n) }

// A reservation is a request of Reserve that has left, until it is settled.
type reservation struct {
	estimate int64
	d        *dispatcher // of the flow; nil: there is no flow, as the request has cost nothing so far
	f        *flow       // that it has left
	seat     *seat       // nil: it has none
	holder   holder      // of a key; nil: of a Shaper, or the estimate stands
	isOver   atomic.Bool // it has been settled

	// A decision sets these, under the lock.
	of     *settlements // of the flow; nil: there is nothing to settle in the bucket
	number uint64       // in the reservations of the flow; 0: its estimate stands whatever it costs

	arrival arrival // leads a decision to the reservation
}

// A holder is a key whose bucket a request has left.
type holder interface {
	charge(n int64)      // charges the bucket that the key has now; the lock is not held
	mayBeDrainedLocked() // the level of the bucket that the request has left has been lowered
}

// A reservingKey is the holder of a reservation, with the shard and the bucket that the request has left; nil:
// it has left none.
type reservingKey[K comparable] struct {
	ofKey[K]
	in *keyShard[K]
	kf *keyedFlow[K]
}

func (k reservingKey[K]) charge(n int64) {
	_ = k.withFlowOrNew(context.Background(), bucketInDrain, func(in *keyShard[K], kf *keyedFlow[K], now int64) {
		if kf == k.s.closedFlow {
			in.countSettledLocked(&kf.Value, 0, uint64(n), 0)
			return
		}
		kf.Value.settle(&in.dispatcher, now, 0, -n)
		in.retimeLocked(&kf.Value, now)
	})
}

func (k reservingKey[K]) mayBeDrainedLocked() { k.in.rescheduleLocked(k.kf) }

func newReservation(estimate int) *reservation {
	v := &reservation{estimate: int64(estimate)}
	v.arrival.reservation = v
	return v
}

// begin returns the reservation of a request whose call has ended with err, in a flow; nil with an
// error.
func (v *reservation) begin(r *request, d *dispatcher, f *flow, err error) (*reservation, error) {
	v.d, v.f, v.seat = d, f, r.seat
	switch {
	case err != nil:
		if v.number != 0 {
			v.forget() // It had left, or was in line, when its context ended.
		}
		return nil, err
	case v.of != nil:
		v.countReserved(v.estimate)
	}
	return v, nil
}

// orNothing returns settle, or for nil a function that does nothing.
func (v *reservation) orNothing() (settle func(actual int)) {
	if v == nil {
		return settleNothing
	}
	return v.settle
}

func settleNothing(int) {}

// An unsettled is a request that has left, and is to be settled once. Another time does nothing.
type unsettled interface {
	settle(actual int) // as Reserve says of its settle
	notSent()          // settles for a request that has not been sent after all
}

// settleOf returns the settle of an unsettled, which may be nil.
func settleOf(v unsettled) (settle func(actual int)) {
	if v == nil {
		return settleNothing
	}
	return v.settle
}

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

// settle is what Reserve returns.
func (v *reservation) settle(actual int) {
	if v.isOver.Swap(true) {
		return
	}
	if v.of != nil {
		v.countReserved(-v.estimate)
	}
	if v.seat != nil {
		defer v.seat.release(v.d, v.f)
	}
	over := v.estimate - int64(actual)
	switch {
	case v.number == 0 && v.estimate > 0: // The level is not the flow's own, or a dry run has refused it.
	case actual < 0 || over == 0:
		if v.number != 0 {
			v.settleUnchanged()
		}
	case v.number == 0 || over < 0 && v.holder != nil:
		if v.number != 0 {
			v.forget()
		}
		v.charge(-over)
	default:
		v.settleWith(over)
	}
}

// notSent settles for a request that has not been sent after all.
func (v *reservation) notSent() { v.settle(0) }

// charge charges the bucket of a key, or of a Shaper, n units now.
func (v *reservation) charge(n int64) {
	if v.holder != nil {
		v.holder.charge(n)
		return
	}
	v.settleWith(-n)
}

// settleWith settles a reservation that was too great by over, or too small if over is negative.
func (v *reservation) settleWith(over int64) {
	now := v.d.lockFlow(v.f)
	defer v.d.unlockAndArm()
	v.f.settle(v.d, now, v.number, over)
	v.d.retimeLocked(v.f, now)
	if over > 0 && v.holder != nil {
		v.holder.mayBeDrainedLocked()
	}
}

// settleUnchanged settles a reservation whose estimate stands.
func (v *reservation) settleUnchanged() {
	v.d.mu.Lock()
	defer v.d.mu.Unlock()
	rs := &v.f.bucket.rare.reservations
	delete(rs.shadow, v.number)
	rs.drop(&v.f.bucket, v.number)
}

// forget is settleUnchanged for a request that has not left after all.
func (v *reservation) forget() { v.settleUnchanged() }

// countReserved adds to the gauges of units that are reserved. It needs no lock, so that Reserve
// takes it only once.
func (v *reservation) countReserved(n int64) {
	v.of.reserved.Add(n)
	if v.d.totals != nil {
		v.d.totals.reserved.Add(n)
	}
}

// settlements are the counts of what has been reserved and settled, in cost units.
type settlements struct {
	reserved                      atomic.Int64 // and not settled
	givenBack, charged, forfeited uint64
}

// add adds the counts of others.
func (s *settlements) add(o *settlements) {
	s.reserved.Add(o.reserved.Load())
	s.count(o.givenBack, o.charged, o.forfeited)
}

// units returns the units that are reserved; the greatest int if that is exceeded, as it can be at rate.Inf
// and where an int has 32 bits.
func (s *settlements) units() int { return int(min(uint64(s.reserved.Load()), math.MaxInt)) }

// count counts what a settlement has given back, charged, and found drained.
func (s *settlements) count(givenBack, charged, forfeited uint64) {
	s.givenBack += givenBack
	s.charged += charged
	s.forfeited += forfeited
}

// countSettledLocked counts a settlement for a flow, and in a [Group] for all.
func (o *watch) countSettledLocked(f *flow, givenBack, charged, forfeited uint64) {
	f.bucket.rareOrNew().count(givenBack, charged, forfeited)
	if o.totals != nil {
		o.totals.count(givenBack, charged, forfeited)
	}
}

// settled returns the counts of settlements of a flow, to be read.
func (f *flow) settled() *settlements {
	if r := f.bucket.coldOrNone().rare; r != nil {
		return &r.settlements
	}
	return &noSettlements
}

// noSettlements are the counts of a flow without settlements. It is only read.
var noSettlements settlements

// reservedOf returns the reservation of a request that has been admitted to a flow, which has its number
// now, and the reservations of the flow.
func (r *request) reservedOf(d *dispatcher, f *flow) (v *reservation, rs *reservations) {
	v, r.arrival = r.arrival.reservation, nil
	rs = &f.bucket.rareOrNew().reservations
	v.of = &rs.settlements
	if f.level() == nil {
		v.number = rs.next()
	}
	return v, rs
}

// reservesAtOnce begins the reservation of a request that has just left as it came.
func (r *request) reservesAtOnce(d *dispatcher, f *flow, now int64) {
	v, rs := r.reservedOf(d, f)
	if v.number != 0 {
		rs.add(&f.bucket, exact.At(now), false, v.number)
	}
}

// reservesInLine begins the reservation of a request that enters the line.
func (r *request) reservesInLine(d *dispatcher, f *flow, w *waiter) {
	v, rs := r.reservedOf(d, f)
	w.reservation = uint32(v.number)
	if d.isDryRun() {
		if rs.shadow == nil {
			rs.shadow = make(map[uint64]int64)
		}
		rs.shadow[v.number] = 0
	}
}

// leaves notes that a request with a reservation leaves the line now. Its slot is line.since.
func (rs *reservations) leaves(d *dispatcher, ln *line, w *waiter, now int64) {
	number := rs.last - uint64(uint32(rs.last)-w.reservation) // The latest that ends in these bits; no line is so long that another could be meant.
	over, waits := rs.shadow[number]
	if d.isDryRun() && !waits {
		return // Its estimate stands, as is known already.
	}
	rs.add(&ln.flow.bucket, ln.since, rs.sinceIsRounded, number)
	delete(rs.shadow, number)
	if over != 0 {
		ln.flow.settle(d, now, number, over)
		ln.flow.bucket.sinceIsWhole()
	}
}

// settle settles a reservation of the flow that was too great by over, or too small if over is
// negative. A number of 0 stands for a request that has reserved nothing.
func (f *flow) settle(d *dispatcher, now int64, number uint64, over int64) {
	b := &f.bucket
	switch {
	case number != 0 && b.rare.settleShadow(number, over):
	case f.level() != nil: // Its level is not the bucket's.
	case over > 0:
		back := b.giveReservedBack(now, number, over)
		d.countSettledLocked(f, uint64(back), 0, uint64(over-back))
		f.notBefore(now)
	default:
		if number != 0 {
			b.rare.drop(b, number)
		}
		b.leave(exact.At(now), -over) // A charge is as a departure, which no request makes.
		d.countSettledLocked(f, 0, uint64(-over), 0)
	}
}

// retimeLocked re-times the line of a flow after its level has changed.
func (d *dispatcher) retimeLocked(f *flow, now int64) {
	if f.line != nil {
		f.line.leftAt = unknown // The next spacing would not be one of the schedule alone.
		f.line.noteNewHead(now)
	}
	d.markDirtyLocked(f)
	d.advanceLocked(now, headFirst)
}

// atMost is AtMost for a flow.
func (f *flow) atMost(d *dispatcher, now int64, n int) {
	b := &f.bucket
	room := b.burst - int64(max(n, 0))
	if room <= 0 || b.interval.IsZero() || f.level() != nil {
		return
	}
	empty := b.interval.Plus(exact.At(now), b.interval.Times(room))
	if b.interval.Compare(empty, nil, b.empty, b.roundedUpBy()) <= 0 {
		return
	}
	b.leave(exact.At(now), 0) // To giveBack the rise of the level is as a departure, which no request makes.
	b.setEmpty(empty, nil)
	d.retimeLocked(f, now)
}

// reservations are the open reservations of a bucket: of requests that have left it and are not settled.
//
// After a settle the level must be as if the request had left with its actual cost. If a departure of
// the past had cost less, the present level would be lower by the difference, but by no more than the
// least level since then: a bucket whose level had reached 0 would have leaked less from there on. (It is
// Lindley's recursion, read backwards.) The least level since a request left is the minimum of the levels
// just before each later departure, and of the present level.
//
// So each open reservation keeps the least level just before the departures that followed it, up to and
// including the departure of the next reservation. A departure then compares the level with the latest
// reservation only. A settle walks the reservations that have left later. It lowers the levels that they
// keep by the units that it gives back, as the level was lower by so much at each of these instants. If
// the level has been 0, no reservation from before that has anything to get back, and all are forgotten.
//
// The obvious rule, to lower the level by the difference, lets more leave in some windows than the
// limit allows: units that have drained meanwhile would be given back, too.
type reservations struct {
	open []openReservation // in the order in which they left
	last uint64            // the number of the latest

	sinceIsRounded bool // line.since is the slot of a request that has just left, and is rounded; see roundsSlot
	sinceStays     bool // the next call of noteSince tells nothing, as a slot has been given back, and the next head may have the same

	// shadow has the reservations in the line of a dry run. For one that has been settled already it has the
	// difference by which it was too great, and else 0.
	shadow map[uint64]int64

	settlements
}

// An openReservation may get something back.
type openReservation struct {
	number uint64
	least  remainder // the least level since it left, until the next reservation left; at first the level just after it left
}

// A remainder is a level, as the time in which it leaks.
type remainder struct {
	span   exact.Nanos
	excess *big.Rat // how far span lies above the exact one; nil: not at all
}

// maxReservations is how many reservations of a bucket may get something back. It bounds the memory of those
// that are never settled to some 128 KiB, and the time of a settle to some forty microseconds (BenchmarkSettle).
const maxReservations = 4096

// next returns the number of the next reservation. The lowest 32 bits of no number are 0.
func (rs *reservations) next() uint64 {
	rs.last++
	if uint32(rs.last) == 0 {
		rs.last++
	}
	return rs.last
}

// add adds a reservation whose request has left b at an instant, which may be a rounded slot.
func (rs *reservations) add(b *bucket, at exact.Nanos, rounded bool, number uint64) {
	if b.interval.IsZero() {
		return
	}
	if len(rs.open) == maxReservations {
		rs.open = rs.open[1:] // append moves the others to the front of new memory, once in a while.
	}
	rs.open = append(rs.open, openReservation{number, b.remainder(at, rounded)})
}

// find returns the index of a reservation; -1: it gets nothing back.
func (rs *reservations) find(number uint64) int {
	for i := len(rs.open) - 1; i >= 0; i-- {
		if rs.open[i].number == number {
			return i
		}
	}
	return -1
}

// drop removes a reservation whose estimate stands.
func (rs *reservations) drop(b *bucket, number uint64) {
	if i := rs.find(number); i >= 0 {
		rs.remove(b, i)
	}
}

// remove removes the reservation at an index. The one before it takes over its least level.
func (rs *reservations) remove(b *bucket, i int) {
	if i > 0 && b.less(rs.open[i].least, rs.open[i-1].least) {
		rs.open[i-1].least = rs.open[i].least
	}
	rs.open = slices.Delete(rs.open, i, i+1)
	rs.trim()
}

// forgetUntil removes all reservations up to an index.
func (rs *reservations) forgetUntil(i int) {
	rs.open = slices.Delete(rs.open, 0, i+1)
	rs.trim()
}

// trim gives back the memory of many reservations when none is open.
func (rs *reservations) trim() {
	if len(rs.open) == 0 && cap(rs.open) > 64 {
		rs.open = nil
	}
}

// settleShadow notes that a reservation that is still in the line of a dry run was too great by over.
// It reports whether it is.
func (rs *reservations) settleShadow(number uint64, over int64) bool {
	if _, waits := rs.shadow[number]; !waits {
		return false
	}
	rs.shadow[number] = over
	return true
}

// roundsSlot reports whether the slot of a departure out of the line is rounded up: by as much as empty,
// after a change of the rate. It is if the level has let the head leave just then, or if it leaves at the
// rounded slot of the one before. Any other instant at which it leaves is a whole nanosecond, and exact. From an exact instant until a rounded one it
// is longer by the rounding than it should be; between two that are rounded it is exact.
func (b *bucket) roundsSlot(since, slot exact.Nanos) bool {
	r := b.coldOrNone().rare
	if r == nil {
		return false
	}
	r.sinceIsRounded = slot.After(b.cold.hold) && (r.sinceIsRounded || slot.After(since))
	return r.sinceIsRounded
}

// noteSince is called when the line may have changed, and line.since may have become a whole nanosecond. That does
// not happen while the slots of an instant are handed out.
func (b *bucket) noteSince() {
	if r := b.coldOrNone().rare; r != nil {
		r.sinceIsRounded = r.sinceIsRounded && r.sinceStays
		r.sinceStays = false
	}
}

// sinceIsWhole notes that line.since has become a whole nanosecond.
func (b *bucket) sinceIsWhole() {
	if r := b.coldOrNone().rare; r != nil {
		r.sinceIsRounded = false
	}
}

// noteLevel notes the level just before the bucket's level rises at an instant, which may be a rounded
// slot.
func (rs *reservations) noteLevel(b *bucket, at exact.Nanos, rounded bool) {
	last := len(rs.open) - 1
	if last < 0 {
		return
	}
	switch level := b.remainder(at, rounded); {
	case level.isZero():
		rs.forgetUntil(last)
	case b.less(level, rs.open[last].least):
		rs.open[last].least = level
	}
}

// noteReserved is noteLevel, now.
func (b *bucket) noteReserved(now int64) {
	if r := b.coldOrNone().rare; r != nil {
		r.noteLevel(b, exact.At(now), false)
	}
}

// forgetReserved forgets all reservations, as the level has been 0.
func (b *bucket) forgetReserved() {
	if r := b.coldOrNone().rare; r != nil {
		r.forgetUntil(len(r.open) - 1)
	}
}

// rescaleReserved keeps the reservations after a change of the interval, as so many units.
func (b *bucket) rescaleReserved(old exact.Interval) {
	r := b.coldOrNone().rare
	if r == nil {
		return
	}
	for i := range r.open {
		least := &r.open[i].least
		least.span, least.excess = old.Rescale(least.span, least.excess, 0, b.interval)
	}
}

// giveReservedBack lowers the level by the units that the reservation with that number gets back, over
// at most, and returns how many whole units that is.
func (b *bucket) giveReservedBack(now int64, number uint64, over int64) (back int64) {
	rs := &b.rare.reservations
	at := exact.At(now)
	level := b.remainder(at, false)
	taken, i := level, len(rs.open)-1
	for ; i >= 0; i-- {
		// less and minus are not inlined: to call them would double the time of a settle.
		o := &rs.open[i]
		switch {
		case o.least.excess == taken.excess:
			if taken.span.After(o.least.span) {
				taken = o.least
			}
		case b.less(o.least, taken):
			taken = o.least
		}
		if o.number == number {
			break
		}
	}
	if i < 0 {
		return 0
	}
	if all := b.remainderOf(over); !b.less(taken, all) {
		taken, back = all, over
	} else {
		back = b.wholeUnits(taken)
	}
	rs.lower(b, i, taken)
	if level = b.minus(level, taken); level.isZero() {
		b.setEmpty(at, nil)
		rs.forgetUntil(len(rs.open) - 1)
		return back
	}
	empty := b.interval.Plus(at, level.span)
	if level.excess == nil {
		b.setEmpty(empty, nil)
	} else {
		b.setEmpty(b.interval.Add(empty, level.excess, 0))
	}
	return back
}

// lower lowers the levels since the reservation at an index has left, and removes the reservation. What
// left before an instant at which the level is 0 then is forgotten.
func (rs *reservations) lower(b *bucket, i int, taken remainder) {
	zero := -1
	for k := i; k < len(rs.open); k++ {
		o := &rs.open[k]
		if o.least.excess == nil && taken.excess == nil {
			o.least.span = b.interval.Minus(o.least.span, taken.span)
		} else {
			o.least = b.minus(o.least, taken)
		}
		if o.least.isZero() {
			zero = k
		}
	}
	if zero >= 0 {
		rs.forgetUntil(zero)
		i -= zero + 1
	}
	if i >= 0 {
		rs.remove(b, i)
	}
}

// remainder returns the level at an instant, which is no later than that at which it is 0. If the instant is
// rounded, it is so by as much as empty.
func (b *bucket) remainder(at exact.Nanos, rounded bool) remainder {
	l := remainder{span: b.interval.Minus(b.empty, at)}
	if !rounded {
		l.excess = b.roundedUpBy()
	}
	return l
}

// remainderOf returns a level of n units.
func (b *bucket) remainderOf(n int64) remainder {
	span := b.interval.Times(n)
	if span.Whole() < exact.Forever {
		return remainder{span: span}
	}
	span, excess := b.interval.Add(exact.Nanos{}, nil, n)
	return remainder{span, excess}
}

// isZero reports whether the level is 0. As of bucket.empty, an excess does not count then.
func (l remainder) isZero() bool { return l.span == exact.Nanos{} }

// less reports whether a level is below another one.
func (b *bucket) less(l, other remainder) bool {
	if l.excess == other.excess { // As nearly always, as both are nil or have come from one change of the rate.
		return other.span.After(l.span)
	}
	return b.interval.Compare(l.span, l.excess, other.span, other.excess) < 0
}

// minus returns the difference of two levels.
func (b *bucket) minus(l, other remainder) remainder {
	switch {
	case l.excess == other.excess:
		return remainder{span: b.interval.Minus(l.span, other.span)}
	case other.excess == nil:
		return remainder{b.interval.Minus(l.span, other.span), l.excess}
	}
	span, excess := b.interval.Difference(l.span, l.excess, other.span, other.excess)
	return remainder{span, excess}
}

// wholeUnits returns a level in cost units, rounded down.
func (b *bucket) wholeUnits(l remainder) (n int64) {
	for n = int64(b.interval.Units(l.span)); n > 0 && b.less(l, b.remainderOf(n)); n-- { // Floats are not exact, but near.
	}
	for !b.less(l, b.remainderOf(n+1)) {
		n++
	}
	return n
}
