package shaper

import "context"

// EnterAsReentry is Acquire for a request that was let go before, as Transport
// lets it enter again. release is nil if the request has no seat.
func EnterAsReentry(s *Shaper, ctx context.Context, n int) (release func(), err error) {
	held, err := s.wait(ctx, n, reentry)
	if held == (seat{}) {
		return nil, err
	}
	return func() { s.releaseSeat(&s.flow, held) }, err
}

// LineIsEmpty reports whether nothing is linked into the line, nor counted.
func LineIsEmpty(s *Shaper) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := s.flow.line
	return line.head == nil && line.tail == nil && line.lastReentry == nil && line.cost.total() == 0
}
