package shaper

import (
	"time"

	"example.com/leakybucket/internal/exact"
)

// Stats is the state of a [Shaper] at one instant: first gauges, then totals, which only
// grow. A call is counted when it returns. So while no call is between its slot and its
// return, Departed + Refused + Abandoned + Waiting is the number of calls that had a
// live context and a cost above 0. A retry of a [Transport] counts as one more call.
type Stats struct {
	Name   string // set by WithName
	Limits Limits // as they were given: a Burst of 0 stays 0

	Waiting      int           // requests in the line
	Level        float64       // the level of the bucket, in cost units
	OldestWait   time.Duration // how long the head of the line has waited; a retry of a Transport starts at 0
	InFlight     int           // requests that have left and not ended; 0 without a cap
	DryRun       bool          // WithDryRun is set: the numbers are those of the shadow
	HeldUntil    time.Time     // no request leaves before; zero if the line is not held
	BlockedUntil time.Time     // newcomers are refused until then, because of WithBlock; zero if the bucket is not blocked
	LastCall     time.Time     // when the latest call that has been counted came; zero if there was none
	LastRefusal  time.Time     // when the latest request was refused that is counted in Refused; zero if none was
	Precise      bool          // the ticker waits on a kernel timer (tens of microseconds), not on a Go timer
	Fallback     string        // why no kernel timer could be had when one was last wanted; empty if one was had, or none wanted, as in a synctest bubble

	Departed  uint64 // requests that left
	Refused   uint64 // requests refused; the sum of the next five
	Abandoned uint64 // requests whose context ended before their call returned

	QueueFull uint64 // Refused with ErrQueueFull
	TooLate   uint64 // Refused with ErrTooLate
	TooCostly uint64 // Refused with ErrTooCostly
	Closed    uint64 // Refused with ErrClosed

	Unavailable uint64 // Refused with ErrUnavailable

	TotalWait time.Duration // the sum of the waits of Departed, from admission until each was given its slot
	Missed    float64       // cost units lost to lateness beyond Limits.Slack

	Bucket BucketStats // of the shared bucket; zero without WithBucket
}

// refusals counts refusals by reason. There is no counter for notRefused, which keeps
// cold within 96 bytes.
type refusals [reasons - 1]uint64

func (r *refusals) count(why reason) { r[why-1]++ }

func (r *refusals) of(why reason) uint64 { return r[why-1] }

// setRefusals sets the fields that count refusals.
func (st *Stats) setRefusals(by *refusals) {
	st.QueueFull, st.TooLate = by.of(refusedFull), by.of(refusedLate)
	st.TooCostly, st.Closed = by.of(refusedCostly), by.of(refusedClosed)
	st.Unavailable = by.of(refusedUnavailable)
	st.Refused = st.QueueFull + st.TooLate + st.TooCostly + st.Closed + st.Unavailable
}

// Stats returns the state of the Shaper now. It works on a closed one too.
func (s *Shaper) Stats() Stats {
	s.mustBeMade()
	now := s.lockFlow(&s.flow)
	defer s.unlockAndArm()
	st := s.statsLocked(&s.flow, now)
	if s.stripes != nil {
		s.stripes.addTo(&st, s.flow.bucket.cold.refused, &s.dispatcher)
	}
	return st
}

// statsLocked returns the [Stats] of a flow.
func (d *dispatcher) statsLocked(f *flow, now int64) Stats {
	st := f.stats(now)
	st.Name, st.DryRun = d.name, d.isDryRun()
	st.Precise, st.Fallback = d.ticker.precision()
	if f.entered >= 0 {
		st.LastCall = d.timeOf(f.entered)
	}
	if st.Refused > 0 {
		st.LastRefusal = d.timeOf(f.bucket.cold.refusedAt)
	}
	if until := d.blocks.end(f); now < until {
		st.BlockedUntil = d.timeOf(until)
	}
	if hold := f.bucket.coldOrNone().hold.Whole(); now < hold {
		st.HeldUntil = d.timeOf(hold)
	}
	switch sf := d.shared.flowEvenAtInf(f); {
	case sf != nil:
		st.Bucket = sf.statsLocked()
	case d.mode&modeShared != 0: // A bucket that has nothing to share, as all have in a closed Group.
		all := d.shared.stats()
		st.Bucket.State, st.Bucket.Err = all.State, all.Err
	}
	return st
}

// totals are the counts of all flows of a [Group] together, which outlive the flows. A
// [Shaper] has one flow, and does not use them.
type totals struct {
	departed, abandoned uint64
	refused             refusals
	wait                int64   // the sum of the waits of those that departed, in nanoseconds
	missed              float64 // cost units lost to lateness beyond slack
}

// add adds the counts of others.
func (t *totals) add(o *totals) {
	t.departed += o.departed
	t.abandoned += o.abandoned
	for i, n := range o.refused {
		t.refused[i] += n
	}
	t.wait = exact.Sum(t.wait, o.wait)
	t.missed += o.missed
}

// A watch is what a dispatcher is told of requests for those who look at it: counts, histograms,
// the latest refusals, and recordings. It decides nothing.
type watch struct {
	totals      *totals      // of all keys together; nil: it belongs to a Shaper
	measures    *measures    // nil: no request has waited yet
	refusalRing *refusalRing // nil: no request has been refused yet
}

// countPassLocked counts a request that has left f as it came, now.
func (o *watch) countPassLocked(f *flow, now int64) {
	f.entered = now // No call has come later.
	f.departed++
	if o.totals != nil {
		o.totals.departed++
	}
}

// countDepartureLocked counts a request that has left the line of f. It entered at the instant
// entered and waited for that many nanoseconds.
func (o *watch) countDepartureLocked(f *flow, entered, waited int64) {
	f.entered = max(f.entered, entered)
	f.departed++
	f.wait = exact.Sum(f.wait, waited)
	if o.totals != nil {
		o.totals.departed++
		o.totals.wait = exact.Sum(o.totals.wait, waited)
	}
}

// countRefusalLocked counts a request that came at the instant entered and was refused at the
// instant at, and why.
func (o *watch) countRefusalLocked(f *flow, entered, at int64, why reason) {
	f.entered = max(f.entered, entered)
	c := f.bucket.coldOrNew()
	c.refused.count(why)
	c.refusedAt = max(c.refusedAt, at)
	if o.totals != nil {
		o.totals.refused.count(why)
	}
}

// countAbandonmentLocked counts a request whose context ended.
func (o *watch) countAbandonmentLocked(f *flow, entered int64) {
	f.entered = max(f.entered, entered)
	f.bucket.coldOrNew().abandoned++
	if o.totals != nil {
		o.totals.abandoned++
	}
}
