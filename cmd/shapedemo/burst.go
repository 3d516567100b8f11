package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

// A trial is what came of sending the burst once.
type trial struct {
	tally
	arrived     []time.Time   // when requests arrived at the server that the burst was sent to
	reached     []time.Time   // when they reached the upstream, by its own record
	disconnects []time.Time   // when impatient clients disconnected, by their own record
	impatient   int           // clients that disconnect if they have to wait
	requests    []*requestLog // what the shaper did with each; nil without a shaper
	missedUnits float64       // Stats.Missed: units lost because departures were later than Slack
}

// span returns the instants of the first arrival and of the last event. There
// must be an arrival.
func (t trial) span() (begin, end time.Time) {
	begin = t.arrived[0]
	for _, instants := range [][]time.Time{t.arrived, t.reached, t.disconnects} {
		if n := len(instants); n > 0 && instants[n-1].After(end) {
			end = instants[n-1]
		}
	}
	return begin, end
}

// showBurst sends the burst twice, directly to the upstream and through a proxy
// with a shaper on a free port, and prints the results. It returns the exit
// status for -once.
func showBurst(ctx context.Context, t *terminal, c config, f *fragileUpstream) (status int, err error) {
	info := newLimitsInfo(c.limits)
	introduceBurst(t, info, f.size)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return exitFailed, err
	}
	p, err := startProxy(l, c.limits, f.url)
	if err != nil {
		_ = l.Close()
		return exitFailed, err
	}
	defer p.close()

	sends := sendTimes(c.burst, burstSpan(c.burst, f.size))
	t.say("Sending %d requests directly to the upstream ...", c.burst)
	direct, err := sendDirect(ctx, f, sends)
	if err != nil {
		return exitFailed, err
	}
	impatient := chooseImpatient(c.burst, c.vanish, info, &p.requests)
	t.say("Sending %d requests through the shaper%s ...\n", c.burst, announce(info, sends, len(impatient)))
	shaped, err := sendShaped(ctx, t, f, p, sends, impatient)
	if err != nil {
		return exitFailed, err
	}

	t.say("%s", burstChart(t, info, direct, shaped))
	t.say("%s", burstTable(t, info, direct, shaped))
	faults := judgeBurst(info, f.size, direct, shaped)
	t.say("%s", burstVerdict(t, info, direct, shaped, faults))
	if len(faults) > 0 {
		return exitFailed, nil
	}
	if c.svg != "" {
		if err := os.WriteFile(c.svg, []byte(burstSVG(info, shaped)), 0o644); err != nil {
			return exitFailed, err
		}
		t.say("The picture is in %s.", c.svg)
	}
	return exitOK, nil
}

// introduceBurst prints what is about to be shown.
func introduceBurst(t *terminal, info limitsInfo, s capacity) {
	t.say("%s\n", t.coloured(bold, "Requests arrive in a burst and leave evenly spaced."))
	printLimits(t, info.limits)
	t.say("  upstream   %s, %s for each request: up to %s/s; answers 503 when\n"+
		"             all workers are busy\n",
		countOf(int(s.workers), "worker"), limitwords.Seconds(s.serviceTime.Seconds()), formatDecimal(s.perSecond()))
}

// printLimits prints the limits, and below them what they mean, line by line.
func printLimits(t *terminal, l shaper.Limits) {
	const indent = "\n             "
	t.say("  limits     %s:%s%s", l, indent, strings.Join(limitwords.Of(l), indent))
}

// announce returns what to print about a burst before it is sent through the
// shaper: how many clients are impatient, and how long a run of more than a
// second takes.
func announce(info limitsInfo, sends []time.Duration, impatient int) string {
	text := ""
	if impatient > 0 {
		text = fmt.Sprintf(", %d impatient", impatient)
	}
	if info.unlimited || len(sends) == 0 {
		return text
	}
	span := sends[len(sends)-1].Seconds()
	served := min(float64(len(sends)), float64(info.fits())+info.rate*span)
	wait := (served - float64(info.atOnce)) * (1 - float64(impatient)/float64(len(sends)))
	if seconds := max(span, wait*info.interval); seconds >= 1 {
		text += fmt.Sprintf("; takes about %s", limitwords.Seconds(float64(int(seconds*10+0.5))/10))
	}
	return text
}

func sendDirect(ctx context.Context, f *fragileUpstream, sends []time.Duration) (trial, error) {
	f.reached.start()
	results, err := sendBurst(ctx, burstURL(f.url), sends, nil)
	reached := f.reached.stop()
	return trial{tally: countResults(results), arrived: reached, reached: reached}, err
}

func sendShaped(ctx context.Context, t *terminal, f *fragileUpstream, p *proxy, sends []time.Duration, impatient map[int]*impatientClient) (trial, error) {
	target, err := url.Parse(p.url)
	if err != nil {
		return trial{}, err
	}
	stopStatus := watchShaper(t, p.shaper, &p.upstreamErrors)
	defer stopStatus()
	f.reached.start()
	p.requests.startRecording()
	results, err := sendBurst(ctx, burstURL(target), sends, impatient)
	if err != nil {
		return trial{}, err // Some requests may still be in progress.
	}
	shaped := trial{tally: countResults(results), impatient: len(impatient), requests: p.requests.stopRecording()}
	shaped.reached = f.reached.stop()
	shaped.missedUnits = p.shaper.Stats().Missed
	for _, entry := range byArrival(shaped.requests) {
		shaped.arrived = append(shaped.arrived, entry.arrived)
		if !entry.disconnected.IsZero() {
			shaped.disconnects = append(shaped.disconnects, entry.disconnected)
		}
	}
	slices.SortFunc(shaped.disconnects, time.Time.Compare)
	return shaped, nil
}
