package shaper

import (
	"errors"
	"sync"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/internal/alarm"
)

// A ticker is the state of the goroutine that hands out the slots of a [Shaper], or of
// all keys of a [Group], as far as no call that takes the lock has done so. The goroutine
// runs only while requests wait: the call that forms a line starts it, and it ends when no
// line is left, or a little later if it has a file open. (Each call could sleep until its own
// slot instead, but when a request gives up, its slot has to be handed to another.)
//
// A ticker serves one or several dispatchers. Each dispatcher publishes the instant at which its next
// head is to leave. The goroutine takes the locks of the dispatchers whose instant has come, one after
// the other. Then it takes its own lock, reads all instants, and sets its alarm to the earliest. A
// dispatcher publishes an instant before it takes the ticker's lock to move the alarm, so the
// goroutine never goes to sleep without knowing of that instant.
//
// A goroutine that holds the lock of a dispatcher may take the lock of the ticker. One that holds
// the lock of the ticker takes no other.
type ticker struct {
	first *dispatcher // the first of those it serves; the others are linked by sibling; fixed before use
	run   func()      // tick, made once, so that starting it allocates nothing
	lead  alarm.Lead  // only the goroutine uses it

	mu         sync.Mutex // guards the fields below
	running    bool
	precise    bool  // alarm is a file
	coarse     bool  // WithCoarseTimer; fixed before use
	hurries    bool  // a dispatcher is not open any more, so the goroutine is to end as soon as no line is left
	looks      bool  // the goroutine is to look at all dispatchers, whatever they have published
	serving    int16 // how many dispatchers have a line
	emptySince int64 // if none has, the instant at which the last line emptied
	woke       int64 // the instant for which the goroutine woke last
	armed      int64 // when it has work next: a slot, or its own end; if coarse, it may wake later

	alarm       alarm.Alarm   // timer or a file; in use while the goroutine runs
	timer       *alarm.Timer  // made once, and used by each goroutine in turn
	gone        chan struct{} // closed when the goroutine ends; nil if nothing waits for its end
	retryFileAt int64         // when to try to open a file again, after a failure
	failure     string        // why there is no file although one is wanted, or ""
}

const (
	// preciseUpTo is the longest interval (of one cost unit) for which the ticker opens a
	// file. The millisecond by which a Go timer may be late is less than a twentieth of a
	// longer one.
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

// serve lets the ticker serve one more dispatcher, which gets the epoch of the others.
func (t *ticker) serve(d *dispatcher, coarse bool) {
	if t.first == nil {
		d.epoch, t.run, t.coarse = time.Now(), t.tick, coarse
	} else {
		d.epoch = t.first.epoch
	}
	d.ticker, d.sibling, t.first = t, t.first, d
	d.next.Store(exact.Forever)
}

// now returns the present instant.
func (t *ticker) now() int64 { return int64(time.Since(t.first.epoch)) }

// tick is the body of the ticker goroutine.
func (t *ticker) tick() {
	woke := int64(0)  // the instant for which it woke last
	slept := int64(0) // when its last sleep ended
	awaited := false  // it woke before a slot, and the process seemed idle
	looks, now := true, t.now()
	for {
		now = t.handOut(looks, now)
		if awaited {
			now, awaited = t.lead.StepAside(t.first.epoch), false // Who leaves runs now, and not when the alarm is set.
		}
		t.mu.Lock()
		if looks = t.looks; looks {
			t.looks = false
			t.mu.Unlock()
			continue
		}
		t.woke = woke
		t.chooseAlarmLocked(now)
		t.armed = t.wakeAtLocked(t.nextLocked())
		if t.armed <= now && t.serving == 0 {
			gone := t.endLocked()
			t.mu.Unlock()
			if gone != nil {
				close(gone)
			}
			return
		}
		waker, slot, lead := t.alarm, t.armed, int64(0)
		if t.precise && t.serving > 0 {
			lead = t.lead.Before(slot, now)
			if t.coarse {
				slot = max(slot, woke+int64(coarseness))
			}
		}
		if lead > 0 && slot-now <= int64(alarm.NotWorthSleeping) && now-slept <= int64(longestAwake) {
			t.mu.Unlock() // Sleeping would take more CPU time than yielding.
			t.lead.Yield(slot, t.first.epoch)
			now, woke = t.now(), slot
			continue
		}
		wake := slot - lead
		precise := t.precise
		if precise {
			wake = max(wake, now+int64(shortestSleep))
		}
		waker.Set(wake)
		t.mu.Unlock()
		if err := waker.Wait(); err != nil {
			t.doWithout(err)
		}
		now = t.now()
		slept = now
		if precise {
			t.lead.Woke(now, now-wake)
		}
		if now >= wake {
			woke = wake + lead
		}
		if lead > 0 && now >= wake && now < slot {
			awaited = t.lead.Await(slot, t.first.epoch)
			now = t.now()
		}
	}
}

// handOut hands out the slots that have come by the instant now, or looks at all
// dispatchers, and returns the latest instant it has seen.
func (t *ticker) handOut(looks bool, now int64) int64 {
	for d := t.first; d != nil; d = d.sibling {
		if looks || d.next.Load() <= now {
			now = d.lockWaking(headLast)
			t.noteDensity(d)
			d.unlockAndArm()
		}
	}
	return now
}

// nextLocked returns the earliest of the instants that the dispatchers have published.
func (t *ticker) nextLocked() int64 {
	next := int64(exact.Forever)
	for d := t.first; d != nil; d = d.sibling {
		next = min(next, d.next.Load())
	}
	return next
}

// wakeAtLocked returns when the ticker has to wake: at the instant next, at which a head is
// to leave, or, if all lines are empty, when the goroutine is to end.
func (t *ticker) wakeAtLocked(next int64) int64 {
	switch {
	case t.serving > 0:
		return next
	case t.precise && !t.hurries:
		return t.emptySince + int64(lingering)
	}
	return t.emptySince
}

// endLocked frees the alarm. It returns the channel that the ticker goroutine must close
// after it has unlocked, or nil.
func (t *ticker) endLocked() (gone chan struct{}) {
	t.alarm.Stop()
	gone = t.gone
	t.running, t.precise, t.gone = false, false, nil
	return gone
}

// arm makes sure that the goroutine runs while a dispatcher has a line, that it wakes no
// later than at the instant next, at which a head of d is to leave (with a coarse timer up to
// 1 ms later), and that it ends when no line is left. The lock of d is held.
func (t *ticker) arm(d *dispatcher, serves bool, next int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case serves && !d.served:
		t.serving++
	case d.served && !serves:
		t.serving--
		t.emptySince = d.clock
	}
	d.served = serves
	switch {
	case t.running:
		if at := t.wakeAtLocked(next); at < t.armed {
			t.armed = at
			if t.coarse && t.precise && t.serving > 0 {
				at = max(at, t.woke+int64(coarseness))
			}
			t.alarm.Set(at)
		}
	case t.serving > 0:
		if t.timer == nil {
			t.timer = alarm.NewTimer(d.epoch)
		}
		t.running, t.armed, t.alarm = true, 0, t.timer // The goroutine will choose its alarm.
		go t.run()
	}
}

// look wakes the goroutine at once, if it runs, and lets it look at all dispatchers.
func (t *ticker) look(now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running {
		t.looks = true
		t.wakeNowLocked(now)
	}
}

// hurry lets the goroutine end as soon as no line is left.
func (t *ticker) hurry(now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hurries = true; t.running && t.serving == 0 {
		t.wakeNowLocked(now)
	}
}

func (t *ticker) wakeNowLocked(now int64) {
	t.armed = now
	t.alarm.Set(now)
}

// noteDensity estimates how many requests of all lines together leave within
// preciseUpTo. It takes each to cost 1, and each line to have the rate of the one whose head
// leaves next.
func (t *ticker) noteDensity(d *dispatcher) {
	if len(d.due) > 0 {
		apart := d.due[0].flow.bucket.interval.Whole()
		d.density = float32(float64(len(d.due)) * float64(preciseUpTo) / float64(apart))
	}
}

// chooseAlarmLocked opens a file for the ticker if a millisecond matters, and closes it
// if not. With no request in line nothing changes. If there are several lines, the time
// between departures of all of them together decides.
func (t *ticker) chooseAlarmLocked(now int64) {
	if t.serving == 0 {
		return
	}
	density := float32(0)
	for d := t.first; d != nil; d = d.sibling {
		if d.served {
			density += d.density
		}
	}
	switch {
	case density < 1:
		t.failure = ""
		if t.precise && t.first.host == nil { // Lines of different rates would open and close it again and again.
			t.useTimerLocked()
		}
	case !t.precise && now >= t.retryFileAt:
		file, err := alarm.OpenFile(t.first.epoch)
		switch {
		case err == nil:
			t.alarm.Stop()
			t.alarm, t.precise, t.failure = file, true, ""
		default:
			t.failLocked(now, err)
			if errors.Is(err, alarm.ErrOtherClock) { // This is expected in a testing/synctest bubble.
				t.failure = ""
			}
		}
	}
}

// failLocked records why there is no file, and when to try again.
func (t *ticker) failLocked(now int64, err error) {
	t.failure = err.Error()
	t.retryFileAt = now + int64(retrying)
}

// useTimerLocked closes the file and goes on with the timer.
func (t *ticker) useTimerLocked() {
	t.alarm.Stop()
	t.alarm, t.precise = t.timer, false
}

// doWithout replaces a file that has failed by the timer.
func (t *ticker) doWithout(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.useTimerLocked()
	t.failLocked(t.now(), err)
}

// waitForEnd returns when the ticker goroutine has ended. All lines must be empty and stay
// empty, and hurry must have been called.
func (t *ticker) waitForEnd() {
	t.mu.Lock()
	if t.running && t.gone == nil {
		t.gone = make(chan struct{})
	}
	gone := t.gone
	t.mu.Unlock()
	if gone != nil {
		<-gone
	}
}
