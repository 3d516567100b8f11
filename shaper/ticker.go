package shaper

import (
	"errors"
	"time"
)

// ticker is the goroutine that hands out the slots of a shaper. It lives only
// while somebody waits: the call that forms a line starts it, and it ends when
// the line is empty, at once or, where it holds a file, a little later. (Each
// wait of its own could sleep until its slot instead, but somebody has to hand
// a slot on when its owner has gone.)
//
// The lock of the shaper guards all of it but the lead.
type ticker struct {
	coarse bool // WithCoarseTimer

	running bool
	gone    chan struct{} // made by who waits for its end; closed by it
	woke    int64         // the instant for which it was awake last
	armed   int64         // when it looks next, or a lead later: not after the head's slot
	rests   bool          // nobody is in line
	emptied int64         // since when

	alarm   alarm    // while it runs: timer, or a file
	timer   *goTimer // used over and over, by one goroutine after the other
	precise bool     // alarm is a file
	again   int64    // when to try for a file again, after a failure
	failure string   // of the last try; "" if there was none

	lead lead
}

const (
	// preciseUpTo is the longest interval at which the ticker takes a file: of
	// longer ones, the millisecond that a timer may be late is no more than a
	// twentieth.
	preciseUpTo = 20 * time.Millisecond
	// lingering is for how long an empty line keeps its file, as to open one
	// takes 10 µs. G8 allows a second. Tests that look for goroutines which
	// have been left behind wait for half of one.
	lingering = 100 * time.Millisecond
	// retrying is for how long a ticker that got no file does without.
	retrying = time.Second
	// shortestSleep is long enough for the ticker to fall asleep in: those that
	// it has told to go must get its processor.
	shortestSleep = 5 * time.Microsecond
	// longestAwake is for how long a ticker yields from slot to slot before it
	// sleeps for a moment, so that the runtime comes to look at the network: while
	// a goroutine can run it does so every 10 ms only, if no other P is idle.
	longestAwake = time.Millisecond
	// coarseness is the least time between two wake-ups WithCoarseTimer.
	coarseness = time.Millisecond
)

// tick is the ticker goroutine.
func (s *Shaper) tick() {
	t := &s.ticker
	woke := int64(0)  // the instant for which it was awake last
	slept := int64(0) // when it slept last
	for {
		now := s.lockAnd(parks)
		t.woke = woke
		s.settle()
		s.changed = false
		s.chooseAlarm(now)
		t.armed = s.wakeAt()
		if s.line.len == 0 && t.armed <= now {
			gone := t.end()
			s.mu.Unlock()
			if gone != nil {
				close(gone)
			}
			return
		}
		alarm, slot, lead := t.alarm, t.armed, int64(0)
		if t.precise && s.line.len > 0 {
			lead = t.lead.before(slot, now)
			if t.coarse {
				slot = max(slot, woke+int64(coarseness))
			}
		}
		if lead > 0 && slot-now <= int64(longestLead) && now-slept <= int64(longestAwake) {
			s.mu.Unlock() // To sleep would take more of the processor than to yield.
			t.lead.yield(slot, s.epoch)
			woke = slot
			continue
		}
		wake := slot - lead
		precise := t.precise
		if precise {
			wake = max(wake, now+int64(shortestSleep))
		}
		alarm.set(wake)
		s.mu.Unlock()
		if err := alarm.wait(); err != nil {
			s.doWithout(err)
		}
		now = int64(time.Since(s.epoch))
		slept = now
		if precise {
			t.lead.woke(now, now-wake)
		}
		if now >= wake {
			woke = wake + lead
		}
		if lead > 0 && now >= wake && now < slot {
			t.lead.yield(slot, s.epoch)
		}
	}
}

// wakeAt is when the ticker has to look next: at the head's slot or, with
// nobody in line, when it has stayed long enough.
func (s *Shaper) wakeAt() int64 {
	t := &s.ticker
	if s.line.len > 0 {
		t.rests = false
		if !s.hasRoom() {
			return forever // Whoever gives a place back looks for the head.
		}
		return s.bucket.slot(s.line.head.cost).ceil()
	}
	if !t.rests {
		t.rests, t.emptied = true, s.clock
	}
	if t.precise && s.phase == open {
		return t.emptied + int64(lingering)
	}
	return t.emptied
}

// end frees what the ticker goroutine holds, and returns what it has to close
// when it has unlocked.
func (t *ticker) end() (gone chan struct{}) {
	t.alarm.stop()
	gone = t.gone
	t.running, t.precise, t.gone = false, false, nil
	return gone
}

// arm sees to it that the ticker runs while somebody waits, wakes no later
// than the head's slot, and ends when nobody waits any more.
func (s *Shaper) arm() {
	t := &s.ticker
	switch {
	case t.running:
		if next := s.wakeAt(); next < t.armed {
			t.armed = next
			if t.coarse && t.precise && s.line.len > 0 {
				next = max(next, t.woke+int64(coarseness))
			}
			t.alarm.set(next)
		}
	case s.line.len > 0:
		if t.timer == nil {
			t.timer = newGoTimer(s.epoch)
		}
		t.running, t.armed, t.alarm = true, 0, t.timer // It looks for itself at once.
		go s.run()
	}
}

// look makes a ticker that runs look at once.
func (t *ticker) look(now int64) {
	if t.running {
		t.armed = now
		t.alarm.set(now)
	}
}

// chooseAlarm gives the ticker a file where a millisecond matters, and takes it
// away where it does not. With nobody in line all stays as it is.
func (s *Shaper) chooseAlarm(now int64) {
	if s.line.len == 0 {
		return
	}
	t := &s.ticker
	wants := s.bucket.interval.whole <= int64(preciseUpTo)
	switch {
	case !wants:
		t.failure = ""
		if t.precise {
			t.useTimer()
		}
	case !t.precise && now >= t.again:
		file, err := openTimerFile(s.epoch)
		switch {
		case err == nil:
			t.alarm.stop()
			t.alarm, t.precise, t.failure = file, true, ""
		default:
			t.fail(now, err)
			if errors.Is(err, errOtherClock) { // A testing/synctest bubble: as it should be.
				t.failure = ""
			}
		}
	}
}

// fail notes that there is no file for the time being, and why.
func (t *ticker) fail(now int64, err error) {
	t.failure = err.Error()
	t.again = now + int64(retrying)
}

// useTimer gives the file back.
func (t *ticker) useTimer() {
	t.alarm.stop()
	t.alarm, t.precise = t.timer, false
}

// doWithout goes on without a file that has failed. The lock is not held.
func (s *Shaper) doWithout(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ticker.useTimer()
	s.ticker.fail(s.clock, err)
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
