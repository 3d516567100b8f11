package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"example.com/leakybucket/shaper"
)

// checkAgainstModel simulates the line from the recorded instants alone. It
// returns a fault for each request that was refused although there was room for
// it, or admitted although there was none.
func checkAgainstModel(info limitsInfo, requests []*requestLog) (faults []string) {
	steps := stepsOf(requests)
	var line []*requestLog
	level, levelAt := 0.0, time.Time{}
	gaveUp, gaveUpAt := 0, time.Time{} // how many have given up at the same instant, the latest
	leak := func(at time.Time) {
		if !levelAt.IsZero() {
			level = max(0, level-info.rate*at.Sub(levelAt).Seconds())
		}
		levelAt = at
	}
	for _, s := range steps {
		switch s.kind {
		case leaves, givesUp:
			line = slices.DeleteFunc(line, func(r *requestLog) bool { return r == s.request })
			if s.kind == givesUp {
				if !s.at.Equal(gaveUpAt) {
					gaveUp, gaveUpAt = 0, s.at
				}
				gaveUp++
			}
		case enters:
			line = append(line, s.request)
			if n := len(line) - abandonedHeads(line); n > info.limits.Depth {
				faults = append(faults, fmt.Sprintf("%d waited in a line of %d", n, info.limits.Depth))
			}
		case passes:
			leak(s.at)
			level++
		case refused:
			leak(s.at)
			right := refusalIsRight(info, s.request.reason, len(line), abandonedHeads(line), level)
			if !right && s.at.Equal(gaveUpAt) { // It may have been refused before some of them gave up.
				right = refusalIsRight(info, s.request.reason, len(line)+gaveUp, abandonedHeads(line)+gaveUp, level)
			}
			if !right {
				faults = append(faults, fmt.Sprintf("a request was refused (%v) with %d in a line of %d", s.request.reason, len(line), info.limits.Depth))
			}
		}
	}
	return faults
}

// abandonedHeads counts the requests at the head of the line that are abandoned in
// the end. The shaper may already have given them their slots: a client may
// disconnect after that and before the goroutine of its request has woken up, and
// then the log shows neither the slot nor when it came.
func abandonedHeads(line []*requestLog) int {
	for i, r := range line {
		if r.abandoned.IsZero() {
			return i
		}
	}
	return len(line)
}

// refusalIsRight reports whether a request was refused for a good reason, given
// how many are in the line and how many of these may have been passed over. The
// level matters only if none may wait: otherwise it follows from the line.
func refusalIsRight(info limitsInfo, reason error, line, over int, level float64) bool {
	const rounding = 1e-6 // of a unit: the level is a float here, and an integer in the shaper
	switch {
	case info.unlimited:
		return false
	case errors.Is(reason, shaper.ErrQueueFull) && info.limits.Depth == 0:
		return level > float64(info.atOnce-1)-rounding
	case errors.Is(reason, shaper.ErrQueueFull):
		return line >= info.limits.Depth && line-over <= info.limits.Depth
	case errors.Is(reason, shaper.ErrTooLate):
		return info.limits.MaxWait > 0 && float64(line+1)*info.interval*(1+rounding) > info.limits.MaxWait.Seconds()
	}
	return false
}

// The kinds of a step. Steps at the same instant are taken in this order, as in
// the shaper: what is due leaves before the next request arrives.
const (
	leaves = iota
	givesUp
	passes
	enters
	refused
)

// A step is one change of the line, or an attempt at one.
type step struct {
	at      time.Time
	kind    int
	request *requestLog
}

// stepsOf returns what happened to all requests, in order.
func stepsOf(requests []*requestLog) []step {
	var steps []step
	for _, r := range requests {
		switch {
		case !r.refused.IsZero():
			steps = append(steps, step{r.refused, refused, r})
		case r.enqueued.IsZero():
			steps = append(steps, step{r.departed, passes, r})
		case r.abandoned.IsZero():
			steps = append(steps, step{r.enqueued, enters, r}, step{r.departed, leaves, r})
		case r.abandoned.After(r.enqueued): // On a coarse clock the two may be equal.
			steps = append(steps, step{r.enqueued, enters, r}, step{r.abandoned, givesUp, r})
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

// wastedSlots returns how many departure slots were wasted: those given to
// clients that had disconnected, and those in which no request left although one
// was waiting.
func wastedSlots(info limitsInfo, shaped trial) int {
	return departedAfterDisconnect(shaped.requests) + lostSlots(info, shaped)
}

// departedAfterDisconnect counts the departures of requests whose clients did
// not stay for the response.
func departedAfterDisconnect(requests []*requestLog) (n int) {
	for _, r := range requests {
		if !r.departed.IsZero() && !r.disconnected.IsZero() {
			n++
		}
	}
	return n
}

// lostSlots counts the slots in which no request left although one was waiting.
// It uses the shaper's own instants, because those at the upstream depend on
// what else the machine does. A request must leave an interval after the one
// before it, or at its arrival, if that is later. It may be late by Slack, and
// by the lateness beyond Slack that the shaper itself reports as Stats.Missed:
// then the machine was late, and no slot was lost.
func lostSlots(info limitsInfo, shaped trial) (slots int) {
	if info.unlimited {
		return 0
	}
	const rounding = 1e-6 // seconds
	late := info.slack().Seconds() + shaped.missedUnits*info.interval + rounding
	var before *requestLog
	for _, r := range slices.SortedFunc(slices.Values(shaped.requests), func(a, b *requestLog) int { return a.departed.Compare(b.departed) }) {
		if r.departed.IsZero() {
			continue
		}
		if before != nil {
			waited := min(r.departed.Sub(before.departed).Seconds()-info.interval, r.departed.Sub(r.admitted()).Seconds())
			slots += max(0, int(math.Ceil((waited-late)/info.interval)))
		}
		before = r
	}
	return slots
}
