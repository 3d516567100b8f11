package shaper

import (
	"errors"
	"math"
	"net/http"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/internal/fair"
	"example.com/leakybucket/shaper/watch"
)

// WithFairQueue makes the keys of a [Shaper] share its rate. Its line then consists of a line for each key that has
// a request waiting, and each departure goes to the key whose turn it is (self-clocked fair queueing). So a burst of
// one key delays the others by little, and no slot is lost: at equal costs requests depart at the same instants as
// without the option, and only which one leaves differs. [Shaper.For] says which key a request has, and for HTTP
// [WithKey] and [Transport.Key].
//
//	s, err := shaper.New(shaper.Limits{Rate: 50, Depth: 1000}, shaper.WithFairQueue(nil))
//	handler := shaper.Middleware(s, shaper.WithKey(shaper.ByClientIP()))(site)
//	err = s.For("tenant-7").WaitN(ctx, 3)
//
// weight returns the share of a key where others have 1, from 1 to 1,000 (out of range, the nearest in range); nil:
// 1 for all. It is called on the goroutine of the call, outside any lock, and counts until the key has no request in
// line.
//
// All that is said of a Shaper holds, except that:
//
//   - Order. Requests of one key leave in the order in which they were admitted, retries of a [Transport] first.
//     A key pays cost/weight for each departure, and that head goes first with which its key will have paid
//     least; of equal ones the oldest head. A key that comes begins with the most that a key had paid when a
//     request of it left.
//   - Wait. If all costs and weights are equal, the k-th request of a key in line leaves with the (k·n)-th
//     departure after it came at the latest, where n is the greatest number of keys that wait meanwhile. In
//     general each other key j lets at most C·w(j)/w + L(j) cost units leave before it: C is the cost of its
//     key's line up to and including it, w its weight, L(j) the largest cost of j.
//   - Shares. While two keys have requests in line, the cost units of each that have left, divided by its weight,
//     differ by at most L(i)/w(i) + L(j)/w(j).
//   - Places. [Limits.Depth] counts all lines together. If they are full, the request is refused that would leave
//     last: the newcomer, or the last of the line that is longest by cost/weight, with [ErrQueueFull] after it
//     has waited. So nobody can fill all places against the others, and a key alone may use all.
//   - Prediction. [Shaper.Forecast], deadlines and [Limits.MaxWait] assume that nobody else comes. Newcomers of
//     other keys may leave before a request in line, within the bound above.
//   - Memory. A key takes some 200 bytes while it has a request in line. Made-up keys get a turn each but starve
//     nobody: with equal costs and weights a request with none of its key ahead waits for no more requests than it
//     would without the option.
//
// A request that finds no line leaves at once, whatever its key has had. With [Shaper.Reserve] a key pays for its
// turns by estimates. With a [shared.Bucket] the keys of each process take turns. [New] and [NewGroup] return an
// error for [WithDryRun] or [WithBlock] beside it.
func WithFairQueue(weight func(key string) int) Option { return common{fairOption{weight}} }

type fairOption struct{ weight func(key string) int }

func (o fairOption) apply(to *options) {
	to.fair = &fairQueue{weight: o.weight}
}

var errFairGroup = errors.New("shaper: NewGroup: WithFairQueue is for a Shaper; the keys of a Group have a bucket each")

// validateFair returns why WithFairQueue can't be used; nil if it can, or is not set.
func (o *options) validateFair() error {
	switch {
	case o.fair == nil:
		return nil
	case o.dryRun:
		return errors.New("shaper: New: WithFairQueue and WithDryRun don't go together: a request that was let through can't be pushed out of the line")
	case o.block > 0:
		return errors.New("shaper: New: WithFairQueue and WithBlock don't go together: the burst of one key would block the others")
	}
	return nil
}

// maxWeight is the greatest weight of a key.
const maxWeight = 1000

// A fairQueue is the order of the line of a [Shaper] WithFairQueue, with the keys of its requests. The lock
// of the dispatcher guards the fields below weight.
type fairQueue struct {
	weight func(key string) int

	turns  fair.Order[inLine]
	items  []*fair.Item[inLine] // of all that wait, or are pushed out and have not been told yet; waiter.index is the index
	first  *waiter              // the oldest, in the list of all that wait by when they entered; it uses their prev and next
	latest *waiter              // the end of the list
}

// inLine is a waiter in the line of a key.
type inLine struct {
	w          *waiter
	retryAfter time.Duration // if it has been pushed out
}

func (q *fairQueue) weigh(key any) (any, uint16) {
	name, ok := key.(string)
	if !ok {
		key = ""
	}
	if q.weight == nil {
		return key, 1
	}
	return key, uint16(min(max(q.weight(name), 1), maxWeight))
}

// newOrder returns q as the order of a line; nil if q is nil.
func (q *fairQueue) newOrder() order {
	if q == nil {
		return nil
	}
	return q
}

func (q *fairQueue) keys() int { return q.turns.Keys() }

func (q *fairQueue) push(w *waiter, r turn) {
	var item *fair.Item[inLine]
	if r.reentry {
		item = q.turns.PushReentry(r.key, r.weight, r.pays, inLine{w: w})
	} else {
		item = q.turns.Push(r.key, r.weight, r.pays, inLine{w: w})
	}
	w.index = int32(len(q.items))
	q.items = append(q.items, item)
	if w.prev = q.latest; w.prev == nil {
		q.first = w
	} else {
		w.prev.next = w
	}
	q.latest = w
}

func (q *fairQueue) remove(w *waiter, s state) {
	if s == departed || s == refused { // Close refuses one head after the other, as they would leave.
		q.turns.Depart()
	} else {
		q.turns.Remove(q.items[w.index])
	}
	if s != pushedOut {
		q.forget(w.index)
	}
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.latest = w.prev
	} else {
		w.next.prev = w.prev
	}
}

// forget takes an item out of items. The last one takes its place.
func (q *fairQueue) forget(i int32) {
	last := len(q.items) - 1
	q.items[i] = q.items[last]
	q.items[i].Value.w.index = i
	q.items[last] = nil
	if q.items = q.items[:last]; cap(q.items) > 4*max(last, maxSpares) {
		q.items = append(make([]*fair.Item[inLine], 0, 2*last), q.items...)
	}
}

func (q *fairQueue) giveBack(r turn) { q.turns.GiveBack(r.key, r.pays) }

// waiterOf returns the waiter of an item; nil if that is nil.
func waiterOf(item *fair.Item[inLine]) *waiter {
	if item == nil {
		return nil
	}
	return item.Value.w
}

func (q *fairQueue) head() *waiter          { return waiterOf(q.turns.Head()) }
func (q *fairQueue) last() *waiter          { return waiterOf(q.turns.Last()) }
func (q *fairQueue) oldest() *waiter        { return q.first }
func (q *fairQueue) keyOf(w *waiter) string { return q.items[w.index].Key() }

func (q *fairQueue) walk() func() *waiter {
	next := q.turns.Walk()
	return func() *waiter { return waiterOf(next()) }
}

func (q *fairQueue) ahead(r turn, without *waiter) (n int32, cost int64) {
	return q.aheadUpTo(r, without, exact.Forever)
}

// aheadUpTo is ahead for a caller to whom all costs above most are the same: see [fair.Order.AheadUpTo].
func (q *fairQueue) aheadUpTo(r turn, without *waiter, most int64) (n int32, cost int64) {
	var item *fair.Item[inLine]
	if without != nil {
		item = q.items[without.index]
	}
	count, cost := q.turns.AheadUpTo(r.key, r.weight, r.pays, r.reentry, item, most)
	return int32(count), cost
}

func (q *fairQueue) eachAhead(r turn, without *waiter, see func(*waiter) bool) {
	var item *fair.Item[inLine]
	if without != nil {
		item = q.items[without.index]
	}
	q.turns.EachAhead(r.key, r.weight, r.pays, r.reentry, item, func(i *fair.Item[inLine]) bool { return see(i.Value.w) })
}

// judge judges a newcomer that finds requests in line, and may wait.
//
// To find out how many requests leave before the newcomer, each of them must be looked at. So the newcomer
// is first taken to leave last: if even that is not too late, its exact place does not matter. Otherwise the
// requests ahead are counted until the newcomer is too late behind them. A forecast, which has no context,
// always gets the exact place.
//
// It is not inlined, so that its frame is not there for others.
//
//go:noinline
func (q *fairQueue) judge(f *flow, now int64, r turn) (j judgement) {
	v := f.viewFor(now, r.cost)
	if v.tooCostly(r.cost) || v.several && f.further().tooCostly(r.costs) {
		j.refusal.reason = refusedCostly
		return j
	}
	var over *waiter
	if v.isFull(newcomer) {
		if over = q.outlasting(r); over == nil {
			j.refusal = rejection{reason: refusedFull, retryAfter: v.nextLeavesIn(now, f.line)}
			return j
		}
	}
	j.wait = max(timeUntil(f.leavesBehind(&v, f.inLine(), r.cost, r.costs), now), 1)
	if j.refusal = v.lateness(now, j.wait, r.ends); j.refusal.reason == notRefused && !r.forecast {
		return j
	}
	ahead, isAll := q.loadAhead(f, &v, now, r, over)
	if !isAll {
		j.refusal.retryAfter = v.retryAfter(now, j.wait, r.ends, newcomer)
		return j
	}
	v.waiting = ahead.n
	j.wait = max(timeUntil(f.leavesBehind(&v, ahead, r.cost, r.costs), now), 1)
	if j.refusal = v.lateness(now, j.wait, r.ends); j.refusal.reason != notRefused {
		j.refusal.retryAfter = v.retryAfter(now, j.wait, r.ends, newcomer)
	}
	return j
}

// loadAhead returns the load of those that leave before a newcomer. Once the newcomer is known to be too late there
// may be more of them: then isAll is false.
func (q *fairQueue) loadAhead(f *flow, v *view, now int64, r turn, without *waiter) (l load, isAll bool) {
	if !v.several {
		most := int64(exact.Forever)
		if !r.forecast {
			most = v.mostAhead(now, r)
		}
		l.n, l.cost = q.aheadUpTo(r, without, most)
		return l, l.cost <= most || l.n <= fair.Counted
	}
	if without != nil && without == q.head() {
		next := q.walk()
		next()
		l.head = next() // The head is to be pushed out.
	}
	isAll = true
	q.eachAhead(r, without, func(w *waiter) bool {
		l = f.behind(l, w)
		if l.n%fair.Counted == 1 && l.n > 1 && !r.forecast {
			wait := max(timeUntil(f.leavesBehind(v, l, r.cost, r.costs), now), 1)
			isAll = v.lateness(now, wait, r.ends).reason == notRefused
		}
		return isAll
	})
	return l, isAll
}

// mostAhead returns the greatest cost of requests behind which a request is not too late; -1 if it is
// too late behind none. It is too late behind all that are in line.
func (v *view) mostAhead(now int64, r turn) int64 {
	most, tooMuch := int64(-1), v.ahead
	for tooMuch-most > 1 {
		middle := most + (tooMuch-most)/2
		wait := max(timeUntil(v.leavesAfter(v.bucketInstants, middle, r.cost), now), 1)
		if v.lateness(now, wait, r.ends).reason == notRefused {
			most = middle
		} else {
			tooMuch = middle
		}
	}
	return most
}

func (q *fairQueue) outlasting(r turn) *waiter {
	return waiterOf(q.turns.Outlasting(r.key, r.weight, r.pays))
}

func (q *fairQueue) pushedOut(w *waiter, retryAfter time.Duration) {
	q.items[w.index].Value.retryAfter = retryAfter
}

func (q *fairQueue) refusal(w *waiter) (retryAfter time.Duration) {
	retryAfter = q.items[w.index].Value.retryAfter
	q.forget(w.index)
	return retryAfter
}

// fairQueue returns the order of the line; nil without [WithFairQueue].
func (s *Shaper) fairQueue() *fairQueue {
	q, _ := s.flow.line.order.(*fairQueue)
	return q
}

// For returns s as the requests of a key see it: its methods are those of s for requests of the key, but Hold,
// AtMost and Stats those of s. Methods of s itself are for the key "". Without [WithFairQueue] the key makes no
// difference.
func (s *Shaper) For(key string) *KeyLimiter {
	s.mustBeMade()
	return &KeyLimiter{s.of(key)}
}

func (k keyOfShaper) line(most int) []watch.Waiter {
	line, _ := k.lineOf(most, k.key, func() (f *flow, waiting int) {
		if k.key == nil {
			return &k.flow, k.flow.waiting()
		}
		return &k.flow, k.fairQueue().turns.Waiting(k.key.(string))
	})
	return line
}

// limiterByKey returns s as a request with the key that a function returns sees it.
func (s *Shaper) limiterByKey(key KeyFunc, r *http.Request) (inner, error) {
	k, err := key(r)
	if err != nil {
		return nil, &keyError{err}
	}
	return s.of(k), nil
}

// Keys returns at most max keys that have requests in line, in an order which says how long the lock is held for it.
// Without [WithFairQueue] it returns nil, and with it never.
func (s *Shaper) Keys(max int, by watch.KeyOrder) []watch.KeyLine {
	s.mustBeMade()
	q := s.fairQueue()
	if q == nil {
		return nil
	}
	found := []watch.KeyLine{}
	for {
		now := s.lockFlow(&s.flow)
		n := min(max, q.keys())
		if n <= cap(found) {
			if n > 0 {
				found = q.appendKeys(found, n, by, &s.flow, s.origin, now)
			}
			s.unlockAndArm()
			return found
		}
		s.unlockAndArm()
		found = make([]watch.KeyLine, 0, min(max, n+n/8)) // Some more may come meanwhile.
	}
}

// keyLineOf returns the line of a key at an instant, of its first request. Leaves is not set.
func keyLineOf(f *flow, item *fair.Item[inLine], now int64) watch.KeyLine {
	ln := item.Line()
	if f.bucket.several { // Its turns cost something else.
		ln.Cost = 0
		for i := ln.First; i != nil; i = i.Next() {
			ln.Cost = exact.Sum(ln.Cost, i.Value.w.cost)
		}
	}
	since := item.Value.w.at
	if w := waiterOf(ln.FirstNewcomer); w != nil {
		since = min(since, w.at)
	}
	return watch.KeyLine{Key: ln.Key, Weight: ln.Weight, Waiting: ln.Waiting, Cost: int(min(ln.Cost, math.MaxInt)), OldestWait: time.Duration(now - since)}
}

// appendKeys appends the first n keys, of which there are as many at least.
func (q *fairQueue) appendKeys(to []watch.KeyLine, n int, by watch.KeyOrder, f *flow, o origin, now int64) []watch.KeyLine {
	if by == watch.ByLength {
		for item := range q.turns.Longest() {
			if to = append(to, keyLineOf(f, item, now)); len(to) == n {
				break
			}
		}
		return to
	}
	v, next := f.view(), q.turns.Walk()
	for ahead := (load{}); len(to) < n; {
		item := next()
		if item.IsFirst() {
			wait := v.leavesIn(now, v.placeBehind(f, ahead, item.Value.w))
			line := keyLineOf(f, item, now)
			line.Leaves = o.timeOf(exact.Sum(now, int64(wait)))
			to = append(to, line)
		}
		ahead = f.behind(ahead, item.Value.w)
	}
	return to
}
