package shaper

import "time"

// Stats is what a Shaper knows of itself at one instant: gauges first, then
// totals, which only grow. A call is counted when it returns, so with no call
// between its slot and its return Departed + Refused + Abandoned + Waiting
// equals all calls with a live context and a cost above 0. A retry of a Transport
// counts as one more call.
type Stats struct {
	Name   string // as given by WithName
	Limits Limits // as given: a Burst of 0 stays 0

	Waiting    int           // requests in the line
	Level      float64       // of the bucket, in cost units
	OldestWait time.Duration // of the head of the line, so far; a retry of a Transport begins anew
	InFlight   int           // requests that have left and not given their place back; 0 without a cap
	HeldUntil  time.Time     // nobody leaves before; zero: the line is not held
	LastCall   time.Time     // latest entry of a call that has been counted; zero: none yet
	Precise    bool          // a timer of the kernel's lets the line leave, within tens of microseconds, not one of Go's
	Fallback   string        // why not, where it was wanted last; "": it was to be had, or not wanted, as in a bubble

	Departed  uint64 // requests that left
	Refused   uint64 // requests refused; the sum of the next four
	Abandoned uint64 // requests whose context ended before their call returned

	QueueFull uint64 // Refused with ErrQueueFull
	TooLate   uint64 // Refused with ErrTooLate
	TooCostly uint64 // Refused with ErrTooCostly
	Closed    uint64 // Refused with ErrClosed

	TotalWait time.Duration // from admission to slot, summed over Departed
	Missed    float64       // cost units lost to lateness beyond Slack
}

// totals are what a shaper counts. Its lock guards them.
type totals struct {
	departed, abandoned uint64
	refused             [reasons]uint64

	wait    int64 // of those that departed, in nanoseconds
	called  bool
	entered int64 // the latest entry of a call that was counted, if one was
}

// enter notes when a call that is counted now was made.
func (t *totals) enter(at int64) { t.called, t.entered = true, max(t.entered, at) }

// Stats returns the state of the shaper now. It works on a closed one too.
func (s *Shaper) Stats() Stats {
	s.mustBeMade()
	now := s.lock()
	defer s.unlock()
	t := s.totals
	st := Stats{
		Name:      s.name,
		Limits:    s.limits,
		Waiting:   s.line.len,
		InFlight:  s.places.taken,
		Level:     s.bucket.level(now),
		Precise:   s.ticker.precise,
		Fallback:  s.ticker.failure,
		Departed:  t.departed,
		Refused:   t.refused[refusedFull] + t.refused[refusedLate] + t.refused[refusedCostly] + t.refused[refusedClosed],
		Abandoned: t.abandoned,
		QueueFull: t.refused[refusedFull],
		TooLate:   t.refused[refusedLate],
		TooCostly: t.refused[refusedCostly],
		Closed:    t.refused[refusedClosed],
		TotalWait: time.Duration(t.wait),
		Missed:    s.bucket.missed,
	}
	if t.called {
		st.LastCall = s.at(t.entered)
	}
	if now < s.bucket.hold.whole {
		st.HeldUntil = s.at(s.bucket.hold.whole)
	}
	if head := s.line.head; head != nil {
		st.OldestWait = time.Duration(now - head.admitted)
	}
	return st
}
