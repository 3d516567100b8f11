package replay

import (
	"time"

	"example.com/leakybucket/internal/exact"
)

// A Bucket is a bucket to which requests come one after another, and none of them gives
// up. So what becomes of a request is certain when it comes, and the bucket need only
// remember which of them are in line. The zero Bucket is empty. Its methods are given its
// Plan each time, so that many buckets may have one.
type Bucket struct {
	empty exact.Nanos // the instant at which the level reaches 0 if no other request comes
	line  line
}

// Arrive returns the fate of a request of a cost, which is at least 1. Instants must not
// be negative, and not decrease from one request to the next.
func (b *Bucket) Arrive(p *Plan, at time.Duration, cost int) Fate {
	b.line.advance(at)
	// Those in line have left before this one does, so the level is as they leave it.
	slot := p.allowed(b.empty, cost)
	wait := p.waitFrom(at, slot)
	r := Request{At: at, Cost: cost, Deadline: Never}
	if why := p.judge(r, wait, b.line.len()); why != Waiting {
		return Fate{Result: why}
	}
	b.empty = p.left(b.empty, exact.Later(slot, exact.At(int64(at))), cost)
	if wait > 0 {
		b.line.push(at + wait)
	}
	return Fate{Departed, wait}
}

// Line returns how many are in line after the latest arrival.
func (b *Bucket) Line() int { return b.line.len() }

// Idle reports whether nothing is left at an instant of all that has happened: whether the
// bucket is as the zero Bucket is.
func (b *Bucket) Idle(p *Plan, at time.Duration) bool { return !b.empty.After(exact.At(int64(at))) }

// A line holds when those in line leave, the next first, in a ring that grows.
type line struct {
	ring  []time.Duration // its length is a power of two, or 0
	first int             // index of the next to leave, counted without end
	end   int             // index after the last
}

func (l *line) len() int { return l.end - l.first }

// advance takes out those that leave up to an instant.
func (l *line) advance(to time.Duration) {
	for l.first < l.end && l.ring[l.first&(len(l.ring)-1)] <= to {
		l.first++
	}
}

func (l *line) push(leaves time.Duration) {
	if l.len() == len(l.ring) {
		grown := make([]time.Duration, max(4, 2*len(l.ring)))
		for i := l.first; i < l.end; i++ {
			grown[i&(len(grown)-1)] = l.ring[i&(len(l.ring)-1)]
		}
		l.ring = grown
	}
	l.ring[l.end&(len(l.ring)-1)] = leaves
	l.end++
}
