package grpcshaper

import "sync"

// A seat holds what must be released when a stream, or a message of it, has ended. It is
// safe for concurrent use, because a stream may end while it waits for a message.
type seat struct {
	mu      sync.Mutex
	release func() // nil: nothing is held
	over    bool   // the stream has ended
}

// take keeps release for later. If the stream has ended it is called at once.
func (s *seat) take(release func()) {
	s.mu.Lock()
	over := s.over
	if !over {
		s.release = release
	}
	s.mu.Unlock()
	if over {
		release()
	}
}

// giveBack calls what is held, if anything is, outside of the lock.
func (s *seat) giveBack() {
	s.mu.Lock()
	release := s.release
	s.release = nil
	s.mu.Unlock()
	if release != nil {
		release()
	}
}

// end is giveBack for the end of the stream.
func (s *seat) end() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.giveBack()
}
