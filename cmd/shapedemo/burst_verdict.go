package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// judge says what is wrong with a demonstration: nothing, if the upstream
// failed without the shaper, and behind it served all that reached it, exactly
// what does not fit was refused, and nobody who had left cost a slot.
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
	if sum := shaped.served + shaped.failed + shaped.refused + shaped.vanished + shaped.other; sum != shaped.sent {
		fault("%d were sent through the shaper, but %d are accounted for", shaped.sent, sum)
	}
	if shaped.failed+shaped.other > 0 {
		return faults // The counts below would say the same again.
	}
	if n := len(shaped.reached); n < shaped.served || n > shaped.served+departedTooLate(shaped.passages) {
		fault("%d were served behind the shaper, but %d reached the upstream", shaped.served, n)
	}
	if !m.endless {
		least, most := bounds(m, shaped)
		if admitted := shaped.served + shaped.vanished; admitted < least || admitted > most {
			fault("%d were admitted by the shaper, but from %d to %d fit", admitted, least, most)
		}
	} else if shaped.refused > 0 {
		fault("%d were refused, without a limit", shaped.refused)
	}
	switch n := spent(m, shaped); {
	case shaped.impatient > 0 && shaped.vanished == 0:
		fault("none of %s had to wait long enough to leave, so there is nothing to show: try a larger -burst or -limits with a longer line", counted(shaped.impatient, "impatient client"))
	case shaped.impatient > 0 && n > tolerated:
		fault("%d slots were spent on clients that had left, or went by while somebody waited", n)
	case shaped.impatient == 0 && n > 0:
		fault("%s went by while somebody waited", counted(n, "slot"))
	}
	return append(faults, replay(m, shaped.passages)...)
}

// tolerated is how many slots may be spent on clients that have left: on a busy
// machine a slot can be lost between the hand that gives it and the one that
// would give it back.
const tolerated = 1

// bounds are the least and the most requests of a burst of that many, which came
// when it did, that can have been admitted: those that fit at once, and at most
// what gives up its place between the first arrival and the last admission.
func bounds(m meaning, shaped trial) (least, most int) {
	least = min(shaped.sent, m.fits())
	var last time.Time
	for _, p := range shaped.passages {
		if p.refused.IsZero() && p.admitted().After(last) {
			last = p.admitted()
		}
	}
	if last.IsZero() {
		return least, least
	}
	meanwhile := last.Sub(shaped.arrived[0]) + m.slack()
	fits := float64(m.atOnce) + float64(m.limits.Depth) + float64(shaped.vanished) + math.Ceil(m.rate*meanwhile.Seconds())
	return least, int(min(float64(shaped.sent), fits))
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
	case shaped.vanished > 0:
		fmt.Fprintf(&b, "%d left while they waited and\n  %s; %s.\n", shaped.vanished, cost(spent(m, shaped)), others(shaped.tally))
	case shaped.refused == 0:
		b.WriteString("all were served, a little later.\n")
	case shaped.served > fits:
		fmt.Fprintf(&b, "%d fit at once, %d left while\n  the burst came in, and the other %d were told so at once, with 429.\n", fits, shaped.served-fits, shaped.refused)
	default:
		fmt.Fprintf(&b, "%d fit, and the other %d\n  were told so at once, with 429.\n", shaped.served, shaped.refused)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// cost says how many slots went to waste.
func cost(slots int) string {
	if slots == 0 {
		return "cost no slot"
	}
	return "cost " + counted(slots, "slot")
}

// others tells of those who stayed.
func others(t tally) string {
	if t.refused == 0 {
		return fmt.Sprintf("the other %d were served", t.served)
	}
	return fmt.Sprintf("%d were served, and the other %d were told at once, with 429", t.served, t.refused)
}
