package inspect

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
)

// maxActive is how many changes may be in force at once. The next one is refused.
const maxActive = 1000

// closeWait bounds how long close waits for functions of the program that block: the limits
// function of a Group, and the handler of the log.
const closeWait = 5 * time.Second

// retryEnd is the time between two attempts to end a change.
const retryEnd = 5 * time.Second

// A controller makes changes that end by themselves. It tells of each change and of its
// end.
//
// Changes of one bucket come one after the other, and so does the news of them. Others do
// not wait for them, as a change may call functions of the program, which may block.
type controller struct {
	logger   *slog.Logger
	announce func(changeKey, change)

	mu      sync.Mutex // not held while functions of the program are called
	active  map[changeKey]*activeChange
	busy    map[changeKey]bool // changes that are being made, or are coming to their end
	freed   *sync.Cond         // of mu: a key of busy has gone
	closed  bool
	running sync.WaitGroup // timers that have not been stopped, and their functions
}

// A changeKey names the subject of a change: the limits of one bucket, or its hold.
type changeKey struct {
	of   target
	hold bool
}

// An activeChange is a change that has not ended.
type activeChange struct {
	record record
	ref    bucketRef
	timer  *time.Timer

	// end ends it, unless others have changed the same meanwhile, and returns its outcome.
	// With an error it has not ended.
	end func(closing bool) (what, outcome string, err error)

	given, before setting       // of a change of limits: its own, and the one that it replaced
	basis         shaper.Limits // of a change of limits: the ones that it has replaced, as its record says them

	until  time.Time // of a hold: when the line is to be released
	own    bool      // of a hold: until is the end of a hold by the controller, not by others
	shares bool      // of a hold: its key shares a bucket, so the end of the hold is unknown
}

func newController(logger *slog.Logger, announce func(changeKey, change)) *controller {
	c := &controller{logger: logger, announce: announce, active: map[changeKey]*activeChange{}, busy: map[changeKey]bool{}}
	c.freed = sync.NewCond(&c.mu)
	return c
}

// setLimits puts limits in force for a time. It replaces an earlier change of the same bucket: in
// the end, the limits from before that change are put back.
func (c *controller) setLimits(want command) (change, error) {
	l := want.limits
	key := changeKey{of: want.of}
	c.take(key)
	defer c.leave(key)
	earlier, err := c.admit(key)
	if err != nil {
		return change{}, err
	}
	now, err := limitsNow(want.ref)
	switch {
	case err != nil:
		return change{}, &failure{Status: http.StatusConflict, Message: "the limits of this bucket can't be had: " + err.Error()}
	case l.InFlight == 0:
		l.InFlight = now.InFlight // A cap can't be taken away while requests are in flight.
	case now.InFlight == 0 && !want.of.source.capsAll():
		// The same holds for a bucket that is not in use now: it may be when the change ends.
		return change{}, &failure{http.StatusBadRequest, "limits", want.text,
			fmt.Sprintf("Limits.InFlight is 0 and can't become %d for a time: without a cap requests don't say when they end", l.InFlight)}
	}
	until := want.end()
	r := newRecord("limits", want, until)
	basis, before := now, want.ref.setting()
	switch {
	case earlier == nil:
	case before == earlier.given:
		before, basis = earlier.before, earlier.basis
	default:
		r.earlier = overtaken
	}
	text, replaces := l.String(), basis.String()
	r.Limits, r.Before = &text, &replaces
	if err := want.ref.setLimits(l); err != nil {
		return change{}, &failure{http.StatusBadRequest, "limits", want.text, err.Error()}
	}
	given := setting{l, true}
	a := &activeChange{record: r, ref: want.ref, given: given, before: before, basis: basis}
	a.end = func(bool) (what, outcome string, err error) {
		switch others := want.ref.setting(); {
		case !others.given:
			return fmt.Sprintf("limits %v have ended; others have reset them meanwhile", l), overtaken, nil
		case others != given:
			return fmt.Sprintf("limits %v have ended; %v, which others have set meanwhile, stay in force", l, others.limits), overtaken, nil
		}
		if err := want.ref.putBack(before); err != nil {
			return "", "", fmt.Errorf("limits %v stay in force, because those before can't be put back: %w", l, err)
		}
		if st, inUse := want.ref.stats(); inUse {
			return fmt.Sprintf("limits %v have ended; back to %v", l, st.Limits), putBack, nil
		}
		return fmt.Sprintf("limits %v have ended", l), putBack, nil
	}
	c.start(key, a, until)
	return c.tell(key, want.who, fmt.Sprintf("limits set to %v, in place of %v", l, now), a.record), nil
}

// limitsNow is ref.limitsNow, with an error in place of a panic of the limits function.
func limitsNow(ref bucketRef) (l shaper.Limits, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the limits function panicked: %v", p)
		}
	}()
	return ref.limitsNow()
}

// reset ends a change of limits now.
func (c *controller) reset(want command) (change, error) {
	key := changeKey{of: want.of}
	c.take(key)
	defer c.leave(key)
	a, closed := c.state(key)
	switch {
	case closed:
		return change{}, errClosed
	case a == nil:
		return change{}, &failure{Status: http.StatusConflict, Message: "the limits of this bucket have not been changed here, or the change has ended"}
	}
	what, outcome, err := a.tryToEnd(false)
	if err != nil {
		return change{}, &failure{Status: http.StatusConflict, Message: err.Error()}
	}
	c.stop(key)
	return c.tell(key, want.who, what, a.record.ended(outcome, want.who)), nil
}

// hold holds a line for a time. Of several holds, also by others, the one that ends last
// counts, so a shorter one does not shorten it.
func (c *controller) hold(want command) (change, error) {
	key := changeKey{of: want.of, hold: true}
	c.take(key)
	defer c.leave(key)
	earlier, err := c.admit(key)
	if err != nil {
		return change{}, err
	}
	now, until := time.Now(), want.end()
	span := until.Sub(now)
	want.ref.hold(span)
	latest := time.Now().Add(span) // at which the hold just made may end, as it has begun after now
	what, a := "held", &activeChange{ref: want.ref}
	if st, inUse := want.ref.stats(); inUse {
		a.until = st.HeldUntil
	} else if _, err := limitsNow(want.ref); err == nil && !want.of.source.source.read().closed {
		what, a.until, a.shares = "held, with the keys that share its bucket because there are too many", until, true
		if earlier != nil && earlier.until.After(a.until) {
			a.until = earlier.until
		}
	}
	if !a.until.After(now) {
		return change{}, &failure{Status: http.StatusConflict, Message: "the line of this bucket can't be held: its limits can't be had, or it is closed"}
	}
	a.record = newRecord("hold", want, a.until)
	a.own = !a.until.After(latest) || earlier != nil && earlier.own && earlier.until.Equal(a.until)
	a.end = func(closing bool) (what, outcome string, err error) {
		st, _ := want.ref.stats()
		switch {
		case closing && a.own && (a.shares || st.HeldUntil.Equal(a.until)):
			want.ref.hold(0)
		case st.HeldUntil.After(time.Now()):
			return "the hold has ended; others hold the line until " + st.HeldUntil.UTC().Format(time.RFC3339Nano), over, nil
		}
		return "the hold has ended", over, nil
	}
	c.start(key, a, a.until)
	return c.tell(key, want.who, what, a.record), nil
}

// release ends all holds of a line, whoever set them; but not one that the processes have together, which a Bucket keeps until
// it ends.
func (c *controller) release(want command) (change, error) {
	key := changeKey{of: want.of, hold: true}
	c.take(key)
	defer c.leave(key)
	a, closed := c.state(key)
	if closed {
		return change{}, errClosed
	}
	r := newRecord("release", want, time.Time{})
	if a != nil {
		r = a.record
	}
	st, _ := want.ref.stats()
	held := st.HeldUntil.After(time.Now()) || a != nil && a.shares
	want.ref.hold(0)
	c.stop(key)
	what := "released"
	switch b := st.Bucket; {
	case !held:
		what = "released, but it was not held"
	case b.State != "" && !b.HoldsAlone:
		what = "released in this process alone: a hold that the processes with this bucket have together ends by itself"
	}
	return c.tell(key, want.who, what, r.ended(released, want.who)), nil
}

var errClosed = &failure{Status: http.StatusServiceUnavailable, Message: "the inspector is closed"}

// take waits until nobody else changes the same, and keeps others from it until leave.
func (c *controller) take(key changeKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.busy[key] {
		c.freed.Wait()
	}
	c.busy[key] = true
}

// tryToTake is take, unless somebody else changes the same just now. It reports whether it has taken the key.
func (c *controller) tryToTake(key changeKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[key] {
		return false
	}
	c.busy[key] = true
	return true
}

// leave undoes take.
func (c *controller) leave(key changeKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, key)
	c.freed.Broadcast()
}

// state returns the change that is in force, or nil, and whether the controller is closed.
func (c *controller) state(key changeKey) (a *activeChange, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.active[key], c.closed
}

// refOf returns the bucket of a change that is in force, or nil.
func (c *controller) refOf(of target) bucketRef {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, hold := range []bool{false, true} {
		if a := c.active[changeKey{of, hold}]; a != nil {
			return a.ref
		}
	}
	return nil
}

// holds reports whether the limits of a change are in force: neither has it ended, nor have others
// set or reset the limits since.
func (c *controller) holds(key changeKey) bool {
	a, _ := c.state(key)
	return a != nil && a.ref.setting() == a.given
}

// endOvertaken ends the changes of limits in whose place others have set or reset limits meanwhile, and leaves these
// in force. Changes of a bucket that somebody changes just now are left to that.
func (c *controller) endOvertaken() {
	c.mu.Lock()
	active := maps.Clone(c.active)
	c.mu.Unlock()
	for key, a := range active {
		if !key.hold && a.ref.setting() != a.given && c.tryToTake(key) {
			if now, _ := c.state(key); now == a && a.ref.setting() != a.given {
				c.end(key, a, "")
			}
			c.leave(key)
		}
	}
}

// overtake ends a change of limits, and leaves the limits in force as they are.
func (c *controller) overtake(key changeKey, from time.Time) {
	c.take(key)
	defer c.leave(key)
	if a, _ := c.state(key); a != nil && a.record.From.Equal(from) {
		c.stop(key)
		c.tell(key, a.record.Who, fmt.Sprintf("limits %v have ended; the program has set others meanwhile, which stay in force", a.given.limits), a.record.ended(overtaken, ""))
	}
}

// admit returns the earlier change, or nil, if there may be a change. The key is taken.
func (c *controller) admit(key changeKey) (earlier *activeChange, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	earlier = c.active[key]
	switch {
	case c.closed:
		return nil, errClosed
	case key.of.source.ending: // It was removed just now.
		return nil, unknownSource(key.of.source.name)
	case earlier == nil && len(c.active)+len(c.busy) > maxActive: // This one is busy.
		return nil, &failure{Status: http.StatusConflict, Message: fmt.Sprintf("%d changes are in force already, which is the most", maxActive)}
	}
	return earlier, nil
}

// start puts a change in the place of an earlier one, and lets it end at an instant. The
// key is taken.
func (c *controller) start(key changeKey, a *activeChange, until time.Time) {
	c.stop(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active[key] = a
	c.running.Add(1)
	a.timer = time.AfterFunc(time.Until(until), func() {
		defer c.running.Done()
		c.take(key)
		defer c.leave(key)
		if now, _ := c.state(key); now == a { // Else it has been replaced at this very instant.
			c.end(key, a, "")
		}
	})
}

// stop forgets a change without ending it. The key is taken.
func (c *controller) stop(key changeKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.active[key]; a != nil {
		delete(c.active, key)
		if a.timer.Stop() {
			c.running.Done()
		}
	}
}

// end ends a change. If that fails, it tries again and again, unless the change must end now:
// then why is the reason, which is told. The key is taken.
func (c *controller) end(key changeKey, a *activeChange, why string) {
	closing := why != ""
	what, outcome, err := a.tryToEnd(closing)
	told := true
	switch {
	case err != nil && !closing:
		told = a.record.Error == nil
		what = fmt.Sprintf("%v; that is tried every %v", err, retryEnd)
		text := err.Error()
		a.record.Error = &text
		c.start(key, a, time.Now().Add(retryEnd))
	case err != nil:
		what, outcome = err.Error(), stuck
		fallthrough
	default:
		c.stop(key)
	}
	if closing {
		what += " (" + why + ")"
	}
	if told {
		r := a.record
		if outcome != "" {
			r = r.ended(outcome, "")
		}
		c.tell(key, a.record.Who, what, r)
	}
}

// tryToEnd is a.end, which may call the limits function of a Group. If that panics, the
// process must not end, as the function is not called for one of its requests here.
func (a *activeChange) tryToEnd(closing bool) (what, outcome string, err error) {
	defer func() {
		if p := recover(); p != nil {
			what, outcome, err = "", "", fmt.Errorf("the end of a change panicked: %v", p)
		}
	}()
	return a.end(closing)
}

// tell reports a change, with its present state, in the log and in the event stream.
func (c *controller) tell(key changeKey, who, what string, r record) change {
	told := change{At: time.Now().UTC(), Who: who, What: what, Source: r.Source, Key: r.Key, ID: r.ID, Change: r}
	args := []any{"who", who, "what", what, "source", r.Source, "key", shorten(key.of.key)}
	if r.Ended == nil && r.Error == nil {
		told.Until = r.Until
		args = append(args, "until", *r.Until)
	}
	c.logger.Info("inspect: a bucket was changed", args...)
	c.announce(key, told)
	return told
}

// close ends all changes, and returns when nothing of the controller runs any more. If
// functions of the program block, it returns after closeWait; then the changes that wait
// for them end later.
func (c *controller) close() {
	c.mu.Lock()
	c.closed = true
	keys := c.keysLocked()
	c.mu.Unlock()
	atMost(closeWait, func() {
		c.endAll(keys, "the inspector is closed")
		c.running.Wait()
	})
}

// keysLocked returns the keys of all changes that are active or being made, and so may become active.
func (c *controller) keysLocked() map[changeKey]bool {
	keys := maps.Clone(c.busy)
	for key := range c.active {
		keys[key] = true
	}
	return keys
}

// endOf ends all changes of a source that is removed. Like close it does not wait for ever.
func (c *controller) endOf(source *watched) {
	c.mu.Lock()
	source.ending = true
	keys := c.keysLocked()
	maps.DeleteFunc(keys, func(key changeKey, _ bool) bool { return key.of.source != source })
	c.mu.Unlock()
	atMost(closeWait, func() { c.endAll(keys, "the source was removed") })
}

// endAll ends changes, each without waiting for the others.
func (c *controller) endAll(keys map[changeKey]bool, why string) {
	var ends sync.WaitGroup
	for key := range keys {
		ends.Go(func() {
			c.take(key)
			defer c.leave(key)
			if a, _ := c.state(key); a != nil {
				c.end(key, a, why)
			}
		})
	}
	ends.Wait()
}

// atMost runs f, and returns when f has returned or the time is over.
func atMost(d time.Duration, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	patience := time.NewTimer(d)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
	}
}
