package shaper

import "time"

// ticker is the goroutine that hands out the slots of a shaper. It lives only
// while somebody waits: the call that forms a line starts it, and it ends as
// soon as the line is empty. (Each wait of its own could sleep until its slot
// instead, but somebody has to hand a slot on when its owner has gone.)
//
// The lock of the shaper guards all of it but the alarm.
type ticker struct {
	alarm   alarm
	running bool
	armed   int64         // when the alarm goes off, at the latest
	gone    chan struct{} // made by who waits for its end; closed by it
}

// tick is the ticker goroutine.
func (s *Shaper) tick() {
	for {
		now := s.lockAnd(parks)
		s.settle()
		s.changed = false
		if s.line.len == 0 {
			gone := s.ticker.gone
			s.ticker.running, s.ticker.gone = false, nil
			s.mu.Unlock()
			if gone != nil {
				close(gone)
			}
			return
		}
		next := s.bucket.slot(s.line.head.cost).ceil()
		s.ticker.armed = next
		s.mu.Unlock()
		s.ticker.alarm.sleep(time.Duration(next - now))
	}
}

// arm sees to it that the ticker runs while somebody waits, wakes no later
// than the head's slot, and ends when nobody waits any more.
func (s *Shaper) arm() {
	t := &s.ticker
	switch {
	case s.line.len == 0:
		if t.running {
			t.alarm.wake()
		}
	case !t.running:
		t.running, t.armed = true, 0 // It looks for itself at once.
		t.alarm.prepare()
		go s.run()
	default:
		if next := s.bucket.slot(s.line.head.cost).ceil(); next < t.armed {
			t.armed = next
			t.alarm.wake()
		}
	}
}

// ended returns a channel that is closed when the ticker goroutine has gone,
// or nil if there is none. The line must be empty and stay so.
func (t *ticker) ended() <-chan struct{} {
	if !t.running {
		return nil
	}
	if t.gone == nil {
		t.gone = make(chan struct{})
	}
	return t.gone
}

// alarm puts the ticker goroutine to sleep until an instant or an interrupt.
type alarm struct {
	timer *time.Timer
	// interrupt has room for one: any number of interrupts that come before
	// the ticker has looked want the same thing of it, that it look again. One
	// that is left over from before makes it look once for nothing.
	interrupt chan struct{}
}

// prepare makes the alarm ready for sleep and wake. It is used over and over
// by one ticker goroutine after the other.
func (a *alarm) prepare() {
	if a.timer == nil {
		a.timer = time.NewTimer(forever)
		a.timer.Stop()
		a.interrupt = make(chan struct{}, 1)
	}
}

func (a *alarm) sleep(d time.Duration) {
	a.timer.Reset(d)
	select {
	case <-a.timer.C:
	case <-a.interrupt:
		a.timer.Stop()
	}
}

// wake ends the sleep of the ticker, or the next one if it does not sleep. It
// may be called by anybody who holds the lock of the shaper.
func (a *alarm) wake() {
	select {
	case a.interrupt <- struct{}{}:
	default:
	}
}
