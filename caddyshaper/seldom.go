package caddyshaper

import (
	"sync"
	"time"
)

// A seldom tells of many events at most once a second: at once of the first, and at the end of each
// second of all that came in it. A second without an event ends the row, so no count is carried
// over to events of much later.
type seldom[T any] struct {
	tell func(count int, latest T) // one call at a time, except beside that for the first event of a row

	mu     sync.Mutex
	timer  *time.Timer // nil: none has come in the last second
	count  int         // that have not been told of
	latest T
	closed bool
}

// note counts an event.
func (s *seldom[T]) note(event T) {
	s.mu.Lock()
	if s.closed || s.timer != nil {
		s.count, s.latest = s.count+1, event
		s.mu.Unlock()
		return
	}
	s.timer = time.AfterFunc(time.Second, s.tick)
	s.mu.Unlock()
	s.tell(1, event) // It may be slow, so it must not be within the lock.
}

// tick tells of the events of the last second.
func (s *seldom[T]) tick() {
	s.mu.Lock()
	count, latest := s.count, s.latest
	s.count = 0
	if s.timer = nil; count > 0 && !s.closed {
		s.timer = time.AfterFunc(time.Second, s.tick)
	}
	s.mu.Unlock()
	if count > 0 {
		s.tell(count, latest)
	}
}

// close tells of what has not been told. Nothing that comes afterwards is.
func (s *seldom[T]) close() {
	s.mu.Lock()
	s.closed = true
	if s.timer != nil && !s.timer.Stop() { // Its tick tells, and is on its way.
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.tick()
}
