package shaper

import (
	"errors"
	"time"

	"example.com/leakybucket/shaper/internal/alarm"
)

// ticker is the state of the goroutine that hands out the slots of a [Shaper], or of
// all keys of a [Group]. The goroutine runs only while requests wait: the call that
// forms a line starts it, and it ends when no line is left, or a little later if it
// has a file open. (Each call could sleep until its own slot instead, but when a
// request gives up, its slot has to be handed to another.)
//
// The lock of the dispatcher guards all fields but lead.
type ticker struct {
	coarse bool // WithCoarseTimer

	running bool
	gone    chan struct{} // closed when the goroutine ends; nil if nothing waits for that
	woke    int64         // the instant for which it woke last
	armed   int64         // when it is to do something next, no later than the next slot; if coarse, it may wake later
	rests   bool          // all lines are empty
	emptied int64         // the instant at which all lines were first seen empty

	alarm       alarm.Alarm  // timer or a file; in use while the goroutine runs
	timer       *alarm.Timer // made once, and used by each ticker goroutine in turn
	precise     bool         // alarm is a file
	retryFileAt int64        // when to try to open a file again, after a failure
	failure     string       // why there is no file although one is wanted, or ""

	lead alarm.Lead
}

const (
	// preciseUpTo is the longest interval between departures for which the ticker
	// opens a file. Of a longer interval, the millisecond by which a timer may be late
	// is less than a twentieth.
	preciseUpTo = 20 * time.Millisecond
	// lingering is how long an empty line keeps its file, because opening one takes
	// 10 µs. Guarantee 8 allows a second; goleak, which tests use to look for
	// goroutines that have been left behind, waits for half a second.
	lingering = 100 * time.Millisecond
	// retrying is how long the ticker waits before it tries to open a file again.
	retrying = time.Second
	// shortestSleep is long enough that the ticker does sleep, so that the goroutines
	// that it has woken get its processor.
	shortestSleep = 5 * time.Microsecond
	// longestAwake is how long a ticker yields from slot to slot before it sleeps for
	// a moment, so that the runtime polls the network. Without that sleep, and while
	// no other P is idle, the runtime would poll only every 10 ms.
	longestAwake = time.Millisecond
	// coarseness is the least time between two wake-ups with [WithCoarseTimer].
	coarseness = time.Millisecond
)

// tick is the body of the ticker goroutine.
func (d *dispatcher) tick() {
	t := &d.ticker
	woke := int64(0)  // the instant for which it woke last
	slept := int64(0) // when its last sleep ended
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
			d.mu.Unlock() // Sleeping would take more CPU time than yielding.
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

// serves reports whether there are waiters to wake. In a dry run there are none.
func (d *dispatcher) serves() bool { return d.waiting > 0 && !d.isDryRun() }

// wakeAtLocked returns when the ticker has to wake: at the slot of the next head, or,
// if all lines are empty, when the ticker is to end.
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

// end frees the alarm. It returns the channel that the ticker goroutine must close
// after it has unlocked, or nil.
func (t *ticker) end() (gone chan struct{}) {
	t.alarm.Stop()
	gone = t.gone
	t.running, t.precise, t.gone = false, false, nil
	return gone
}

// armLocked makes sure that the ticker runs while requests wait, that it wakes no
// later than at the next slot, and that it ends when none wait any more.
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
		t.running, t.armed, t.alarm = true, 0, t.timer // The goroutine begins by choosing its alarm.
		go d.run()
	}
}

// look wakes the ticker at once, if it runs.
func (t *ticker) look(now int64) {
	if t.running {
		t.armed = now
		t.alarm.Set(now)
	}
}

// chooseAlarmLocked opens a file for the ticker if a millisecond matters, and closes it
// if not. With no request in line nothing changes. If there are several lines, what
// matters is the time between departures of all of them together; all lines are taken to
// have the rate of the one whose head leaves next.
func (d *dispatcher) chooseAlarmLocked(now int64) {
	t := &d.ticker
	if !d.serves() {
		return
	}
	wants := d.due[0].flow.bucket.interval.Whole() <= int64(preciseUpTo)*int64(len(d.due))
	switch {
	case !wants:
		t.failure = ""
		if t.precise && !d.keyed { // In a Group, lines of different rates would open and close it again and again.
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
			if errors.Is(err, alarm.ErrOtherClock) { // This is expected in a testing/synctest bubble.
				t.failure = ""
			}
		}
	}
}

// fail records why there is no file, and when to try again.
func (t *ticker) fail(now int64, err error) {
	t.failure = err.Error()
	t.retryFileAt = now + int64(retrying)
}

// useTimer closes the file and goes on with the timer.
func (t *ticker) useTimer() {
	t.alarm.Stop()
	t.alarm, t.precise = t.timer, false
}

// doWithout replaces a file that has failed by the timer. The lock is not held.
func (d *dispatcher) doWithout(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ticker.useTimer()
	d.ticker.fail(d.clock, err)
}

// ended returns a channel that is closed when the ticker goroutine ends, or nil if it
// does not run. All lines must be empty and stay empty.
func (t *ticker) ended() <-chan struct{} {
	if !t.running {
		return nil
	}
	if t.gone == nil {
		t.gone = make(chan struct{})
	}
	return t.gone
}
