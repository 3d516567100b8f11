package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

// judgeBurst returns what is wrong with a demonstration. Nothing is wrong if the
// upstream failed without the shaper and served all requests behind it, if
// exactly the requests that did not fit were refused, and if clients that had
// disconnected cost no slot.
func judgeBurst(info limitsInfo, s capacity, direct, shaped trial) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	switch {
	case direct.failed == 0 && int64(direct.sent) <= s.workers:
		fault("the burst of %d fits into the upstream's %s anyway, so there is nothing to show: try a larger -burst or a slower -limits", direct.sent, countOf(int(s.workers), "worker"))
	case direct.failed == 0:
		fault("the upstream served the burst of %d without the shaper, so there is nothing to show: try a larger -burst or a slower -limits", direct.sent)
	}
	if shaped.failed > 0 {
		fault("%s failed behind the shaper", countOf(shaped.failed, "request"))
	}
	if n := direct.other + shaped.other; n > 0 {
		fault("%s got no response, or one that this program does not expect", countOf(n, "request"))
	}
	if sum := shaped.served + shaped.failed + shaped.refused + shaped.disconnected + shaped.other; sum != shaped.sent {
		fault("%d were sent through the shaper, but %d are accounted for", shaped.sent, sum)
	}
	if shaped.failed+shaped.other > 0 {
		return faults // The counts below would say the same again.
	}
	if n := len(shaped.reached); n < shaped.served || n > shaped.served+departedAfterDisconnect(shaped.requests) {
		fault("%d were served behind the shaper, but %d reached the upstream", shaped.served, n)
	}
	if !info.unlimited {
		minimum, maximum := bounds(info, shaped)
		if admitted := shaped.served + shaped.disconnected; admitted < minimum || admitted > maximum {
			fault("%d were admitted by the shaper, but from %d to %d fit", admitted, minimum, maximum)
		}
	} else if shaped.refused > 0 {
		fault("%d were refused, without a limit", shaped.refused)
	}
	switch n := wastedSlots(info, shaped); {
	case shaped.impatient > 0 && shaped.disconnected == 0:
		fault("none of %s had to wait long enough to disconnect, so there is nothing to show: try a larger -burst or -limits with a longer line", countOf(shaped.impatient, "impatient client"))
	case shaped.impatient > 0 && n > toleratedSlots:
		fault("%d slots were given to clients that had disconnected, or passed unused while a request waited", n)
	case shaped.impatient == 0 && n > 0:
		fault("%s passed unused while a request waited", countOf(n, "slot"))
	}
	return append(faults, misjudged(info, shaped.requests)...)
}

// misjudged returns a fault for each request that was refused with room in the line, or admitted
// without, by how many the shaper says were waiting just after that.
func misjudged(info limitsInfo, requests []*requestLog) (faults []string) {
	for _, r := range requests {
		full := r.waiting >= info.limits.Depth
		late := info.limits.MaxWait > 0 && float64(r.waiting+1)*info.interval > info.limits.MaxWait.Seconds()-1e-6
		switch {
		case r.waiting > info.limits.Depth:
			faults = append(faults, fmt.Sprintf("%d waited in a line of %d", r.waiting, info.limits.Depth))
		case !r.refused.IsZero() && !(errors.Is(r.reason, shaper.ErrQueueFull) && full || errors.Is(r.reason, shaper.ErrTooLate) && late):
			faults = append(faults, fmt.Sprintf("a request was refused (%v) with %d in a line of %d", r.reason, r.waiting, info.limits.Depth))
		}
	}
	return faults
}

// toleratedSlots is how many slots may be wasted on clients that have
// disconnected: a client may disconnect just when its slot has been given to it,
// and a busy machine may notice that too late to pass the slot on.
const toleratedSlots = 1

// bounds returns the smallest and the largest number of requests that can have
// been admitted. At least those that fit at once were admitted. In addition, each
// request that left or disconnected between the first arrival and the last admission
// made room for at most one more.
func bounds(info limitsInfo, shaped trial) (minimum, maximum int) {
	minimum = min(shaped.sent, info.fits())
	var last time.Time
	for _, r := range shaped.requests {
		if r.refused.IsZero() && r.admitted().After(last) {
			last = r.admitted()
		}
	}
	if last.IsZero() {
		return minimum, minimum
	}
	meanwhile := last.Sub(shaped.arrived[0]) + info.slack()
	fits := float64(info.atOnce) + float64(info.limits.Depth) + float64(shaped.disconnected) + math.Ceil(info.rate*meanwhile.Seconds())
	return minimum, int(min(float64(shaped.sent), fits))
}

// burstVerdict returns in a sentence or two what the demonstration showed.
func burstVerdict(t *terminal, info limitsInfo, direct, shaped trial, faults []string) string {
	var b strings.Builder
	for _, fault := range faults {
		fmt.Fprintf(&b, "%s %s\n", t.coloured(red, "✗"), fault)
	}
	if len(faults) > 0 {
		return strings.TrimSuffix(b.String(), "\n")
	}
	fmt.Fprintf(&b, "%s Without the shaper %d of %d requests failed, with it none:\n  ", t.coloured(green, "✓"), direct.failed, direct.sent)
	switch fits := info.fits(); {
	case shaped.disconnected > 0:
		fmt.Fprintf(&b, "%d disconnected while they waited and %s;\n  %s.\n", shaped.disconnected, costInSlots(wastedSlots(info, shaped)), servedOthers(shaped.tally))
	case shaped.refused == 0:
		b.WriteString("all were served, a little later.\n")
	case shaped.served > fits:
		fmt.Fprintf(&b, "%d fitted at once, there was room for %d more while the burst came in,\n  and the other %d were refused at once, with 429.\n", fits, shaped.served-fits, shaped.refused)
	default:
		fmt.Fprintf(&b, "%d fitted, and the other %d were refused at once, with 429.\n", shaped.served, shaped.refused)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// costInSlots returns the text of how many slots were wasted.
func costInSlots(slots int) string {
	if slots == 0 {
		return "cost no slot"
	}
	return "cost " + countOf(slots, "slot")
}

// servedOthers returns the text about the clients that did not disconnect.
func servedOthers(t tally) string {
	if t.refused == 0 {
		return fmt.Sprintf("the other %d were served", t.served)
	}
	return fmt.Sprintf("%d were served, and the other %d were refused at once, with 429", t.served, t.refused)
}

// burstTable returns a table of the results without and with the shaper.
func burstTable(t *terminal, info limitsInfo, direct, shaped trial) string {
	var b strings.Builder
	row := func(name, one, other string) {
		fmt.Fprintf(&b, "  %-30s %10s %10s\n", name, one, other)
	}
	numbers := func(name string, one, other int) {
		row(name, strconv.Itoa(one), strconv.Itoa(other))
	}
	row("", "direct", "shaped")
	numbers("sent", direct.sent, shaped.sent)
	if shaped.impatient > 0 {
		row("by impatient clients", "-", strconv.Itoa(shaped.impatient))
	}
	numbers("served", direct.served, shaped.served)
	numbers("refused with 429", direct.refused, shaped.refused)
	if shaped.impatient > 0 {
		row("disconnected while waiting", "-", strconv.Itoa(shaped.disconnected))
		row("slots wasted on these", "-", strconv.Itoa(wastedSlots(info, shaped)))
	}
	numbers("failed (5xx)", direct.failed, shaped.failed)
	if direct.other+shaped.other > 0 {
		numbers("no response, or another", direct.other, shaped.other)
	}
	smallest, median := gapTexts(direct.reached)
	shapedSmallest, shapedMedian := gapTexts(shaped.reached)
	row("smallest gap at the upstream", smallest, shapedSmallest)
	row("median gap at the upstream", median, shapedMedian)
	row("longest wait", "-", limitwords.Seconds(shaped.longestWait.Seconds()))

	heading, rest, _ := strings.Cut(b.String(), "\n")
	return t.coloured(bold, heading) + "\n" + rest
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
