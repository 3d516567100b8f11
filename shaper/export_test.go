package shaper

import (
	"context"
	"hash/maphash"
)

// EnterAsReentry is Acquire for a request that was let go before, as Transport
// lets it enter again. release is nil if the request has no seat.
func EnterAsReentry(s *Shaper, ctx context.Context, n int) (release func(), err error) {
	t, err := s.acquire(ctx, n, reentry)
	if t.by == nil {
		return nil, err
	}
	return t.end, err
}

// LineIsEmpty reports whether nothing is linked into the line, nor counted.
func LineIsEmpty(s *Shaper) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := s.flow.line
	return line.head == nil && line.tail == nil && line.lastReentry == nil && line.cost.total() == 0
}

// SpreadHomes seeds the hash of a new Group until no two of the keys have one home.
// With a random seed two keys share a bucket in one of 960 runs.
func SpreadHomes[K comparable](g *Group[K], keys ...K) {
	for {
		homes := map[int16]bool{}
		for _, key := range keys {
			homes[g.homeOf(key)] = true
		}
		if len(homes) == len(keys) {
			return
		}
		g.seed = maphash.MakeSeed()
	}
}

// HashAlike gives a new Group the hash of another one, so that the same keys share shards.
func HashAlike[K comparable](g, other *Group[K]) { g.seed = other.seed }

// BlocksOf returns how many blocks a Group remembers.
func BlocksOf[K comparable](g *Group[K]) int {
	n := 0
	for _, s := range g.all {
		s.mu.Lock()
		n += len(s.blocks.until)
		s.mu.Unlock()
	}
	return n
}
