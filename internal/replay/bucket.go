package replay

import (
	"time"

	"example.com/leakybucket/internal/exact"
)

// A Bucket is a bucket in virtual time, to which requests come one after another. The zero
// Bucket is empty. Its methods are given its Plan each time, so that many buckets may have
// one.
type Bucket struct {
	empty exact.Nanos // the instant at which the level reaches 0 if no request in line leaves
	since exact.Nanos // no request in line leaves before: when the line was last empty, or its head gave up
	ahead int64       // the costs in line

	// The line, the head first, in a ring that grows. Its length is a power of two, or 0.
	ring       []place
	first, end int // counted without end
	waiting    int
}

// A place is the place of a request in line.
type place struct {
	cost  int // 0: its caller has given up
	index int // of the request, as the caller of enter has it
}

// Arrive returns the fate of a request of a cost, which is at least 1, if no caller gives
// up: then it is certain when the request comes. Instants must not be negative, and not
// decrease from one request to the next.
func (b *Bucket) Arrive(p *Plan, at time.Duration, cost int) Fate {
	b.settle(p, at, nil)
	return b.enter(p, Request{At: at, Cost: cost, Deadline: Never}, 0)
}

// Line returns how many are in line after the latest arrival.
func (b *Bucket) Line() int { return b.waiting }

// enter is the arrival of a request. Everything that is due by then has happened. It returns
// what becomes of the request if all in line stay.
//
// The line need not be walked: the level does not reach 0 before a request leaves that
// waits, so each departure puts off the next by its cost exactly.
func (b *Bucket) enter(p *Plan, r Request, index int) Fate {
	slot := p.allowed(b.empty, r.Cost)
	if b.ahead > 0 {
		slot = p.interval.Plus(slot, p.interval.Times(b.ahead))
	}
	wait := p.waitFrom(r.At, slot)
	if why := p.judge(r, wait, b.waiting); why != Waiting {
		return Fate{Result: why}
	}
	if now := exact.At(int64(r.At)); wait == 0 {
		b.empty = p.left(b.empty, now, r.Cost)
	} else {
		b.push(now, place{r.Cost, index})
	}
	return Fate{Departed, wait}
}

// push adds a request to the line.
func (b *Bucket) push(now exact.Nanos, request place) {
	if b.waiting == 0 {
		b.since = now
	}
	if b.end-b.first == len(b.ring) {
		grown := make([]place, max(4, 2*len(b.ring)))
		for i := b.first; i < b.end; i++ {
			grown[i&(len(grown)-1)] = *b.at(i)
		}
		b.ring = grown
	}
	*b.at(b.end) = request
	b.end++
	b.waiting++
	b.ahead = exact.Sum(b.ahead, int64(request.cost))
}

// at returns the place with a number, from first to end.
func (b *Bucket) at(number int) *place { return &b.ring[number&(len(b.ring)-1)] }

// settle lets all leave whose slots have come by an instant, and calls left for each of
// them, if it is not nil.
func (b *Bucket) settle(p *Plan, by time.Duration, left func(index int, slot exact.Nanos)) {
	for until := exact.At(int64(by)); b.first < b.end; b.first++ {
		head := *b.at(b.first)
		if head.cost == 0 {
			continue
		}
		slot := exact.Later(p.allowed(b.empty, head.cost), b.since)
		if slot.After(until) {
			return
		}
		b.waiting--
		b.ahead -= int64(head.cost)
		b.empty = p.left(b.empty, slot, head.cost)
		if left != nil {
			left(head.index, slot)
		}
	}
}

// giveUp takes the request with a number out of the line at an instant up to which the
// bucket is settled.
func (b *Bucket) giveUp(number int, at time.Duration) {
	gone := b.at(number)
	if number == b.first {
		b.since = exact.At(int64(at)) // The next could not leave before.
	}
	b.waiting--
	b.ahead -= int64(gone.cost)
	gone.cost = 0
}
