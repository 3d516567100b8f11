// Package adapt finds the rate that an upstream bears, between a floor and a ceiling, from what it answers.
//
// A [Controller] changes the rate of one [shaper.Shaper] whose requests go to one upstream. In front of HTTP
// its [Controller.RoundTripper] observes the answers:
//
//	s, err := shaper.New(shaper.Limits{Rate: 200, Depth: 500})
//	...
//	a, err := adapt.New(s, adapt.Config{Min: 5, Slow: 300 * time.Millisecond})
//	...
//	client := &http.Client{Transport: &shaper.Transport{Limiter: s, Base: a.RoundTripper(nil)}}
//
// Each numbered sentence is a promise; ARCHITECTURE.md names the test that holds it.
//
//  1. One event lowers the rate once: a decrease needs a call that left after the decrease before.
//  2. A refusal lowers at once. A slow or failed answer lowers only if at least half of the last ten answers
//     are slow or failed.
//  3. A lone refusal takes at most a fifth of the rate, and a decrease at most half of it. The rate is never
//     below Min, unless the operator's is.
//  4. Only good answers to calls that left after the last decrease raise the rate, and only while it is what
//     keeps requests waiting. An idle hour, a hold, half load and a cap without a free seat raise nothing.
//  5. The rate at most doubles in a second; in two round trips, or in four calls, if these take longer.
//  6. A rate that somebody else puts in force is the ceiling from the next answer on. All other Limits stay
//     the operator's. A higher ceiling is no new rate.
//  7. A hold after Retry-After stays the Transport's, and the decrease comes once beside it.
//  8. A Shaper for which all this would not hold is an error of [New].
//
// When not to use it, and how it compares with others, is in docs/adapt.md.
package adapt

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A Config says within which bounds a [Controller] looks for the rate, and which answers are slow.
type Config struct {
	// Min and Max bound the rate, in cost units per second as in [shaper.Limits]. A Max of 0 means the rate of
	// the Shaper, which must then be finite, and a Min of 0 a hundredth of Max.
	Min, Max rate.Limit

	// Start is the first rate. From there the rate doubles in each second or so (promise 5), until the
	// upstream refuses or answers slowly. 0 means Min.
	Start rate.Limit

	// Slow is the latency above which an answer is slow. With 0 latency is not judged. Take twice to three
	// times the latency of an upstream that is not busy.
	Slow time.Duration
}

// An Outcome is how the upstream has answered a call.
type Outcome int

const (
	OK      Outcome = iota // it has served the call, or found a fault with it
	Refused                // it says that calls are too many
	Failed                 // no answer in time, or an error of a gateway
)

// The words of [Stats.Reason].
const (
	refused = "refused"
	failed  = "failed"
	slow    = "slow"
)

// A Controller finds the rate of a [shaper.Shaper].
//
// Make one with [New], for each Shaper and its upstream; the zero Controller is not usable. Most programs want
// [Controller.RoundTripper], which observes the answers to HTTP requests. Others call [Controller.Observe]. Two
// Controllers of one Shaper would each take the rate of the other for an operator's.
//
// If the Limits that an operator has set forbid a rate, because the Burst would take more than 365 days to drain, the
// rate stays as it is until they allow it.
//
// A Controller is safe for concurrent use. It has no goroutine and no timer: all happens in Observe.
type Controller struct {
	shaper *shaper.Shaper
	config Config

	mu       sync.Mutex
	closed   bool
	operator rate.Limit // what Close puts back
	max      rate.Limit // the ceiling: that of Config, or the rate that somebody else has set since
	inForce  rate.Limit // the rate that this Controller put in force last
	curve    curve
	latest   answers
	stats    Stats // but for the rates

	observed time.Time // when the latest answer came
	used     time.Time // until when the use of the rate has been counted; zero: it was not used at the latest answer
	turned   time.Time // when the latest event came that lowers the rate, also if it was at the floor already
	drained  time.Time // until then slow answers are those of calls that the upstream has in its own queue

	queueFull, tooLate uint64        // the Shaper's counts at the latest answer
	totalWait          time.Duration // and how long its requests had waited
}

// New makes a [Controller] of a Shaper, and puts [Config.Start] in force. On an error it returns nil and changes
// nothing: a field of c is not valid, or the Shaper is not one whose rate can follow the answers of an upstream.
//
// That is a Shaper WithBucket, because its rate belongs to all processes that share the Bucket, and a
// Controller could not tell the Controller of another process from the operator; and one WithDryRun, because its requests
// leave whatever the rate is, so that the answers say nothing about it.
func New(s *shaper.Shaper, c Config) (*Controller, error) {
	st := s.Stats()
	switch {
	case st.Bucket.State != "":
		return nil, fmt.Errorf("adapt: the level of the Shaper %q is in a Bucket, so its rate belongs to all processes that share it", st.Name)
	case st.DryRun:
		return nil, fmt.Errorf("adapt: the Shaper %q runs dry, so what the upstream answers says nothing about the rate", st.Name)
	}
	if err := c.complete(st.Limits); err != nil {
		return nil, err
	}
	a := &Controller{shaper: s, config: c, max: c.Max, inForce: c.Start}
	if err := s.UpdateLimits(func(l shaper.Limits) shaper.Limits {
		a.operator, l.Rate = l.Rate, c.Start
		return l
	}); err != nil {
		return nil, fmt.Errorf("adapt: %w", err)
	}
	now := time.Now()
	a.observed, a.used = now, now
	a.curve.start(now, float64(c.Start))
	a.queueFull, a.tooLate, a.totalWait = st.QueueFull, st.TooLate, st.TotalWait
	return a, nil
}

// complete puts the defaults in place of zeros, or returns which field is wrong with a Shaper that has those Limits.
func (c *Config) complete(l shaper.Limits) error {
	if c.Max == 0 {
		if l.Rate == rate.Inf {
			return errors.New("adapt: Config.Max is 0, which means the rate of the Shaper, and that is rate.Inf: a ceiling must be finite")
		}
		c.Max = l.Rate
	}
	if c.Min == 0 {
		c.Min = c.Max / 100
	}
	if c.Start == 0 {
		c.Start = c.Min
	}
	for _, f := range []struct {
		name  string
		value rate.Limit
	}{{"Max", c.Max}, {"Min", c.Min}, {"Start", c.Start}} {
		if f.value == rate.Inf {
			return fmt.Errorf("adapt: Config.%s is rate.Inf, must be finite", f.name)
		}
		l.Rate = f.value
		if err := l.Validate(); err != nil {
			return fmt.Errorf("adapt: Config.%s is %v: %w", f.name, float64(f.value), err)
		}
	}
	switch {
	case c.Min > c.Max:
		return fmt.Errorf("adapt: Config.Min is %v, must be at most Max, which is %v", float64(c.Min), float64(c.Max))
	case c.Start < c.Min || c.Start > c.Max:
		return fmt.Errorf("adapt: Config.Start is %v, must be from Min to Max, which are %v and %v", float64(c.Start), float64(c.Min), float64(c.Max))
	case c.Slow < 0:
		return fmt.Errorf("adapt: Config.Slow is %v, must not be negative", c.Slow)
	}
	return nil
}

// Observe takes the answer to a call into account, which has just come. latency is the time from the departure of the
// call to the head of the answer, without the wait in line; a negative one counts as 0. An Outcome that is none of
// the three changes nothing, and after [Controller.Close] none does.
func (a *Controller) Observe(o Outcome, latency time.Duration) {
	latency = max(latency, 0)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || o < OK || o > Failed {
		return
	}
	now := time.Now()
	st := a.shaper.Stats()
	a.followLocked(st.Limits.Rate)
	given := answer{refused: o == Refused, failed: o == Failed, slow: o == OK && a.config.Slow > 0 && latency > a.config.Slow}
	a.noteUseLocked(&given, st)
	a.latest.add(given)

	a.curve.noteAnswer(now.Sub(a.observed), float64(a.inForce))
	a.observed = now
	if !given.mayRaise() || !a.latest.areUsed() {
		a.used = time.Time{} // Nor does the time from now until the next answer count: a hold raises nothing.
	}
	if o == OK {
		a.curve.noteRoundTrip(latency)
	}
	if !now.Add(-latency).After(a.turned) {
		return // It left before the last decrease, so it says nothing about the rate in force.
	}
	switch {
	case o == Refused:
		a.lowerLocked(now, refused, latency)
	case o == Failed && a.latest.mostFail():
		a.lowerLocked(now, failed, latency)
	case given.slow && a.latest.mostFail() && !now.Before(a.drained):
		a.lowerLocked(now, slow, latency)
	case o == OK && !given.slow && given.mayRaise() && a.latest.areUsed():
		a.raiseLocked(now)
	}
}

// followLocked makes a rate that somebody else has put in force the ceiling.
func (a *Controller) followLocked(found rate.Limit) {
	if found == a.inForce {
		return
	}
	a.operator, a.max = found, found
	to := max(min(a.inForce, found), a.floor())
	if to != found {
		a.putLocked(time.Now(), found, to) // A higher ceiling is no new rate.
		return
	}
	a.inForce = found
	a.curve.forced(time.Now(), float64(found))
}

// fastest is the highest finite rate of a Shaper.
const fastest rate.Limit = 1e9

// floor returns the rate below which no answer lowers it.
func (a *Controller) floor() rate.Limit { return min(a.config.Min, a.max) }

// noteUseLocked says of an answer whether the rate kept requests waiting when it came. While the line is held
// or no seat is free, it is not the rate that does.
//
// At the answer to a worker that calls alone nobody else waits: it has waited itself, and the next request would.
func (a *Controller) noteUseLocked(given *answer, st shaper.Stats) {
	free := st.HeldUntil.IsZero() && (st.Limits.InFlight == 0 || st.InFlight < st.Limits.InFlight)
	given.used = free && (st.Waiting > 0 || st.QueueFull > a.queueFull || st.TooLate > a.tooLate)
	given.paced = free && st.TotalWait > a.totalWait && st.Free == 0
	a.queueFull, a.tooLate, a.totalWait = st.QueueFull, st.TooLate, st.TotalWait
}

// lowerLocked lowers the rate for a reason, after an answer that took so long.
func (a *Controller) lowerLocked(now time.Time, reason string, latency time.Duration) {
	from, floor := a.inForce, a.floor()
	bad := a.latest.count(func(g answer) bool { return g.refused || g.failed })
	factor := min(max(1-float64(bad)/float64(len(a.latest.ring)), 0.5), 0.9)
	if reason == slow {
		factor = 0.85
		a.drained = now.Add(5 * (latency - a.config.Slow/2))
	}
	to := max(from*rate.Limit(factor), floor)
	a.turned = now
	// So few calls get through that the rate at which the upstream refused says nothing about what it bears.
	lost := to == floor || a.latest.count(func(g answer) bool { return g.refused }) >= 9 ||
		a.latest.count(func(g answer) bool { return g.failed }) == len(a.latest.ring)
	a.curve.turn(float64(from), float64(to), lost, reason == refused && bad == 1)
	if to == from || !a.putLocked(now, from, to) {
		return
	}
	a.stats.LastDecrease, a.stats.Reason = now, reason
	a.stats.Decreases++
	switch reason {
	case refused:
		a.stats.Refused++
	case failed:
		a.stats.Failed++
	case slow:
		a.stats.Slow++
	}
}

// raiseLocked raises the rate after a good answer.
func (a *Controller) raiseLocked(now time.Time) {
	since := a.used
	switch {
	case since.IsZero():
		since = now
	case a.turned.After(since):
		since = a.turned
	}
	a.used = now
	most := min(a.max, fastest)
	if a.inForce >= most {
		return
	}
	to := min(rate.Limit(a.curve.rise(now, now.Sub(since), float64(a.inForce))), most)
	// Each change re-times the line, so a small one waits until there is more of it.
	if to >= a.inForce*1.005 || to == most {
		a.putLocked(now, a.inForce, to)
	}
}

// putLocked puts a rate in force in place of another one, and reports whether it has. It has not if
// somebody else has changed the rate meanwhile, which the next answer follows, or if the Limits forbid it.
func (a *Controller) putLocked(now time.Time, from, to rate.Limit) bool {
	same := false
	err := a.shaper.UpdateLimits(func(l shaper.Limits) shaper.Limits {
		if same = l.Rate == from; same {
			l.Rate = to
		}
		return l
	})
	if err != nil || !same {
		return false
	}
	a.inForce = to
	a.curve.forced(now, float64(to))
	return true
}

// Stats is the state of a [Controller].
type Stats struct {
	Rate     rate.Limit // which the Controller has put in force
	Min, Max rate.Limit // the bounds: Max is the rate that somebody else has set last, and Min is never above it

	Decreases    uint64    // how often the rate was lowered; the sum of Refused, Failed and Slow
	LastDecrease time.Time // zero: never
	Reason       string    // of the last decrease: "refused", "failed" or "slow"; "" if there was none

	Refused, Failed, Slow uint64 // Decreases, by reason
}

// Stats returns the state of the Controller.
func (a *Controller) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	st := a.stats
	st.Rate, st.Min, st.Max = a.inForce, a.floor(), a.max
	return st
}

// Limits returns the Limits of the Shaper with the ceiling in place of the rate in force, as an operator has set them.
func (a *Controller) Limits() shaper.Limits {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.shaper.Limits()
	if !a.closed && l.Rate == a.inForce {
		l.Rate = a.max
	}
	return l
}

// Close puts the rate of the operator back in force: that from before [New], or the one set since. It may be called
// again, and does nothing then.
func (a *Controller) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	a.closed = true
	a.putLocked(time.Now(), a.inForce, a.operator) // If it does not, the operator's is in force.
}

// An answer is one of the latest.
type answer struct {
	refused, failed, slow bool
	used                  bool // requests waited in line, or were refused by the Shaper, because of the rate
	paced                 bool // a call had waited, and the next one would
}

// mayRaise reports whether the rate was used when the answer came.
func (g answer) mayRaise() bool { return g.used || g.paced }

// answers are the latest ten.
type answers struct {
	ring [10]answer
	n    int // how many there were
}

func (l *answers) add(g answer) {
	l.ring[l.n%len(l.ring)] = g
	l.n++
}

func (l *answers) count(is func(answer) bool) (n int) {
	for _, g := range l.ring[:min(l.n, len(l.ring))] {
		if is(g) {
			n++
		}
	}
	return n
}

// mostFail reports whether at least half of ten are slow or failed.
func (l *answers) mostFail() bool {
	return 2*l.count(func(g answer) bool { return g.slow || g.failed }) >= len(l.ring)
}

// areUsed reports whether the rate was used at most of them; among the first ones, at most of the next one too.
// If nobody waited when they came, but calls had waited before, it must have been so of all ten: with half load, by
// chance, it is so of some.
func (l *answers) areUsed() bool {
	return 2*l.count(func(g answer) bool { return g.used }) > min(l.n+1, len(l.ring)) ||
		l.count(func(g answer) bool { return g.paced }) == len(l.ring)
}
