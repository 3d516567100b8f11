package model

import (
	"maps"
	"math/big"
	"slices"
	"time"

	"example.com/leakybucket/shaper"
)

// This file is what the model knows of WithFairQueue. A line then has several keys, and stands in the
// simulator in the order in which its requests leave if all stay and no other comes. That order is
// found by playing it: of all keys the one with the least tag leaves, until none is left. Tags are
// fractions.

// A payer is a key with requests in line.
type payer struct {
	weight int
	base   *big.Rat // what it began with
	cost   *big.Int // of what it has paid for since
	head   int      // the number of its present head among all heads
	line   []*waiter
}

// turns are all keys with requests in line.
type turns struct {
	keys  map[string]*payer
	paid  *big.Rat // the greatest tag of a departure
	heads int

	mistake Mistake
	idle    map[string]*payer // see IdleRemembered
}

func newTurns(mistake Mistake) *turns {
	return &turns{keys: make(map[string]*payer), paid: new(big.Rat), mistake: mistake, idle: make(map[string]*payer)}
}

// clone returns a copy; nil of nil.
func (t *turns) clone() *turns {
	if t == nil {
		return nil
	}
	c := *t
	c.keys, c.idle = make(map[string]*payer), maps.Clone(t.idle)
	for key, p := range t.keys {
		copied := *p
		copied.line, copied.cost = slices.Clone(p.line), new(big.Int).Set(p.cost)
		c.keys[key] = &copied
	}
	return &c
}

// share returns what a key pays for costs, rounded down to a multiple of 2⁻³².
func (t *turns) share(p *payer, costs *big.Int) *big.Rat {
	parts := new(big.Int).Lsh(costs, 32)
	if t.mistake == WeightInverted {
		parts.Mul(parts, big.NewInt(int64(p.weight)))
	} else {
		parts.Div(parts, big.NewInt(int64(p.weight)))
	}
	return new(big.Rat).SetFrac(parts, new(big.Int).Lsh(big.NewInt(1), 32))
}

// tag returns what a key will have paid when the first k of its requests have left.
func (t *turns) tag(p *payer, k int) *big.Rat {
	costs := new(big.Int).Set(p.cost)
	for _, w := range p.line[:k] {
		costs.Add(costs, big.NewInt(w.pays()))
	}
	tag := t.share(p, costs)
	return tag.Add(tag, p.base)
}

// turn returns by what the head of a key is chosen.
func (t *turns) turn(p *payer) *big.Rat {
	if t.mistake == StartTags {
		return t.tag(p, 0)
	}
	return t.tag(p, 1)
}

// next returns the key whose head leaves next.
func (t *turns) next() (best *payer) {
	for _, p := range t.keys {
		if best == nil || t.before(p, best) {
			best = p
		}
	}
	return best
}

func (t *turns) before(p, q *payer) bool {
	if c := t.turn(p).Cmp(t.turn(q)); c != 0 {
		return c < 0
	}
	if t.mistake == TiesByArrival {
		return p.line[0].index < q.line[0].index
	}
	return p.head < q.head
}

// enter puts a request behind the others of its key.
func (t *turns) enter(w *waiter) {
	p := t.keys[w.Key]
	if p == nil {
		p = &payer{weight: w.weight(), base: t.paid, cost: new(big.Int)}
		if idle := t.idle[w.Key]; idle != nil && t.mistake == IdleRemembered {
			p.base = t.tag(idle, 0)
		}
		t.keys[w.Key] = p
	}
	p.line = append(slices.Clone(p.line), w)
	if len(p.line) == 1 {
		t.newHead(p)
	}
}

func (t *turns) newHead(p *payer) {
	t.heads++
	p.head = t.heads
}

// weight is the weight of a request's key.
func (w *waiter) weight() int { return min(max(w.Weight, 1), 1000) }

// depart lets the head of a key leave, which pays for it.
func (t *turns) depart(p *payer) *waiter {
	w := p.line[0]
	t.paid = later(t.paid, t.turn(p))
	p.cost = new(big.Int).Add(p.cost, big.NewInt(w.pays()))
	t.drop(w)
	return w
}

// drop takes a request out of the line of its key.
func (t *turns) drop(w *waiter) {
	p := t.keys[w.Key]
	i := slices.Index(p.line, w)
	p.line = slices.Delete(slices.Clone(p.line), i, i+1)
	switch {
	case len(p.line) == 0:
		delete(t.keys, w.Key)
		t.idle[w.Key] = p
	case i == 0:
		t.newHead(p)
	}
}

// giveUp takes a request out that has not left.
func (t *turns) giveUp(w *waiter) {
	if p := t.keys[w.Key]; t.mistake == TagsNotShifted {
		p.cost = new(big.Int).Add(p.cost, big.NewInt(w.pays()))
	}
	t.drop(w)
}

// giveBack undoes the latest departure, which was a request's.
func (t *turns) giveBack(w *waiter) {
	p := t.keys[w.Key]
	if p == nil || t.mistake == TurnNotGivenBack {
		return
	}
	// A second one in a row gives back no more: that is where scripts end.
	p.cost = new(big.Int).Sub(p.cost, big.NewInt(w.pays()))
}

// order returns the requests in the order in which they leave.
func (t *turns) order() (line []*waiter) {
	rest := t.clone()
	for p := rest.next(); p != nil; p = rest.next() {
		line = append(line, rest.depart(p))
	}
	return line
}

// outlasting returns the request that is refused as the line is full and another one comes; nil if
// that is the newcomer.
func (t *turns) outlasting(w *waiter) (over *waiter) {
	if t.mistake == NewcomerRefused {
		return nil
	}
	with := t.clone()
	with.enter(w)
	last := with.keys[w.Key]
	for _, p := range with.keys {
		if with.outlasts(p, last) {
			last = p
		}
	}
	over = last.line[len(last.line)-1]
	if t.mistake == NewestPushedOut {
		for _, p := range t.keys {
			if newest := p.line[len(p.line)-1]; newest.index > over.index || over == w {
				over = newest
			}
		}
	}
	if over == w {
		return nil
	}
	return over
}

// outlasts reports whether the last request of p is to be refused rather than that of q: it would
// leave later, or its key has more to pay until then, or it was admitted later.
func (t *turns) outlasts(p, q *payer) bool {
	if c := t.tag(p, len(p.line)).Cmp(t.tag(q, len(q.line))); c != 0 {
		return c > 0
	}
	if c := t.tag(p, 0).Cmp(t.tag(q, 0)); c != 0 {
		return c < 0
	}
	return p.line[len(p.line)-1].index > q.line[len(q.line)-1].index
}

// arrange brings the line into the order in which it leaves. If it has another head, that could
// not leave before an instant.
func (b *bucket) arrange(before *big.Rat) {
	var head *waiter
	if len(b.line) > 0 {
		head = b.line[0]
	}
	b.line = b.turns.order()
	if len(b.line) > 0 && b.line[0] != head {
		b.since, b.frozen = later(b.since, before), nil
	}
}

// arrangeAfter is arrange after the latest departure was undone. If its key has the turn
// again, the next request of the key had its slot, but it may have come since.
func (b *bucket) arrangeAfter() {
	if line := b.turns.order(); len(line) > 0 {
		b.arrange(instant(line[0].came))
	}
}

// asksTurns reports whether a call is judged by judgeTurn.
func (b *bucket) asksTurns(o *Op) bool {
	return b.turns != nil && len(b.line) > 0 && b.limits.Depth > 0 && o.Kind != OpAllow && !b.closed && !b.tooCostlyEach(o)
}

// waitsOf is waits for a line that is longer or shorter than it is now.
func (b *bucket) waitsOf(line []*waiter) []time.Duration {
	other := *b
	other.line = line
	waits := other.waits(&Op{N: 1})
	return waits[:len(line)]
}

// judgeTurn is judge for a newcomer that may wait, and finds requests in a fair line. It also returns
// its place in the line.
func (m *simulator) judgeTurn(o *Op) (wait time.Duration, place int, refusal Answer) {
	depth := m.limits.Depth
	if m.mistake == DepthOffByOne {
		depth++
	}
	w := &waiter{Op: o, index: len(m.answers), came: m.now, turn: m.turnOf(o)}
	with := m.turns.clone()
	if len(m.line)+m.ghosts >= depth {
		over := m.turns.outlasting(w)
		if over == nil {
			return 0, 0, Answer{Result: QueueFull, Retry: m.nextLeavesIn()}
		}
		with.giveUp(over)
	}
	with.enter(w)
	line := with.order()
	place = slices.Index(line, w)
	wait = m.waitsOf(line)[place]

	if late, missed, again := m.tooLate(o, wait, wait); late {
		refusal = Answer{Result: TooLate, Missed: missed, Retry: min(again, max(wait, m.seatWait(place+1)))}
	}
	return wait, place + 1, refusal
}

// nextLeavesIn returns how long it takes until the head leaves.
func (b *bucket) nextLeavesIn() time.Duration {
	return max(b.waitsOf(b.line[:1])[0], b.seatWait(1))
}

// takesPlace lets a newcomer enter a fair line. If that is full, the request that outlasts the others
// is refused.
func (m *simulator) takesPlace(w *waiter) {
	var over, next *waiter
	since := m.since
	if len(m.line)+m.ghosts >= m.limits.Depth && len(m.line) > 0 {
		if over = m.turns.outlasting(w); over != nil {
			m.turns.giveUp(over)
			m.arrange(instant(m.now))
			if over.gone(m.now) {
				m.leaveOpen("a request is pushed out whose context has ended")
			}
			m.refused(over, Answer{Result: QueueFull})
			if len(m.line) > 0 {
				next = m.line[0]
			}
		}
	}
	m.turns.enter(w)
	m.arrange(instant(m.now))
	if m.mistake == HeadPushedLate && m.line[0] == next {
		slot, punctual := later(since, m.allowed(m.empty, next.N)), instant(m.now-shaper.DefaultSlack)
		if slot.Cmp(punctual) < 0 {
			m.empty = new(big.Rat).Add(m.empty, slot.Sub(punctual, slot))
		}
	}
	if over != nil {
		a := &m.answers[over.index]
		a.Retry = m.nextLeavesIn()
		a.Ended.Retry = a.Retry
	}
}
