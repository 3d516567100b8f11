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
	DryRun     bool          // WithDryRun: all that is told is of the shadow
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

// refusals counts refusals by reason. There is no counter for notRefused, which keeps
// cold within 80 bytes.
type refusals [reasons - 1]uint64

func (by *refusals) count(why reason) { by[why-1]++ }

func (by *refusals) of(why reason) uint64 { return by[why-1] }

// setRefusals sets the fields that count refusals.
func (st *Stats) setRefusals(by *refusals) {
	st.QueueFull, st.TooLate = by.of(refusedFull), by.of(refusedLate)
	st.TooCostly, st.Closed = by.of(refusedCostly), by.of(refusedClosed)
	st.Refused = st.QueueFull + st.TooLate + st.TooCostly + st.Closed
}

// Stats returns the state of the shaper now. It works on a closed one too.
func (s *Shaper) Stats() Stats {
	s.mustBeMade()
	now := s.lockFlow(&s.flow)
	defer s.unlockAndArm()
	return s.statsLocked(&s.flow, now)
}

// stats is what is known of a flow, with what it shares with others.
func (d *dispatcher) statsLocked(f *flow, now int64) Stats {
	st := f.stats(now)
	st.Name, st.DryRun = d.name, d.dryRun
	st.Precise, st.Fallback = d.ticker.precise, d.ticker.failure
	if f.entered >= 0 {
		st.LastCall = d.timeOf(f.entered)
	}
	if hold := f.bucket.heldUntil().whole; now < hold {
		st.HeldUntil = d.timeOf(hold)
	}
	return st
}

// totals are what the flows of a Group count together, which outlives them. A
// Shaper's one flow has it all.
type totals struct {
	departed, abandoned uint64
	refused             refusals
	wait                int64   // of those that departed, in nanoseconds
	missed              float64 // in cost units
}

// countDeparture counts a request that has left a flow, entered at that instant
// and waited for so long.
func (d *dispatcher) countDepartureLocked(f *flow, entered, waited int64) {
	f.entered = max(f.entered, entered)
	f.departed++
	f.wait = sum(f.wait, waited)
	if d.keyed {
		d.totals.departed++
		d.totals.wait = sum(d.totals.wait, waited)
	}
}

// countRefusal counts a request that was refused, for that reason.
func (d *dispatcher) countRefusalLocked(f *flow, entered int64, why reason) {
	f.entered = max(f.entered, entered)
	f.bucket.coldOrNew().refused.count(why)
	if d.keyed {
		d.totals.refused.count(why)
	}
}

// countAbandonment counts a request whose context ended.
func (d *dispatcher) countAbandonmentLocked(f *flow, entered int64) {
	f.entered = max(f.entered, entered)
	f.bucket.coldOrNew().abandoned++
	if d.keyed {
		d.totals.abandoned++
	}
}
