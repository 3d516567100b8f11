package shaper

import (
	"cmp"
	"context"
)

// phase is how far a shaper is on its way to the end.
type phase uint8

const (
	open     phase = iota
	draining       // Shutdown: no newcomers; the line leaves at its rate
	closed
)

// Close refuses everyone who waits, with ErrClosed, and returns when the
// ticker goroutine has gone. It always returns nil, and may be called many
// times, at once, and from anywhere, hooks included.
func (s *Shaper) Close() error {
	s.mustBeMade()
	now := s.lock()
	for w := s.line.head; w != nil; w = s.line.head {
		s.line.remove(w, refused)
		w.slot = now
		w.tell()
	}
	s.phase = max(s.phase, draining)
	s.changed = true
	ended := s.ticker.ended()
	s.unlock()
	if ended != nil {
		<-ended
	}
	return nil
}

// Shutdown admits nobody any more, lets those in line leave at their rate, and
// then closes the shaper and returns nil. If ctx ends first it returns
// ctx.Err() while the line goes on leaving: another Shutdown waits for the
// rest, and only Close stops it. With an empty line it returns nil even if ctx
// is done, and so does one that is overtaken by Close.
//
// It waits for the end of a Hold, and for places that those in line need, so give it
// a context that ends; it does not wait for the end of requests that have left.
//
// http.Server.Shutdown neither wakes nor cancels requests in the line, so shut
// the shaper down first.
func (s *Shaper) Shutdown(ctx context.Context) error {
	s.mustBeMade()
	s.lock()
	s.phase = max(s.phase, draining)
	s.changed = true
	if s.line.len > 0 && s.drained == nil {
		s.drained = make(chan struct{})
	}
	drained := s.drained
	empty := s.line.len == 0
	s.unlock()
	if !empty {
		select {
		case <-drained:
		case <-ctx.Done():
			select {
			case <-drained: // Both at once: what was asked for has been done.
			default:
				return errorOf(ctx)
			}
		}
	}
	return s.Close()
}

// errorOf is the error of a context that has said to be done. One that breaks
// its contract and gives none has ended all the same.
func errorOf(ctx context.Context) error { return cmp.Or(ctx.Err(), context.Canceled) }

// settle ends a drain when the last in line has gone.
func (s *Shaper) settle() {
	if s.phase != draining || s.line.len > 0 {
		return
	}
	s.phase = closed
	if s.drained != nil {
		close(s.drained)
	}
}
