// Package fair decides in which order the requests of many keys leave, so that each key gets its share
// of a rate: self-clocked fair queueing (Golestani, 1994). It knows no time, no lock and no Shaper.
//
// An [Order] has a line for each key that has a request in it. A key pays cost/weight for each
// of its requests that leaves. The tag of a request is the sum of its key's payments after the
// request has left, and the head with the least tag leaves next. Of equal tags the one leaves
// first that has been the head of its line longest. A new line begins with the greatest tag of a
// departure so far. No key had paid more when its line became empty. So a key without a
// line needs no memory, and gains nothing by being forgotten.
//
// A line stores the sum of its key's payments, and no tags: they follow from the costs in the line.
// So when a request gives up, the tags behind it need no change.
//
// Tags are whole multiples of 2⁻³², in 128 bits. They are rounded down, and the remainder stays
// with the line, so that roundings of one line never add up.
package fair

import (
	"cmp"
	"iter"
	"math"
	"slices"
)

// An Order is a line for each of many keys. Its zero value has no request. It must not be used by
// several goroutines at once.
type Order[T any] struct {
	lines   map[string]*line[T]
	most    int     // how many lines there have been at a time since the memory for them was made
	next    heap[T] // the line whose head leaves next at the top
	longest heap[T] // the line that takes longest at the top

	paid     wide     // the greatest tag of a departure; see begin
	latest   *line[T] // of the latest departure; nil: it was undone
	heads    uint64   // how many times a line has got a new head
	admitted uint64   // how many requests have entered
}

// begin is the tag of the first departures, in the middle of the range: neither payments nor
// refunds overflow.
var begin = wide{high: 1 << 62}

// A line has the requests of one key: those that are back for one more time, and behind them the
// others, each in the order in which they entered.
type line[T any] struct {
	key         string
	weight      uint32
	len         int32
	first, last *Item[T]
	lastReentry *Item[T] // nil: there is none
	start, end  mark     // the key's payments: so far, and after the last request has left
	tag         wide     // of the first request
	head        uint64   // the number of its present head among all heads: the less, the longer it has been the head
	cost        wide     // of all its requests
	places      [2]int32 // in the heaps
}

// An Item is a request in an [Order].
type Item[T any] struct {
	Value T

	line       *line[T]
	prev, next *Item[T] // in the line
	cost       int64
	number     uint64 // the less, the earlier it was admitted
	reentry    bool
}

// Key returns the key of a request.
func (i *Item[T]) Key() string { return i.line.key }

// Cost returns the cost of a request.
func (i *Item[T]) Cost() int64 { return i.cost }

// Next returns the request behind it in the line of its key; nil if it is the last.
func (i *Item[T]) Next() *Item[T] { return i.next }

// Keys returns how many keys have a line.
func (o *Order[T]) Keys() int { return len(o.lines) }

// Waiting returns how many requests of a key are in line.
func (o *Order[T]) Waiting(key string) int {
	if ln := o.lines[key]; ln != nil {
		return int(ln.len)
	}
	return 0
}

// Push lets a request enter, behind all others of its key. The weight, from 1 to 1,000, counts if
// the key has no line yet.
func (o *Order[T]) Push(key string, weight int, cost int64, value T) *Item[T] {
	ln := o.lineOf(key, weight)
	it := &Item[T]{Value: value, line: ln, cost: cost, prev: ln.last}
	o.enter(it)
	return it
}

// PushReentry is Push for a request that has been admitted before: it enters ahead of the others
// of its key, and behind those that PushReentry has let enter earlier.
func (o *Order[T]) PushReentry(key string, weight int, cost int64, value T) *Item[T] {
	ln := o.lineOf(key, weight)
	it := &Item[T]{Value: value, line: ln, cost: cost, reentry: true, prev: ln.lastReentry}
	ln.lastReentry = it
	o.enter(it)
	return it
}

// lineOf returns the line of a key, and makes it if there is none.
func (o *Order[T]) lineOf(key string, weight int) *line[T] {
	if ln := o.lines[key]; ln != nil {
		return ln
	}
	if o.lines == nil {
		o.lines, o.longest.longest = make(map[string]*line[T]), true
	}
	ln := &line[T]{key: key, weight: uint32(weight), places: [2]int32{-1, -1}}
	ln.start = mark{wide: o.reached()}
	ln.end = ln.start
	o.lines[key] = ln
	o.most = max(o.most, len(o.lines))
	return ln
}

// reached returns the greatest tag of a departure so far, with which a new line begins.
func (o *Order[T]) reached() wide {
	if o.paid.less(begin) { // None has left yet.
		return begin
	}
	return o.paid
}

// enter links a request into its line, behind prev.
func (o *Order[T]) enter(it *Item[T]) {
	ln := it.line
	if it.prev == nil {
		it.next, ln.first = ln.first, it
	} else {
		it.next, it.prev.next = it.prev.next, it
	}
	if it.next == nil {
		ln.last = it
	} else {
		it.next.prev = it
	}
	o.admitted++
	it.number = o.admitted
	ln.len++
	ln.cost = ln.cost.plus(wide{low: uint64(it.cost)})
	ln.end = ln.end.plus(it.cost, ln.weight)
	o.update(ln, ln.first == it)
}

// Head returns the request that leaves next; nil if there is none.
func (o *Order[T]) Head() *Item[T] {
	if len(o.next.lines) == 0 {
		return nil
	}
	return o.next.lines[0].first
}

// Depart lets the head leave. Its key pays for it.
func (o *Order[T]) Depart() {
	it := o.Head()
	ln := it.line
	if o.paid.less(ln.tag) { // It is not if the key has been given something back, or a dear request has given up.
		o.paid = ln.tag
	}
	o.latest = ln
	ln.start = ln.start.plus(it.cost, ln.weight)
	o.unlink(it)
}

// Remove takes a request out that does not leave. The others of its key move up.
func (o *Order[T]) Remove(it *Item[T]) {
	it.line.end = it.line.end.minus(it.cost, it.line.weight)
	o.unlink(it)
}

// unlink takes a request out of its line, and drops a line that is empty.
func (o *Order[T]) unlink(it *Item[T]) {
	ln := it.line
	isHead := ln.first == it
	if ln.lastReentry == it {
		ln.lastReentry = it.prev
	}
	if it.prev == nil {
		ln.first = it.next
	} else {
		it.prev.next = it.next
	}
	if it.next == nil {
		ln.last = it.prev
	} else {
		it.next.prev = it.prev
	}
	it.prev, it.next = nil, nil
	ln.len--
	ln.cost = ln.cost.minus(wide{low: uint64(it.cost)})
	if ln.len > 0 {
		o.update(ln, isHead)
		return
	}
	o.next.remove(ln)
	o.longest.remove(ln)
	delete(o.lines, ln.key)
	o.shrink()
}

// fewLines is how many lines there may be whose memory is kept for others.
const fewLines = 64

// shrink makes the memory for lines anew when there have been more than four times as many as there
// are now. Neither a map nor a slice gets smaller by itself.
func (o *Order[T]) shrink() {
	if o.most <= fewLines || len(o.lines) >= o.most/4 {
		return
	}
	lines := make(map[string]*line[T], len(o.lines))
	for key, ln := range o.lines {
		lines[key] = ln
	}
	o.lines, o.most = lines, len(lines)
	o.next.lines = append(make([]*line[T], 0, len(lines)), o.next.lines...)
	o.longest.lines = append(make([]*line[T], 0, len(lines)), o.longest.lines...)
}

// update moves a line to its places in the heaps. newHead says that it has another head than before.
func (o *Order[T]) update(ln *line[T], newHead bool) {
	if newHead {
		o.heads++
		ln.head = o.heads
	}
	ln.tag = ln.start.plus(ln.first.cost, ln.weight).wide
	o.next.update(ln)
	o.longest.update(ln)
}

// GiveBack refunds a key's payment for its latest departure, of a cost. Without a line there is
// nothing to refund. It reports whether the key has a line.
//
// Of several departures in a row that are undone, only the payment for the dearest is refunded. So
// no other key has to wait for more than one further request, which is the promise.
func (o *Order[T]) GiveBack(key string, cost int64) bool {
	ln := o.lines[key]
	if ln == nil {
		return false
	}
	had, isLatest := ln.start, ln == o.latest
	o.latest = nil
	ln.start, ln.end = ln.start.minus(cost, ln.weight), ln.end.minus(cost, ln.weight)
	least := mark{wide: o.reached()}.minus(cost, ln.weight).wide
	if had.less(least) {
		least = had.wide
	}
	if !isLatest && ln.start.less(least) {
		more := least.minus(ln.start.wide)
		ln.start.wide, ln.end.wide = ln.start.wide.plus(more), ln.end.wide.plus(more)
	}
	o.update(ln, false)
	return true
}

// Outlasting returns the request in line that would leave after a newcomer of a key, and after all
// others; nil if the newcomer would leave last. It is at the end of the line with the greatest tag
// there. Of equal tags the line counts that has more to pay until then, and of equal lines the
// newcomer. A request that PushReentry has let enter is never returned.
func (o *Order[T]) Outlasting(key string, weight int, cost int64) *Item[T] {
	own := o.viewOf(key, weight, cost, false)
	ln := o.longestOfNewcomers()
	if ln == nil || ln == own.line {
		return nil
	}
	if c := own.end.compare(ln.end.wide); c > 0 || c == 0 && own.start.compare(ln.start.wide) <= 0 {
		return nil
	}
	return ln.last
}

// longestOfNewcomers returns the longest line that does not end with a reentry; nil if there is none.
func (o *Order[T]) longestOfNewcomers() (found *line[T]) {
	if len(o.longest.lines) == 0 {
		return nil
	}
	if top := o.longest.lines[0]; !top.last.reentry {
		return top
	}
	for _, ln := range o.longest.lines { // Few lines have reentries, and nothing else.
		if !ln.last.reentry && (found == nil || o.longest.before(ln, found)) {
			found = ln
		}
	}
	return found
}

// A newcomer is a request that might enter an [Order].
type newcomer[T any] struct {
	turn[T]
	line  *line[T] // of its key; nil: there is none
	start mark     // its key's payments so far
	end   mark     // its tag
}

// viewOf returns a newcomer.
func (o *Order[T]) viewOf(key string, weight int, cost int64, reentry bool) newcomer[T] {
	ln := o.lines[key]
	if ln == nil {
		start := mark{wide: o.reached()}
		return newcomer[T]{turn[T]{after: start, head: math.MaxUint64}, nil, start, start.plus(cost, uint32(weight))}
	}
	n := newcomer[T]{turn[T]{ln.last, ln.end, ln.head}, ln, ln.start, ln.end.plus(cost, ln.weight)}
	if reentry {
		n.behind, n.after = ln.lastReentry, ln.start
		for it := ln.first; it != nil && it.reentry; it = it.next {
			n.after = n.after.plus(it.cost, ln.weight)
		}
		n.end = n.after.plus(cost, ln.weight)
	}
	if n.behind == nil {
		n.head = math.MaxUint64 // It would be the head, from now on.
	}
	return n
}

// A turn says when a request becomes the head of its line.
type turn[T any] struct {
	behind *Item[T] // the request before it in its line; nil: it is the head
	after  mark     // the tag of behind; the key's payments so far if there is none
	head   uint64   // as in line
}

// sooner reports whether t's request becomes the head sooner than u's, if both have the same
// tag, and nobody enters or gives up. The request before it must leave sooner, which is found in
// the same way.
func (t turn[T]) sooner(u turn[T]) bool {
	weightOfT, weightOfU := t.weight(), u.weight()
	for {
		switch {
		case t.behind == nil && u.behind == nil:
			return t.head < u.head
		case t.behind == nil || u.behind == nil:
			return t.behind == nil
		}
		if c := t.after.compare(u.after.wide); c != 0 {
			return c < 0
		}
		t.after, t.behind = t.after.minus(t.behind.cost, weightOfT), t.behind.prev
		u.after, u.behind = u.after.minus(u.behind.cost, weightOfU), u.behind.prev
	}
}

// weight returns the weight of the key, if there is a request before.
func (t turn[T]) weight() uint32 {
	if t.behind == nil {
		return 1
	}
	return t.behind.line.weight
}

// Ahead returns how many requests leave before a newcomer of a key, and their cost, saturating. The
// newcomer enters now, all in line stay except without, and no other comes. Ahead looks at
// each line that has such a request, and in it at no more than one request that leaves later.
func (o *Order[T]) Ahead(key string, weight int, cost int64, reentry bool, without *Item[T]) (n int, sum int64) {
	return o.AheadUpTo(key, weight, cost, reentry, without, math.MaxInt64)
}

// Counted is how many requests [Order.AheadUpTo] counts in any case.
const Counted = 1000

// AheadUpTo is [Order.Ahead] for a caller who does not distinguish costs above most. A result above
// most may be too small: the counting ends there, after at least [Counted] requests.
func (o *Order[T]) AheadUpTo(key string, weight int, cost int64, reentry bool, without *Item[T], most int64) (n int, sum int64) {
	c := counting[T]{own: o.viewOf(key, weight, cost, reentry), reentry: reentry, lines: o.next.lines, without: without, most: most}
	c.countHeap()
	if without != nil {
		// Without its head, a line may have another at any place.
		c.count(without.line)
	}
	return c.n, c.sum
}

// EachAhead calls a function with each request that [Order.Ahead] counts, in any order, until it returns false.
func (o *Order[T]) EachAhead(key string, weight int, cost int64, reentry bool, without *Item[T], see func(*Item[T]) bool) {
	c := counting[T]{own: o.viewOf(key, weight, cost, reentry), reentry: reentry, lines: o.next.lines, without: without, most: math.MaxInt64, see: see}
	c.countHeap()
	if without != nil {
		c.count(without.line)
	}
}

// A counting counts the requests that leave before a newcomer.
type counting[T any] struct {
	own     newcomer[T]
	reentry bool       // it is one
	lines   []*line[T] // a heap
	without *Item[T]   // is not counted
	most    int64      // the cost beyond which the counting may end
	n       int
	sum     int64

	see  func(*Item[T]) bool // is called with each of them; nil: they are only counted
	seen bool                // it has returned false
}

// isEnough reports whether the counting can end.
func (c *counting[T]) isEnough() bool { return c.n > Counted && c.sum > c.most || c.seen }

// countHeap counts the requests of all lines except the one of without. It does not descend below
// a line whose head leaves after the newcomer: the heads there leave no sooner.
func (c *counting[T]) countHeap() {
	var aside *line[T]
	if c.without != nil {
		aside = c.without.line
	}
	end, own := c.own.end.wide, c.own.line
	var later [64]int32 // places whose turn comes later; at most one for each level of the heap
	for place, more := int32(0), 0; ; {
		if int(place) < len(c.lines) {
			ln := c.lines[place]
			if !end.less(ln.tag) {
				switch {
				case ln == aside:
				case c.see == nil && ln != own && ln.end.less(end): // Most lines are so.
					c.n, c.sum = c.n+int(ln.len), saturatingSum(c.sum, ln.cost.saturated())
				default:
					c.count(ln)
				}
				if c.isEnough() {
					return
				}
				later[more] = 2*place + 2
				place, more = 2*place+1, more+1
				continue
			}
		}
		if more == 0 {
			return
		}
		more--
		place = later[more]
	}
}

// count counts the requests of a line.
func (c *counting[T]) count(ln *line[T]) {
	isOwn := ln == c.own.line
	if isAll := isOwn && !c.reentry || !isOwn && ln.end.less(c.own.end.wide); isAll && c.see != nil {
		for it := ln.first; it != nil && !c.seen; it = it.next {
			c.seen = it != c.without && !c.see(it)
		}
		return
	} else if isAll {
		n, cost := int(ln.len), ln.cost
		if c.without != nil && c.without.line == ln {
			n, cost = n-1, cost.minus(wide{low: uint64(c.without.cost)})
		}
		c.n, c.sum = c.n+n, saturatingSum(c.sum, cost.saturated())
		return
	}
	paid := ln.start
	for it := ln.first; it != nil && !c.isEnough(); it = it.next {
		if it == c.without {
			continue
		}
		with := paid.plus(it.cost, ln.weight)
		if isOwn {
			if !it.reentry {
				return // Of its own key only reentries are before a reentry.
			}
		} else if order := with.compare(c.own.end.wide); order > 0 ||
			order == 0 && !(turn[T]{it.prev, paid, ln.head}).sooner(c.own.turn) {
			return
		}
		c.n, c.sum, paid = c.n+1, saturatingSum(c.sum, it.cost), with
		c.seen = c.see != nil && !c.see(it)
	}
}

// Last returns the request that leaves last, if all in line stay and no other comes; nil if
// there is none.
func (o *Order[T]) Last() *Item[T] {
	var last *line[T]
	for _, ln := range o.longest.lines {
		if last == nil || last.end.less(ln.end.wide) || last.end.wide == ln.end.wide && last.lastTurn().sooner(ln.lastTurn()) {
			last = ln
		}
	}
	if last == nil {
		return nil
	}
	return last.last
}

// lastTurn returns the turn of the last request of a line.
func (ln *line[T]) lastTurn() turn[T] {
	return turn[T]{ln.last.prev, ln.end.minus(ln.last.cost, ln.weight), ln.head}
}

// A KeyLine is the line of a key.
type KeyLine[T any] struct {
	Key           string
	Weight        int
	Waiting       int
	Cost          int64    // of all its requests, saturating
	First         *Item[T] // the first to leave
	FirstNewcomer *Item[T] // the first that PushReentry has not let enter; nil: there is none
}

// IsFirst reports whether a request is the first of its line.
func (i *Item[T]) IsFirst() bool { return i.line.first == i }

// Line returns the line of a request.
func (i *Item[T]) Line() KeyLine[T] {
	ln := i.line
	l := KeyLine[T]{ln.key, int(ln.weight), int(ln.len), ln.cost.saturated(), ln.first, ln.first}
	if ln.lastReentry != nil {
		l.FirstNewcomer = ln.lastReentry.next
	}
	return l
}

// Walk returns a function that returns one request after the other, and then nil, in the order in
// which they leave if all stay and no other comes. The Order must not change meanwhile. The first
// n requests take O(n log n) time, however many there are.
func (o *Order[T]) Walk() func() *Item[T] {
	heads := o.heads
	var found candidates[T]
	top := func(place int) {
		if place < len(o.next.lines) {
			ln := o.next.lines[place]
			found.push(candidate[T]{ln.first, ln.start.plus(ln.first.cost, ln.weight), ln.head, place})
		}
	}
	top(0)
	return func() *Item[T] {
		if len(found) == 0 {
			return nil
		}
		c := found.pop()
		if c.place >= 0 { // Below it in the heap are lines whose heads may be the next.
			top(2*c.place + 1)
			top(2*c.place + 2)
		}
		if next := c.item.next; next != nil {
			heads++
			found.push(candidate[T]{next, c.end.plus(next.cost, next.line.weight), heads, -1})
		}
		return c.item
	}
}

// Longest returns the first requests of all lines, the line that takes longest first. The Order
// must not change meanwhile. The first n lines take O(n²) time, however many there are, so ask for
// few.
func (o *Order[T]) Longest() iter.Seq[*Item[T]] {
	return func(yield func(*Item[T]) bool) {
		lines := o.longest.lines
		var places []int // of lines that may be the next one
		for place := 0; place < len(lines); {
			if !yield(lines[place].first) {
				return
			}
			for below := 2*place + 1; below <= 2*place+2 && below < len(lines); below++ {
				places = append(places, below)
			}
			if len(places) == 0 {
				return
			}
			next := 0
			for i := range places {
				if o.longest.before(lines[places[i]], lines[places[next]]) {
					next = i
				}
			}
			place = places[next]
			places = slices.Delete(places, next, next+1)
		}
	}
}

// A candidate is a request that may be the next of a walk.
type candidate[T any] struct {
	item  *Item[T]
	end   mark   // its tag
	head  uint64 // as in line
	place int    // in the heap of an Order; -1: it is not there, as it is no head yet
}

func (c candidate[T]) before(d candidate[T]) bool {
	return cmp.Or(c.end.compare(d.end.wide), cmp.Compare(c.head, d.head)) < 0
}

// saturatingSum returns the sum of two costs, at most the greatest int64.
func saturatingSum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
