package model

import (
	"fmt"
	"math"
	"time"
)

// An Answer is all that can be seen of one operation. Instants count from the
// start of the script.
type Answer struct {
	Returned       bool
	At             time.Duration // the instant of the return
	Result         string
	Retry          time.Duration // RetryAfter of a refusal
	Missed         bool          // the refusal is context.DeadlineExceeded too
	Wait           time.Duration // the result of Forecast
	Entered, Ended Event
	Look           Look

	// Estimated is set only by the model: it means that Retry and Wait are estimates
	// of when a seat becomes free.
	Estimated bool
	// Settled is set only by the model: by how much a call has changed the figures of Totals.
	Settled Figures
}

// Figures are the figures of Stats about reservations.
type Figures struct {
	Reserved                      int
	GivenBack, Charged, Forfeited uint64
}

// An Event is one call of a hook.
type Event struct {
	Hook          string
	At, Waited    time.Duration
	Cost, Waiting int
	Err           string
	Retry         time.Duration
}

// A Look is the result of Stats.
type Look struct {
	Waiting      int
	InFlight     int
	Level        float64
	Oldest, Last time.Duration
	Held         time.Duration // the end of the hold; -1: there is none
	Totals       Totals        // zero for a look that races with departures
}

// Totals are the counts of a Look.
type Totals struct {
	Departed, Abandoned                    uint64
	QueueFull, TooLate, TooCostly, Refused uint64
	Closed                                 uint64
	Wait                                   time.Duration
	Figures
}

// Results of an operation.
const (
	Left      = "left" // also of Shutdown, Close and SetLimits: no error
	Negative  = "negative cost"
	Closed    = "closed"
	TooCostly = "too costly"
	QueueFull = "queue full"
	TooLate   = "too late"
	Invalid   = "invalid limits"
	Misused   = "use Acquire" // of WaitN and AllowN with a cap

	Canceled = "context canceled"
	Exceeded = "context deadline exceeded"
	Gone     = "gone" // the error of a context that ends by Op.Late
)

// Names of hooks in an Event.
const (
	HookEnqueued  = "enqueued"
	HookDeparted  = "departed"
	HookRefused   = "refused"
	HookAbandoned = "abandoned"
)

// String returns the answer in one line, with durations in nanoseconds.
func (a Answer) String() string {
	if !a.Returned {
		return "never returned"
	}
	text := fmt.Sprintf("%s at %d", a.Result, int64(a.At))
	if a.Retry != 0 {
		text += fmt.Sprintf(", retry %d", int64(a.Retry))
	}
	if a.Missed {
		text += ", deadline missed"
	}
	if a.Wait != 0 {
		text += fmt.Sprintf(", wait %d", int64(a.Wait))
	}
	for _, e := range []Event{a.Entered, a.Ended} {
		if e.Hook != "" {
			text += fmt.Sprintf("; %s at %d after %d, cost %d, waiting %d, error %q, retry %d",
				e.Hook, int64(e.At), int64(e.Waited), e.Cost, e.Waiting, e.Err, int64(e.Retry))
		}
	}
	if a.Look != (Look{}) {
		text += fmt.Sprintf("; looks %+v", a.Look)
	}
	return text
}

// Difference returns where got, the answers of an engine to s, first differs from
// want, the answers of the model; "" if they are equal. Levels are compared as floats,
// with a tolerance. RetryAfters beyond 100 years count as equal: they are sums that
// saturate, which no guarantee states to the nanosecond.
func Difference(s Script, got, want []Answer) string {
	for i := range want {
		g, w := got[i], want[i]
		g.Estimated, g.Settled = w.Estimated, w.Settled
		for _, retry := range []*time.Duration{&g.Retry, &g.Ended.Retry, &w.Retry, &w.Ended.Retry} {
			*retry = min(*retry, 100*year)
		}
		if math.Abs(g.Look.Level-w.Look.Level) <= 1e-9*max(1, w.Look.Level) {
			g.Look.Level = w.Look.Level
		}
		if g != w {
			return fmt.Sprintf("operation %d %s\nengine: %v\nmodel:  %v", i, s.Ops[i].literal(), g, w)
		}
	}
	return ""
}
