package model

import (
	"fmt"
	"math"
	"time"
)

// An answer is all that can be seen of one operation.
type answer struct {
	returned       bool
	at             time.Duration // instant of the return
	result         string
	retry          time.Duration // RetryAfter of a refusal
	missed         bool          // the refusal is context.DeadlineExceeded too
	wait           time.Duration // what Forecast said
	entered, ended event
	look           look
}

// An event is what a hook was told.
type event struct {
	hook          string
	at, waited    time.Duration
	cost, waiting int
	err           string
	retry         time.Duration
}

// A look is what Stats said.
type look struct {
	waiting      int
	inFlight     int
	level        float64
	oldest, last time.Duration
	held         time.Duration // until when; -1: it is not
	totals       totals        // left out of a look that races with departures
}

type totals struct {
	departed, abandoned                    uint64
	queueFull, tooLate, tooCostly, refused uint64
	closed                                 uint64
	wait                                   time.Duration
}

// Results of a call. The others are the texts of context errors.
const (
	resultLeft      = "left" // also of Shutdown, Close, SetLimits: no error
	resultNegative  = "negative cost"
	resultClosed    = "closed"
	resultTooCostly = "too costly"
	resultQueueFull = "queue full"
	resultTooLate   = "too late"
	resultInvalid   = "invalid limits"
	resultMisused   = "use Acquire" // of WaitN, and of AllowN, with a cap

	resultCanceled = "context canceled"
	resultExceeded = "context deadline exceeded"
	resultGone     = "gone" // of a scriptContext
)

// String is the answer in a line, durations in nanoseconds.
func (a answer) String() string {
	if !a.returned {
		return "never returned"
	}
	s := fmt.Sprintf("%s at %d", a.result, int64(a.at))
	if a.retry != 0 {
		s += fmt.Sprintf(", retry %d", int64(a.retry))
	}
	if a.missed {
		s += ", deadline missed"
	}
	if a.wait != 0 {
		s += fmt.Sprintf(", wait %d", int64(a.wait))
	}
	for _, e := range []event{a.entered, a.ended} {
		if e.hook != "" {
			s += fmt.Sprintf("; %s at %d after %d, cost %d, waiting %d, error %q, retry %d",
				e.hook, int64(e.at), int64(e.waited), e.cost, e.waiting, e.err, int64(e.retry))
		}
	}
	if a.look != (look{}) {
		s += fmt.Sprintf("; looks %+v", a.look)
	}
	return s
}

// finish notes the return of a call.
func (m *model) finish(w *waiter, result string) {
	a := &m.answers[w.index]
	a.returned, a.at, a.result = true, m.now, result
}

// ended notes what the last hook of a call is told.
func (m *model) ended(w *waiter, hook, err string) {
	a := &m.answers[w.index]
	a.ended = event{hook, m.now, m.now - w.came, w.n, len(m.line), err, a.retry}
	m.last = max(m.last, w.came)
}

func (m *model) leaveOpen(why string) {
	if m.open == "" {
		m.open = why
	}
}

// difference is where what a script showed is not what it should. Levels are
// compared as floats. RetryAfters of centuries come of sums that saturate,
// which is not said to the nanosecond.
func difference(s script, got, want []answer) string {
	for i := range want {
		g, w := got[i], want[i]
		for _, again := range []*time.Duration{&g.retry, &g.ended.retry, &w.retry, &w.ended.retry} {
			*again = min(*again, 100*year)
		}
		if math.Abs(g.look.level-w.look.level) <= 1e-9*max(1, w.look.level) {
			g.look.level = w.look.level
		}
		if g != w {
			return fmt.Sprintf("operation %d %s\nshaper: %v\nmodel:  %v", i, s.ops[i].literal(), g, w)
		}
	}
	return ""
}
