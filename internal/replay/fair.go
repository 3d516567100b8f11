package replay

import (
	"cmp"
	"slices"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/internal/fair"
	"example.com/leakybucket/internal/settle"
)

// A Call is a request of a key that reserves an estimate, and settles when it has ended, as
// with [shaper.Shaper.Reserve].
type Call struct {
	Key      string
	Weight   int           // of the key, from 1 to 1,000; it counts if the key has no call in line
	Estimate int           // the cost with which the call waits, at least 1
	Actual   int           // its cost in the end; negative: it is not known, and the estimate stands
	Took     time.Duration // from its departure to its end

	// Done is called once, when the fate of the call is certain, with the instant at which it leaves or is refused.
	Done func(at time.Duration, f Fate)
}

// A FairBucket is a bucket in virtual time that many keys share, like a Shaper
// [shaper.WithFairQueue]. [NewFairBucket] makes one. It remembers the calls in line and under way.
//
// Events at one instant happen in this order: departures, calls that end, arrivals.
type FairBucket struct {
	p *Plan

	empty exact.Nanos // as in Bucket
	since exact.Nanos // no request in line leaves before
	ahead int64

	line       fair.Order[*fairPlace]
	waiting    int
	departures uint32 // charges included, modulo 2³²
	book       settle.Book
	underway   []ending // in the order in which they end
	settled    Settled
}

// Settled sums up how the calls of a [FairBucket] have settled, in cost units.
type Settled struct {
	GivenBack, Charged uint64
	Forfeited          uint64 // reserved in excess, but drained before the call ended
}

// A fairPlace is the place of a call in line.
type fairPlace struct {
	call *Call
	at   time.Duration
}

// NewFairBucket returns an empty FairBucket with the limits of a plan.
func NewFairBucket(p *Plan) *FairBucket { return &FairBucket{p: p} }

// Settled returns the sums over the calls that have ended.
func (b *FairBucket) Settled() Settled { return b.settled }

// Arrive is the arrival of a call. Instants must not be negative, and not decrease from one call to
// the next. The call must not be changed any more.
func (b *FairBucket) Arrive(at time.Duration, c *Call) {
	b.advance(at)
	wait, over, why := b.judge(at, c)
	switch {
	case why != Waiting:
		c.Done(at, Fate{Result: why})
		return
	case wait == 0:
		b.leave(exact.At(int64(at)), c)
		c.Done(at, Fate{Departed, 0})
		return
	}
	head := b.line.Head()
	if over != nil {
		b.pushOut(at, over)
	}
	b.line.Push(c.Key, c.Weight, int64(c.Estimate), &fairPlace{c, at})
	b.waiting++
	b.ahead = exact.Sum(b.ahead, int64(c.Estimate))
	if b.line.Head() != head {
		b.since = exact.At(int64(at))
	}
}

// End lets all in line leave and all calls end.
func (b *FairBucket) End() { b.advance(Never) }

// judge returns how long a call that comes at an instant would have to wait, or why it is refused, and the call in
// line that it pushes out. The order of the checks is the same as in package shaper.
func (b *FairBucket) judge(at time.Duration, c *Call) (wait time.Duration, over *fair.Item[*fairPlace], why Result) {
	if b.waiting == 0 || b.p.depth == 0 {
		wait = b.p.waitBehind(b.empty, at, b.ahead, c.Estimate)
		return wait, nil, b.p.judge(c.Estimate, wait, b.waiting)
	}
	if b.waiting >= b.p.depth {
		over = b.line.Outlasting(c.Key, c.Weight, int64(c.Estimate))
		switch {
		case b.p.tooCostly(c.Estimate):
			return 0, nil, TooCostly
		case over == nil:
			return 0, nil, QueueFull
		}
	}
	// A newcomer that is in time as the last of all is in time anywhere. Only otherwise it is
	// worth it to count the requests that leave before it, with a look at each key.
	wait = max(b.p.waitBehind(b.empty, at, b.ahead, c.Estimate), 1)
	if wait > b.p.longest {
		_, ahead := b.line.Ahead(c.Key, c.Weight, int64(c.Estimate), false, over)
		wait = max(b.p.waitBehind(b.empty, at, ahead, c.Estimate), 1)
	}
	return wait, over, b.p.judge(c.Estimate, wait, min(b.waiting, b.p.depth-1))
}

// pushOut refuses a call in line.
func (b *FairBucket) pushOut(at time.Duration, over *fair.Item[*fairPlace]) {
	place := over.Value
	b.line.Remove(over)
	b.waiting--
	b.ahead -= int64(place.call.Estimate)
	place.call.Done(at, Fate{QueueFull, at - place.at})
}

// advance lets all events happen that are due by an instant.
func (b *FairBucket) advance(until time.Duration) {
	for b.step(until) {
	}
}

// step lets the next event happen, if it is due by an instant, and reports whether there is one.
func (b *FairBucket) step(until time.Duration) bool {
	ends := Never
	if len(b.underway) > 0 {
		ends = b.underway[0].at
	}
	if head := b.line.Head(); head != nil {
		slot := exact.Later(b.p.allowed(b.empty, int(head.Cost())), b.since)
		if time.Duration(slot.Ceil()) <= min(ends, until) {
			b.depart(slot, head.Value)
			return true
		}
	}
	if len(b.underway) == 0 || ends > until {
		return false
	}
	next := b.underway[0]
	b.underway = slices.Delete(b.underway, 0, 1)
	b.settle(next)
	return true
}

// depart lets the head of the line leave at its slot.
func (b *FairBucket) depart(slot exact.Nanos, head *fairPlace) {
	b.line.Depart()
	b.waiting--
	b.ahead -= int64(head.call.Estimate)
	b.leave(slot, head.call)
	b.since = slot
	leaves := time.Duration(slot.Ceil())
	head.call.Done(leaves, Fate{Departed, leaves - head.at})
}

// leave is the departure of a call at an instant.
func (b *FairBucket) leave(at exact.Nanos, c *Call) {
	b.raise(at, c.Estimate)
	e := ending{time.Duration(exact.Sum(at.Ceil(), int64(c.Took))), c, b.book.Add(b.p.interval, b.departures, b.levelAt(at))}
	i, _ := slices.BinarySearchFunc(b.underway, e, func(earlier, e ending) int {
		return cmp.Or(cmp.Compare(earlier.at, e.at), -1) // Calls that end at one instant end in the order of their departures.
	})
	b.underway = slices.Insert(b.underway, i, e)
}

// raise raises the level at an instant.
func (b *FairBucket) raise(at exact.Nanos, n int) {
	b.book.Rises(b.p.interval, b.levelAt(at))
	b.departures++
	b.empty = b.p.left(b.empty, at, n)
}

// levelAt returns the level at an instant.
func (b *FairBucket) levelAt(at exact.Nanos) (l settle.Level) {
	if b.empty.After(at) {
		l.Span = b.p.interval.Minus(b.empty, at)
	}
	return l
}

// settle is the end of a call. An excess of the estimate is given back as far as it has not
// drained since; a shortfall is charged.
func (b *FairBucket) settle(e ending) {
	now, over := exact.At(int64(e.at)), e.call.Estimate-e.call.Actual
	if e.call.Actual < 0 || over <= 0 {
		b.book.Drop(b.p.interval, e.number)
		if e.call.Actual >= 0 && over < 0 {
			b.raise(now, -over)
			b.settled.Charged += uint64(-over)
		}
		return
	}
	rest, back, ok := b.book.GiveBack(b.p.interval, b.levelAt(now), e.number, int64(over))
	if ok {
		b.empty = b.p.interval.Plus(now, rest.Span)
	}
	b.settled.GivenBack += uint64(back)
	b.settled.Forfeited += uint64(int64(over) - back)
	b.since = exact.Later(b.since, now)
}

// An ending is the end of a call under way.
type ending struct {
	at     time.Duration
	call   *Call
	number uint64
}
