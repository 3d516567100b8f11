package shaper

import (
	"errors"
	"time"

	"example.com/leakybucket/shaper/internal/alarm"
)

// ticker is the goroutine that hands out the slots of a Shaper, or of all the
// keys of a Group. It lives only while somebody waits: the call that forms a line
// starts it, and it ends when no line is left, at once or, where it holds a file,
// a little later. (Each
// wait of its own could sleep until its slot instead, but somebody has to hand
// a slot on when its owner has gone.)
//
// The lock of the dispatcher guards all of it but the lead.
type ticker struct {
	coarse bool // WithCoarseTimer

	running bool
	gone    chan struct{} // made by who waits for its end; closed by it
	woke    int64         // the instant for which it was awake last
	armed   int64         // when it looks next, or a lead later: not after the head's slot
	rests   bool          // nobody is in line
	emptied int64         // since when

	alarm       alarm.Alarm  // while it runs: timer, or a file
	timer       *alarm.Timer // used over and over, by one goroutine after the other
	precise     bool         // alarm is a file
	retryFileAt int64        // when to try for a file again, after a failure
	failure     string       // of the last try; "" if there was none

	lead alarm.Lead
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
func (d *dispatcher) tick() {
	t := &d.ticker
	woke := int64(0)  // the instant for which it was awake last
	slept := int64(0) // when it slept last
	for {
		now := d.lockWaking(headLast)
		t.woke = woke
		d.endDrainLocked()
		d.rearm = false
		d.chooseAlarmLocked(now)
		t.armed = d.wakeAtLocked()
		if t.armed <= now && !d.serves() {
			gone := t.end()
			d.mu.Unlock()
			if gone != nil {
				close(gone)
			}
			return
		}
		waker, slot, lead := t.alarm, t.armed, int64(0)
		if t.precise && d.serves() {
			lead = t.lead.Before(slot, now)
			if t.coarse {
				slot = max(slot, woke+int64(coarseness))
			}
		}
		if lead > 0 && slot-now <= int64(alarm.LongestLead) && now-slept <= int64(longestAwake) {
			d.mu.Unlock() // To sleep would take more of the processor than to yield.
			t.lead.Yield(slot, d.epoch)
			woke = slot
			continue
		}
		wake := slot - lead
		precise := t.precise
		if precise {
			wake = max(wake, now+int64(shortestSleep))
		}
		waker.Set(wake)
		d.mu.Unlock()
		if err := waker.Wait(); err != nil {
			d.doWithout(err)
		}
		now = int64(time.Since(d.epoch))
		slept = now
		if precise {
			t.lead.Woke(now, now-wake)
		}
		if now >= wake {
			woke = wake + lead
		}
		if lead > 0 && now >= wake && now < slot {
			t.lead.Yield(slot, d.epoch)
		}
	}
}

// serves says whether there is anybody to let go. In a dry run there is not.
func (d *dispatcher) serves() bool { return d.waiting > 0 && !d.dryRun }

// wakeAt is when the ticker has to look next: at the slot of the next head or, with
// nobody in line, when it has stayed long enough.
func (d *dispatcher) wakeAtLocked() int64 {
	t := &d.ticker
	if d.serves() {
		t.rests = false
		return d.due[0].slot
	}
	if !t.rests {
		t.rests, t.emptied = true, d.clock
	}
	if t.precise && d.phase == open {
		return t.emptied + int64(lingering)
	}
	return t.emptied
}

// end frees what the ticker goroutine holds, and returns what it has to close
// when it has unlocked.
func (t *ticker) end() (gone chan struct{}) {
	t.alarm.Stop()
	gone = t.gone
	t.running, t.precise, t.gone = false, false, nil
	return gone
}

// arm sees to it that the ticker runs while somebody waits, wakes no later than the
// next slot, and ends when nobody waits any more.
func (d *dispatcher) armLocked() {
	t := &d.ticker
	switch {
	case t.running:
		if next := d.wakeAtLocked(); next < t.armed {
			t.armed = next
			if t.coarse && t.precise && d.serves() {
				next = max(next, t.woke+int64(coarseness))
			}
			t.alarm.Set(next)
		}
	case d.serves():
		if t.timer == nil {
			t.timer = alarm.NewTimer(d.epoch)
		}
		t.running, t.armed, t.alarm = true, 0, t.timer // It looks for itself at once.
		go d.run()
	}
}

// look makes a ticker that runs look at once.
func (t *ticker) look(now int64) {
	if t.running {
		t.armed = now
		t.alarm.Set(now)
	}
}

// chooseAlarm gives the ticker a file where a millisecond matters, and takes it
// away where it does not. With nobody in line all stays as it is. What matters where
// there are many lines is how often one of them lets somebody leave; the next of them
// is taken to be like the others.
func (d *dispatcher) chooseAlarmLocked(now int64) {
	t := &d.ticker
	if !d.serves() {
		return
	}
	wants := d.due[0].flow.bucket.interval.Whole() <= int64(preciseUpTo)*int64(len(d.due))
	switch {
	case !wants:
		t.failure = ""
		if t.precise && !d.keyed { // Or else lines of many rates would have it opened again and again.
			t.useTimer()
		}
	case !t.precise && now >= t.retryFileAt:
		file, err := alarm.OpenFile(d.epoch)
		switch {
		case err == nil:
			t.alarm.Stop()
			t.alarm, t.precise, t.failure = file, true, ""
		default:
			t.fail(now, err)
			if errors.Is(err, alarm.ErrOtherClock) { // A testing/synctest bubble: as it should be.
				t.failure = ""
			}
		}
	}
}

// fail notes that there is no file for the time being, and why.
func (t *ticker) fail(now int64, err error) {
	t.failure = err.Error()
	t.retryFileAt = now + int64(retrying)
}

// useTimer gives the file back.
func (t *ticker) useTimer() {
	t.alarm.Stop()
	t.alarm, t.precise = t.timer, false
}

// doWithout goes on without a file that has failed. The lock is not held.
func (d *dispatcher) doWithout(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ticker.useTimer()
	d.ticker.fail(d.clock, err)
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
