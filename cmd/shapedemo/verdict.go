package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"example.com/leakybucket/shaper"
)

// judge says what is wrong with a demonstration: nothing, if the upstream
// failed without the shaper, and behind it served all that reached it, and
// exactly what does not fit was refused.
func judge(m meaning, s size, straight, shaped trial) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	switch {
	case straight.failed == 0 && int64(straight.sent) <= s.workers:
		fault("the burst of %d fits into the upstream's %s anyway, so there is nothing to show: try a larger -burst or a slower -limits", straight.sent, counted(int(s.workers), "worker"))
	case straight.failed == 0:
		fault("the upstream stood the burst of %d without the shaper, so there is nothing to show: try a larger -burst or a slower -limits", straight.sent)
	}
	if shaped.failed > 0 {
		fault("%s failed behind the shaper", counted(shaped.failed, "request"))
	}
	if n := straight.other + shaped.other; n > 0 {
		fault("%s got no answer that this program expects", counted(n, "request"))
	}
	if sum := shaped.served + shaped.failed + shaped.refused + shaped.other; sum != shaped.sent {
		fault("%d were sent through the shaper, but %d are accounted for", shaped.sent, sum)
	}
	if shaped.failed+shaped.other > 0 {
		return faults // The counts below would say the same again.
	}
	if n := len(shaped.reached); n != shaped.served {
		fault("%d were served behind the shaper, but %d reached the upstream", shaped.served, n)
	}
	if !m.endless {
		least, most := bounds(m, shaped)
		if shaped.served < least || shaped.served > most {
			fault("%d were served behind the shaper, but from %d to %d fit", shaped.served, least, most)
		}
	} else if shaped.refused > 0 {
		fault("%d were refused, without a limit", shaped.refused)
	}
	return append(faults, replay(m, shaped.passages)...)
}

// bounds are the least and the most requests that a burst of that many, which
// came when it did, can have served: those that fit at once, and at most what
// leaves between the first arrival and the last admission.
func bounds(m meaning, shaped trial) (least, most int) {
	least = min(shaped.sent, m.fits())
	var last time.Time
	for _, p := range shaped.passages {
		if p.refused.IsZero() && admitted(p).After(last) {
			last = admitted(p)
		}
	}
	if last.IsZero() {
		return least, least
	}
	slack := m.limits.Slack
	if slack == 0 {
		slack = shaper.DefaultSlack
	}
	meanwhile := last.Sub(shaped.arrived[0]) + slack
	fits := float64(m.atOnce) + float64(m.limits.Depth) + math.Ceil(m.rate*meanwhile.Seconds())
	return least, int(min(float64(shaped.sent), fits))
}

// admitted is when a request entered the line, or left without one.
func admitted(p *passage) time.Time {
	if p.queued.IsZero() {
		return p.left
	}
	return p.queued
}

// replay counts the line again, from the instants alone, and finds whoever was
// refused with a place free, or admitted with none.
func replay(m meaning, passages []*passage) (faults []string) {
	steps := stepsOf(passages)
	line, level, levelAt := 0, 0.0, time.Time{}
	leak := func(at time.Time) {
		if !levelAt.IsZero() {
			level = max(0, level-m.rate*at.Sub(levelAt).Seconds())
		}
		levelAt = at
	}
	for _, s := range steps {
		switch s.kind {
		case leaves:
			line--
		case enters:
			if line++; line > m.limits.Depth {
				faults = append(faults, fmt.Sprintf("%d waited in a line of %d", line, m.limits.Depth))
			}
		case passes:
			leak(s.at)
			level++
		case isRefused:
			leak(s.at)
			if !rightly(m, s.reason, line, level) {
				faults = append(faults, fmt.Sprintf("one was refused (%v) with %d in a line of %d", s.reason, line, m.limits.Depth))
			}
		}
	}
	return faults
}

// rightly says whether a request is refused for a good reason, with that many
// in the line. The level counts only where nobody waits: elsewhere it follows
// the line.
func rightly(m meaning, reason error, line int, level float64) bool {
	const rounding = 1e-6 // of a unit: the level is a float here, and an integer in the shaper
	switch {
	case m.endless:
		return false
	case errors.Is(reason, shaper.ErrQueueFull) && m.limits.Depth == 0:
		return level > float64(m.atOnce-1)-rounding
	case errors.Is(reason, shaper.ErrQueueFull):
		return line == m.limits.Depth
	case errors.Is(reason, shaper.ErrTooLate):
		return m.limits.MaxWait > 0 && float64(line+1)*m.every*(1+rounding) > m.limits.MaxWait.Seconds()
	}
	return false
}

// The kinds of a step. Of steps at the same instant the earlier kind comes
// first, as in the shaper: what is due leaves before anybody arrives.
const (
	leaves = iota
	passes
	enters
	isRefused
)

// A step is one change of the line, or an attempt at one.
type step struct {
	at     time.Time
	kind   int
	reason error // of a refusal
}

// stepsOf puts what happened to all requests in order.
func stepsOf(passages []*passage) []step {
	var steps []step
	for _, p := range passages {
		switch {
		case !p.refused.IsZero():
			steps = append(steps, step{p.refused, isRefused, p.reason})
		case p.queued.IsZero():
			steps = append(steps, step{p.left, passes, nil})
		default:
			steps = append(steps, step{p.queued, enters, nil}, step{p.left, leaves, nil})
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

// verdict says in a sentence or two what the demonstration has shown.
func verdict(t *terminal, m meaning, straight, shaped trial, faults []string) string {
	var b strings.Builder
	for _, fault := range faults {
		fmt.Fprintf(&b, "%s %s\n", t.in(red, "✗"), fault)
	}
	if len(faults) > 0 {
		return strings.TrimSuffix(b.String(), "\n")
	}
	fmt.Fprintf(&b, "%s Straight, %d of %d failed. Shaped, none did: ", t.in(green, "✓"), straight.failed, straight.sent)
	switch fits := m.fits(); {
	case shaped.refused == 0:
		b.WriteString("all were served, a little later.\n")
	case shaped.served > fits:
		fmt.Fprintf(&b, "%d fit at once, %d left while\n  the burst came in, and the other %d were told so at once, with 429.\n", fits, shaped.served-fits, shaped.refused)
	default:
		fmt.Fprintf(&b, "%d fit, and the other %d\n  were told so at once, with 429.\n", shaped.served, shaped.refused)
	}
	return strings.TrimSuffix(b.String(), "\n")
}
