package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

// A trial is the outcome of sending the burst once.
type trial struct {
	tally
	visits      []*visit      // those that arrived at the shaper, if there is one, in order
	arrived     []time.Time   // when they did
	disconnects []time.Time   // when impatient clients disconnected, by their own record
	reached     []time.Time   // when requests reached the upstream, by its own record
	impatient   int           // visits whose clients disconnect if they have to wait
	longestWait time.Duration // of the requests that were served
	wasted      int           // slots: see wastedSlots
}

// newTrial returns the outcome of visits that have ended.
func newTrial(visits []*visit, reached []time.Time) trial {
	t := trial{reached: reached}
	slices.SortFunc(visits, func(a, b *visit) int { return a.arrived.Compare(b.arrived) })
	for _, v := range visits {
		t.add(v.got)
		if v.impatient {
			t.impatient++
		}
		if v.got.status == http.StatusOK {
			t.longestWait = max(t.longestWait, v.waited)
		}
		if !v.arrived.IsZero() {
			t.visits = append(t.visits, v)
			t.arrived = append(t.arrived, v.arrived)
		}
		if left := v.leftAt(); !left.IsZero() {
			t.disconnects = append(t.disconnects, left)
		}
	}
	slices.SortFunc(t.disconnects, time.Time.Compare)
	return t
}

// span returns the instants of the first arrival and of the last event.
func (t trial) span() (begin, end time.Time) {
	return t.arrived[0], slices.MaxFunc(slices.Concat(t.arrived, t.reached, t.disconnects), time.Time.Compare)
}

// showBurst sends the burst twice, directly to an upstream and through a proxy
// with a shaper on a free port, and prints the results.
func showBurst(ctx context.Context, t *terminal, c config) (status int, err error) {
	info := newLimitsInfo(c.limits)
	size := capacityFor(info, c.burst)
	t.say("%s\n", t.coloured(bold, "Requests arrive in a burst and leave evenly spaced."))
	printLimits(t, info.limits)
	t.say("  upstream   %s, %s for each request: up to %s/s; answers 503 when\n"+
		"             all workers are busy\n",
		countOf(size.workers, "worker"), seconds(size.serviceTime), formatDecimal(size.perSecond()))

	sends := sendTimes(c.burst, burstSpan(c.burst, size))
	t.say("Sending %d requests directly to the upstream ...", c.burst)
	direct, err := sendBurst(ctx, c.limits, size, sends, newVisits(c.burst, 0, info), false)
	if err != nil {
		return exitFailed, err
	}
	t.say("Sending %d requests through the shaper%s ...\n", c.burst, announce(info, sends, c.burst*c.vanish/100))
	shaped, err := sendBurst(ctx, c.limits, size, sends, newVisits(c.burst, c.vanish, info), true)
	if err != nil {
		return exitFailed, err
	}

	t.say("%s", burstChart(t, info, direct, shaped))
	t.say("%s", burstTable(t, direct, shaped))
	return conclude(t, c, burstVerdict(info, direct, shaped), judgeBurst(info, size, direct, shaped), func() string { return burstSVG(info, shaped) })
}

// announce returns the text to print about a burst before it is sent through
// the shaper: how many clients are impatient, and how long a run of more than a
// second takes.
func announce(info limitsInfo, sends []time.Duration, impatient int) string {
	text := ""
	if impatient > 0 {
		text = fmt.Sprintf(", %d impatient", impatient)
	}
	span := sends[len(sends)-1].Seconds()
	served := min(float64(len(sends)), float64(info.fits)+info.rate*span)
	wait := (served - float64(info.atOnce)) * (1 - float64(impatient)/float64(len(sends)))
	if seconds := max(span, wait*info.interval); seconds >= 1 {
		text += fmt.Sprintf("; takes about %s", limitwords.Seconds(math.Round(seconds*10)/10))
	}
	return text
}

// sendBurst sends the requests of visits to an upstream of their own, each on a connection of its own, and
// through a proxy with a shaper if shape is set. It returns when all have ended, or when ctx has, with its error.
func sendBurst(ctx context.Context, l shaper.Limits, size capacity, sends []time.Duration, visits []*visit, shape bool) (t trial, err error) {
	reached := &instants{}
	upstream, err := startLoopback(newFragileUpstream(size, reached))
	if err != nil {
		return t, err
	}
	defer upstream.close()
	target, s := upstream.url, (*shaper.Shaper)(nil)
	var inProgress sync.WaitGroup
	if shape {
		if s, err = shaper.New(l, shaper.WithTrace(traceVisits())); err != nil {
			return t, err
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return t, err
		}
		p := startProxy(listener, s, upstream.url, recordVisits(visits, &inProgress))
		defer p.close()
		target = p.url
	}
	client := newClient(len(sends))
	defer client.CloseIdleConnections()
	sendAt(ctx, sends, func(i int) { visits[i].send(ctx, client, target.JoinPath("burst").String(), i) })
	if ctx.Err() != nil {
		return t, ctx.Err() // Some requests may still be in progress.
	}
	inProgress.Wait()
	t = newTrial(visits, reached.sorted())
	if s != nil {
		t.wasted = wastedSlots(newLimitsInfo(l), t.visits, s.Stats().Missed)
	}
	return t, nil
}

// burstSpan returns the time over which a burst of n arrives: a quarter of a
// second, or less where the upstream would serve most of the burst in that time.
func burstSpan(n int, s capacity) time.Duration {
	const longest = 250 * time.Millisecond
	rest := 0.8*float64(n) - float64(s.workers)
	return time.Duration(max(0, min(longest.Seconds(), rest/s.perSecond())) * float64(time.Second))
}

// A capacity is how much load the fragile upstream can take.
type capacity struct {
	workers     int
	serviceTime time.Duration // of each request
}

// perSecond returns how many requests it can serve per second.
func (s capacity) perSecond() float64 { return float64(s.workers) / s.serviceTime.Seconds() }

// capacityFor returns the capacity of an upstream that can serve four times the
// shaped rate, and in addition what may leave at once. That is too little for
// the whole burst, and leaves enough spare workers behind the shaper when a busy
// machine delays requests by up to three service times. The service time is the
// longest of three with which the burst still has twice as many requests as
// there are workers.
func capacityFor(info limitsInfo, burst int) capacity {
	if info.unlimited {
		return capacity{workers: 8, serviceTime: 100 * time.Millisecond}
	}
	if burst == 0 {
		burst = defaultBurst
	}
	var s capacity
	for _, service := range []time.Duration{100 * time.Millisecond, 50 * time.Millisecond, 25 * time.Millisecond} {
		workers := float64(info.atOnce) + math.Ceil(4*info.rate*service.Seconds())
		s = capacity{workers: int(min(workers, 1e6)), serviceTime: service}
		if 2*s.workers <= burst {
			break
		}
	}
	return s
}

// A fragileUpstream is a server with few workers, a fixed service time and no backlog: it answers
// 503 while all workers are busy.
type fragileUpstream struct {
	serviceTime time.Duration
	workers     chan struct{} // has room for one entry of each worker that is busy
	reached     *instants     // when each request reached it; nil: not recorded
}

func newFragileUpstream(s capacity, reached *instants) *fragileUpstream {
	return &fragileUpstream{serviceTime: s.serviceTime, workers: make(chan struct{}, s.workers), reached: reached}
}

// ServeHTTP serves a request if there is a worker for it.
func (f *fragileUpstream) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	f.reached.note(time.Now())
	select {
	case f.workers <- struct{}{}:
	default:
		http.Error(w, "the upstream has no worker left", http.StatusServiceUnavailable)
		return
	}
	defer func() { <-f.workers }()
	// A worker is busy for the whole service time, even if the client has
	// disconnected: that is what makes the upstream fragile.
	time.Sleep(f.serviceTime)
	respond(w, "served by the fragile upstream\n")
}

// judgeBurst returns the faults of a demonstration. It has none if the upstream
// failed without the shaper and served all requests behind it, if exactly the
// requests that did not fit were refused, and if clients that had disconnected
// cost no slot.
func judgeBurst(info limitsInfo, s capacity, direct, shaped trial) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	switch {
	case direct.failed == 0 && direct.sent <= s.workers:
		fault("the burst of %d fits into the upstream's %s anyway, so there is nothing to show: try a larger -burst or a slower -limits", direct.sent, countOf(s.workers, "worker"))
	case direct.failed == 0:
		fault("the upstream served the burst of %d without the shaper, so there is nothing to show: try a larger -burst or a slower -limits", direct.sent)
	}
	if shaped.failed > 0 {
		fault("%s failed behind the shaper", countOf(shaped.failed, "request"))
	}
	if n := direct.other + shaped.other; n > 0 {
		fault("%s got no response, or one that this program does not expect", countOf(n, "request"))
	}
	if shaped.failed+shaped.other > 0 {
		return faults // The counts below would say the same again.
	}
	if n := len(shaped.reached); n < shaped.served || n > shaped.served+departedAfterLeaving(shaped.visits) {
		fault("%d were served behind the shaper, but %d reached the upstream", shaped.served, n)
	}
	for _, v := range shaped.visits {
		if says := misjudged(info, v); says != "" {
			fault("%s", says)
		}
	}
	switch {
	case shaped.impatient > 0 && shaped.left == 0:
		fault("none of %s had to wait long enough to disconnect, so there is nothing to show: try a larger -burst or -limits with a longer line", countOf(shaped.impatient, "impatient client"))
	case shaped.impatient > 0 && shaped.wasted > toleratedSlots:
		fault("%d slots were given to clients that had disconnected, or passed unused while a request waited", shaped.wasted)
	case shaped.impatient == 0 && shaped.wasted > 0:
		fault("%s passed unused while a request waited", countOf(shaped.wasted, "slot"))
	}
	return faults
}

// misjudged returns a fault if a request was refused with room in the line, or admitted without, by
// how many the shaper says were waiting just after that.
func misjudged(info limitsInfo, v *visit) (fault string) {
	full := v.waiting >= info.limits.Depth
	late := info.limits.MaxWait > 0 && float64(v.waiting+1)*info.interval > info.limits.MaxWait.Seconds()-1e-6
	switch {
	case v.waiting > info.limits.Depth:
		return fmt.Sprintf("%d waited in a line of %d", v.waiting, info.limits.Depth)
	case v.refused == nil,
		!info.unlimited && full && errors.Is(v.refused, shaper.ErrQueueFull),
		!info.unlimited && late && errors.Is(v.refused, shaper.ErrTooLate):
		return ""
	}
	return fmt.Sprintf("a request was refused (%v) with %d in a line of %d", v.refused, v.waiting, info.limits.Depth)
}

// toleratedSlots is how many slots may be wasted on clients that have
// disconnected: a client may disconnect just when its slot has been given to it,
// and a busy machine may notice that too late to pass the slot on.
const toleratedSlots = 1

// wastedSlots returns how many departure slots were wasted: those given to
// clients that had disconnected, and those in which no request left although one
// was waiting. The shaper itself reports as missed what it lost because the machine was late.
func wastedSlots(info limitsInfo, visits []*visit, missed float64) int {
	return departedAfterLeaving(visits) + lostSlots(info, visits, missed)
}

// departedAfterLeaving counts the departures of requests whose clients did not stay
// for the response.
func departedAfterLeaving(visits []*visit) (n int) {
	for _, v := range visits {
		if !v.departed.IsZero() && !v.leftAt().IsZero() {
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
func lostSlots(info limitsInfo, visits []*visit, missed float64) (slots int) {
	if info.unlimited {
		return 0
	}
	const rounding = 1e-6 // seconds
	late := info.slack().Seconds() + missed*info.interval + rounding
	var before time.Time
	for _, v := range slices.SortedFunc(slices.Values(visits), func(a, b *visit) int { return a.departed.Compare(b.departed) }) {
		if !before.IsZero() {
			waited := min(v.departed.Sub(before).Seconds()-info.interval, v.waited.Seconds())
			slots += max(0, int(math.Ceil((waited-late)/info.interval)))
		}
		before = v.departed // The zero instant of those that have not departed comes first.
	}
	return slots
}

// burstVerdict returns in a sentence or two the result of a demonstration without a fault.
func burstVerdict(info limitsInfo, direct, shaped trial) string {
	text := fmt.Sprintf("Without the shaper %d of %d requests failed, with it none:\n  ", direct.failed, direct.sent)
	switch {
	case shaped.left > 0 && shaped.refused > 0:
		return text + fmt.Sprintf("%d disconnected while they waited and %s;\n  %d were served, and the other %d were refused at once, with 429.",
			shaped.left, costInSlots(shaped.wasted), shaped.served, shaped.refused)
	case shaped.left > 0:
		return text + fmt.Sprintf("%d disconnected while they waited and %s;\n  the other %d were served.",
			shaped.left, costInSlots(shaped.wasted), shaped.served)
	case shaped.refused == 0:
		return text + "all were served, a little later."
	case shaped.served > info.fits:
		return text + fmt.Sprintf("%d fitted at once, there was room for %d more while the burst came in,\n  and the other %d were refused at once, with 429.",
			info.fits, shaped.served-info.fits, shaped.refused)
	}
	return text + fmt.Sprintf("%d fitted, and the other %d were refused at once, with 429.", shaped.served, shaped.refused)
}

// costInSlots returns the text of how many slots were wasted.
func costInSlots(slots int) string {
	if slots == 0 {
		return "cost no slot"
	}
	return "cost " + countOf(slots, "slot")
}

// burstTable returns a table of the results without and with the shaper.
func burstTable(t *terminal, direct, shaped trial) string {
	b := newTable(t, "direct", "shaped")
	b.row("sent", direct.sent, shaped.sent)
	if shaped.impatient > 0 {
		b.row("by impatient clients", "-", shaped.impatient)
	}
	b.row("served", direct.served, shaped.served)
	b.row("refused with 429", direct.refused, shaped.refused)
	if shaped.impatient > 0 {
		b.row("disconnected while waiting", "-", shaped.left)
		b.row("slots wasted on these", "-", shaped.wasted)
	}
	b.row("failed (5xx)", direct.failed, shaped.failed)
	if direct.other+shaped.other > 0 {
		b.row("no response, or another", direct.other, shaped.other)
	}
	directGaps, shapedGaps := gaps(direct.reached), gaps(shaped.reached)
	b.row("smallest gap at the upstream", quantile(directGaps, 0), quantile(shapedGaps, 0))
	b.row("median gap at the upstream", quantile(directGaps, 0.5), quantile(shapedGaps, 0.5))
	b.row("longest wait", "-", seconds(shaped.longestWait))
	return b.String()
}

const (
	chartColumns = 36 // about that many; each is two characters wide
	chartRows    = 5  // height of the highest bar
)

// burstChart draws both trials as bars over time, all in the same scale.
func burstChart(t *terminal, info limitsInfo, direct, shaped trial) string {
	if len(direct.reached) == 0 || len(shaped.arrived) == 0 {
		return "No request arrived: there is nothing to draw.\n"
	}
	begin, end := shaped.span()
	// A column is a whole number of the shaper's intervals, or an interval a whole
	// number of columns: otherwise an even flow would look uneven. Columns begin in the
	// middle between two departures, so that a departure that is a little early or late
	// is not counted in the column of its neighbour.
	every := max(end.Sub(begin).Seconds(), 1e-6) / chartColumns
	switch {
	case info.unlimited:
	case info.interval <= every:
		every = info.interval * math.Ceil(every/info.interval)
	default:
		every = info.interval / math.Floor(info.interval/every)
	}
	lead := min(info.interval, every) / 2
	columns := int((end.Sub(begin).Seconds()+lead)/every) + 1

	count := func(begin time.Time, at []time.Time) []int {
		counts := make([]int, columns)
		for _, a := range at {
			column := int((a.Sub(begin).Seconds() + lead) / every)
			counts[min(max(column, 0), columns-1)]++
		}
		return counts
	}
	// A series is counts over time, a column each.
	type series struct {
		title  string
		colour colour
		counts []int
	}
	all := []series{
		{"direct: " + countAndSpan("reach the upstream", direct.reached), red, count(direct.reached[0], direct.reached)},
		{"shaped: " + countAndSpan("arrive at the proxy", shaped.arrived), yellow, count(begin, shaped.arrived)},
	}
	if len(shaped.disconnects) > 0 {
		all = append(all, series{"shaped: " + countAndSpan("disconnect while waiting", shaped.disconnects), blue, count(begin, shaped.disconnects)})
	}
	all = append(all, series{"shaped: " + countAndSpan("reach the upstream", shaped.reached), green, count(begin, shaped.reached)})

	var b strings.Builder
	peak := 1
	for _, s := range all {
		peak = max(peak, slices.Max(s.counts))
	}
	for _, s := range all {
		fmt.Fprintf(&b, "  %s\n", t.coloured(bold, s.title))
		label := fmt.Sprint(slices.Max(s.counts))
		for _, row := range bars(s.counts, peak) {
			fmt.Fprintf(&b, "%6s %s\n", label, t.coloured(s.colour, row))
			label = ""
		}
	}
	b.WriteString(axis(columns, every, lead))
	note := fmt.Sprintf("one column is %s; the number is how many requests the highest bar counts", limitwords.Seconds(every))
	fmt.Fprintf(&b, "  %s\n", t.coloured(faint, note))
	return b.String()
}

// axis draws the time axis below columns of every seconds each, with labels at round times. The
// first column begins lead before 0.
func axis(columns int, every, lead float64) string {
	const margin = "       " // left of the bars, for the number of the highest one
	width, length := 2*columns-1, float64(columns)*every
	step, unit := roundStep(length/6), limitwords.UnitFor(length)
	line := []rune(strings.Repeat("─", width))
	labels := []rune(strings.Repeat(" ", width+8))
	for i := 0; ; i++ {
		at := int(2 * (float64(i)*step + lead) / every)
		if at >= width {
			break
		}
		line[at] = '┴'
		copy(labels[at:], []rune(fmt.Sprintf("%.6g %s", float64(i)*step/unit.Length, unit.Name)))
	}
	return fmt.Sprintf("%s%s\n%s%s\n", margin, string(line), margin, strings.TrimRight(string(labels), " "))
}

// countAndSpan returns the text of how many requests or clients did what, and
// within which time.
func countAndSpan(did string, at []time.Time) string {
	text := fmt.Sprintf("%d %s", len(at), did)
	if len(at) > 1 {
		text += " within " + seconds(at[len(at)-1].Sub(at[0]))
	}
	return text
}

// bars draws counts as upright bars, each two characters wide. It returns the
// rows from top to bottom, without empty rows on top.
func bars(counts []int, peak int) (rows []string) {
	steps := []rune(" ▁▂▃▄▅▆▇█")
	for row := chartRows - 1; row >= 0; row-- {
		var b strings.Builder
		for _, n := range counts {
			height := int(math.Round(float64(n) / float64(peak) * chartRows * 8))
			if n > 0 {
				height = max(height, 1) // Even one request among many is shown.
			}
			b.WriteRune(steps[min(max(height-row*8, 0), 8)])
			b.WriteByte(' ')
		}
		if line := strings.TrimRight(b.String(), " "); line != "" || row == 0 {
			rows = append(rows, line)
		}
	}
	return rows
}

// The dimensions of the picture of the scene, in pixels.
const (
	burstHeight       = 256
	stacksBase        = 138.0 // y of the bottom of the stacks of arrivals
	stacksHeight      = 122.0
	dotWidth          = 5
	disconnectsBase   = 153.0 // y of the bottom of the marks of clients that disconnect
	disconnectsHeight = 9.0
	ticksBase         = 224.0 // y of the bottom of the ticks of departures
	ticksHeight       = 34.0
)

// burstSVG draws the shaped trial as an SVG. On top, each arrival at the proxy is
// a dot, stacked where many come at once. At the bottom, each arrival at the
// upstream is a tick. Between them, a short mark is a client that disconnected.
func burstSVG(info limitsInfo, shaped trial) string {
	if len(shaped.reached) == 0 {
		return ""
	}
	begin, end := shaped.span()
	length := max(end.Sub(begin).Seconds(), 1e-6)
	x := func(at time.Time) float64 {
		return svgLeft + at.Sub(begin).Seconds()/length*(svgRight-svgLeft)
	}
	disconnected := ""
	if shaped.left > 0 {
		disconnected = fmt.Sprintf(", %d disconnect while they wait", shaped.left)
	}
	d := newDrawing(burstHeight, "", "With limits %s, a ragged burst of %s; %d are refused at once%s and %d reach the upstream evenly within %s",
		info.limits, countAndSpan("requests arrives", shaped.arrived), shaped.refused, disconnected, len(shaped.reached),
		seconds(shaped.reached[len(shaped.reached)-1].Sub(shaped.reached[0])))
	d.ground(stacksBase)
	d.ground(ticksBase)
	d.times(ticksBase, length)
	stacks, edge := dotStacks(shaped.visits, x)
	d.WriteString(stacks)
	if shaped.left > 0 {
		d.add(`<path class="v" stroke-width="1.6" d="%s"/>`, ticks(shaped.disconnects, x, disconnectsBase, disconnectsHeight))
	}
	d.add(`<path class="d" stroke-width="2.4" d="%s"/>`, ticks(shaped.reached, x, ticksBase, ticksHeight))

	y := 44.0
	line := func(class, format string, args ...any) {
		d.text(class, edge+24, y, format, args...)
		y += 22
	}
	line("t", "A ragged burst goes in: %s", countAndSpan("requests", shaped.arrived))
	line("a", "%d are admitted, and wait up to %s", shaped.served+shaped.left, seconds(shaped.longestWait))
	if shaped.left > 0 {
		line("v", "%d of these disconnect while they wait, and %s", shaped.left, costInSlots(shaped.wasted))
	}
	if shaped.refused > 0 {
		line("r", "%d do not fit, and are refused at once", shaped.refused)
	}
	out := "A comb comes out"
	if !info.unlimited {
		out += ": one every " + limitwords.Seconds(info.interval)
	}
	d.text("d", svgLeft, ticksBase-ticksHeight-10, "%s", out)
	return d.end()
}

// dotStacks draws visits as stacks of dots, in the order in which they arrived. It
// returns one path for each class of dots, and the x of their right edge.
func dotStacks(visits []*visit, x func(time.Time) float64) (stacks string, edge float64) {
	column := func(v *visit) int { return int(x(v.arrived) / (dotWidth + 1)) }
	heights := make([]int, svgWidth)
	for _, v := range visits {
		heights[column(v)]++
	}
	pitch := min(4, stacksHeight/float64(slices.Max(heights)))
	clear(heights)
	paths := map[string]string{} // by class, and so by colour
	for _, v := range visits {
		at, class := column(v), "a"
		switch {
		case v.refused != nil:
			class = "r"
		case !v.leftAt().IsZero():
			class = "v"
		}
		left := float64(at * (dotWidth + 1))
		edge = max(edge, left+dotWidth)
		paths[class] += fmt.Sprintf("M%.0f %.1fh%d", left, stacksBase-(float64(heights[at])+0.5)*pitch, dotWidth)
		heights[at]++
	}
	for _, class := range slices.Sorted(maps.Keys(paths)) {
		stacks += fmt.Sprintf(`<path class="%s" stroke-width="%.1f" d="%s"/>`+"\n", class, pitch*0.75, paths[class])
	}
	return stacks, edge
}
