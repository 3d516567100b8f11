package model

import (
	"fmt"
	"math"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A script is what happens to one shaper: its first limits and a list of
// operations, the instants of which never decrease.
type script struct {
	limits shaper.Limits
	ops    []op
}

// An op is one operation of a script. Instants count from the start.
type op struct {
	at   time.Duration
	kind opKind
	// race has the operation start beside everything that is due at its
	// instant; without it all that has happened before.
	race bool

	n        int           // of a call that may wait, opAllow, opForecast: the cost
	deadline time.Duration // of a call that may wait, opShutdown: of the context; 0: none
	deaf     bool          // of a call that may wait: the context states its deadline but never ends by it
	late     time.Duration // of a call that may wait: Err says gone from then on, and Done stays open; 0: never
	target   int           // of opCancel, opRelease: index of the call that ends; -1: none
	limits   shaper.Limits // of setting
	hold     time.Duration // of opHold
}

type opKind int

const (
	opWait opKind = iota // WaitN
	opAllow
	opForecast
	opLook // Stats
	opSet  // SetLimits
	opCancel
	opClose    // Close
	opShutdown // Shutdown
	opAcquire
	opRelease // what Acquire returned
	opHold
)

var kindNames = [...]string{
	"opWait", "opAllow", "opForecast", "opLook", "opSet", "opCancel", "opClose", "opShutdown",
	"opAcquire", "opRelease", "opHold",
}

// mayWait says whether the operation is a call that can wait in the line.
func (o op) mayWait() bool { return o.kind == opWait || o.kind == opAcquire }

// hasTarget says whether the operation is about another one.
func (o op) hasTarget() bool { return o.kind == opCancel || o.kind == opRelease }

// String is the script as a Go literal, to be played again from a test.
func (s script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "script{limits: %s, ops: []op{\n", literal(s.limits))
	for _, o := range s.ops {
		fmt.Fprintf(&b, "\t%s,\n", o.literal())
	}
	return b.String() + "}}"
}

func (o op) literal() string {
	fields := []string{fmt.Sprintf("at: %d, kind: %s", int64(o.at), kindNames[o.kind])}
	note := func(shown bool, format string, value any) {
		if shown {
			fields = append(fields, fmt.Sprintf(format, value))
		}
	}
	note(o.race, "race: %v", o.race)
	note(o.mayWait() || o.kind == opAllow || o.kind == opForecast, "n: %d", o.n)
	note(o.deadline != 0, "deadline: %d", int64(o.deadline))
	note(o.deaf, "deaf: %v", o.deaf)
	note(o.late != 0, "late: %d", int64(o.late))
	note(o.hasTarget(), "target: %d", o.target)
	note(o.kind == opSet, "limits: %s", literal(o.limits))
	note(o.kind == opHold, "hold: %d", int64(o.hold))
	return "{" + strings.Join(fields, ", ") + "}"
}

func literal(l shaper.Limits) string {
	r := fmt.Sprintf("%v", float64(l.Rate))
	switch {
	case l.Rate == rate.Inf:
		r = "rate.Inf"
	case math.IsNaN(float64(l.Rate)):
		r = "rate.Limit(math.NaN())"
	}
	return fmt.Sprintf("shaper.Limits{Rate: %s, Burst: %d, Depth: %d, MaxWait: %d, InFlight: %d}",
		r, l.Burst, l.Depth, int64(l.MaxWait), l.InFlight)
}

// without is the script less operation i.
func (s script) without(i int) script {
	rest := script{limits: s.limits}
	for j, o := range s.ops {
		if j == i {
			continue
		}
		if o.hasTarget() && o.target == i {
			o.target = -1
		} else if o.hasTarget() && o.target > i {
			o.target--
		}
		rest.ops = append(rest.ops, o)
	}
	return rest
}

// predict is what a model with the mistake given (or none) says that the
// script shows. Whoever still waits at the end of a script is refused by a
// Close.
func (s script) predict(with mistake) (answers []answer, open string) {
	m := newModel(s.limits)
	m.mistake = with
	for i := range s.ops {
		m.do(&s.ops[i])
	}
	m.end()
	return m.answers, m.open
}

func (m *model) end() {
	if len(m.line) > 0 {
		m.close()
	}
}
