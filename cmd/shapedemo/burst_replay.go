package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"example.com/leakybucket/shaper"
)

// replay counts the line again, from the instants alone, and finds whoever was
// refused with a place free, or admitted with none.
func replay(m meaning, passages []*passage) (faults []string) {
	steps := stepsOf(passages)
	var line []*passage
	level, levelAt := 0.0, time.Time{}
	leak := func(at time.Time) {
		if !levelAt.IsZero() {
			level = max(0, level-m.rate*at.Sub(levelAt).Seconds())
		}
		levelAt = at
	}
	for _, s := range steps {
		switch s.kind {
		case leaves, givesUp:
			line = slices.DeleteFunc(line, func(p *passage) bool { return p == s.passage })
		case enters:
			line = append(line, s.passage)
			if n := len(line) - passedOver(line, s.at); n > m.limits.Depth {
				faults = append(faults, fmt.Sprintf("%d waited in a line of %d", n, m.limits.Depth))
			}
		case passes:
			leak(s.at)
			level++
		case isRefused:
			leak(s.at)
			if !rightly(m, s.passage.reason, len(line), passedOver(line, s.at), level) {
				faults = append(faults, fmt.Sprintf("one was refused (%v) with %d in a line of %d", s.passage.reason, len(line), m.limits.Depth))
			}
		}
	}
	return faults
}

// passedOver counts those at the head of the line whose clients have vanished.
// The shaper may have called them up already; until they wake up, and hand their
// slots on, the instants do not tell.
func passedOver(line []*passage, now time.Time) int {
	for i, p := range line {
		if p.vanished.IsZero() || p.vanished.After(now) {
			return i
		}
	}
	return len(line)
}

// rightly says whether a request is refused for a good reason, with that many
// in the line, of whom so many may have been passed over. The level counts only
// where nobody waits: elsewhere it follows the line.
func rightly(m meaning, reason error, line, over int, level float64) bool {
	const rounding = 1e-6 // of a unit: the level is a float here, and an integer in the shaper
	switch {
	case m.endless:
		return false
	case errors.Is(reason, shaper.ErrQueueFull) && m.limits.Depth == 0:
		return level > float64(m.atOnce-1)-rounding
	case errors.Is(reason, shaper.ErrQueueFull):
		return line >= m.limits.Depth && line-over <= m.limits.Depth
	case errors.Is(reason, shaper.ErrTooLate):
		return m.limits.MaxWait > 0 && float64(line+1)*m.every*(1+rounding) > m.limits.MaxWait.Seconds()
	}
	return false
}

// The kinds of a step. Of steps at the same instant the earlier kind comes
// first, as in the shaper: what is due leaves before anybody arrives.
const (
	leaves = iota
	givesUp
	passes
	enters
	isRefused
)

// A step is one change of the line, or an attempt at one.
type step struct {
	at      time.Time
	kind    int
	passage *passage
}

// stepsOf puts what happened to all requests in order.
func stepsOf(passages []*passage) []step {
	var steps []step
	for _, p := range passages {
		switch {
		case !p.refused.IsZero():
			steps = append(steps, step{p.refused, isRefused, p})
		case p.queued.IsZero():
			steps = append(steps, step{p.left, passes, p})
		case p.abandoned.IsZero():
			steps = append(steps, step{p.queued, enters, p}, step{p.left, leaves, p})
		case p.abandoned.After(p.queued): // On a coarse clock it need not be.
			steps = append(steps, step{p.queued, enters, p}, step{p.abandoned, givesUp, p})
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return a.kind - b.kind
	})
	return steps
}

// spent is how many slots clients cost that had left: those that were handed to
// them, and those that nobody got although somebody waited.
func spent(m meaning, shaped trial) int {
	return departedTooLate(shaped.passages) + lost(m, shaped)
}

// departedTooLate counts the departures of requests whose clients did not stay
// for the answer.
func departedTooLate(passages []*passage) (n int) {
	for _, p := range passages {
		if !p.left.IsZero() && !p.vanished.IsZero() {
			n++
		}
	}
	return n
}

// lost counts the slots that nobody got although somebody waited, by the
// shaper's own instants: those at the upstream depend on what else the machine
// does. A request leaves at most an interval after the one before it, or when it
// comes, if that is later. Slack may be added to that, and the lateness beyond
// it which the shaper owns up to: then the machine was late, and no slot lost.
func lost(m meaning, shaped trial) (slots int) {
	if m.endless {
		return 0
	}
	const rounding = 1e-6 // seconds
	late := m.slack().Seconds() + shaped.missed*m.every + rounding
	var before *passage
	for _, p := range slices.SortedFunc(slices.Values(shaped.passages), func(a, b *passage) int { return a.left.Compare(b.left) }) {
		if p.left.IsZero() {
			continue
		}
		if before != nil {
			waited := min(p.left.Sub(before.left).Seconds()-m.every, p.left.Sub(p.admitted()).Seconds())
			slots += max(0, int(math.Ceil((waited-late)/m.every)))
		}
		before = p
	}
	return slots
}
