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
)

// A trial is one firing of the burst.
type trial struct {
	tally
	arrived   []time.Time // at what it was fired at
	reached   []time.Time // the upstream, as it wrote down itself
	gone      []time.Time // clients that vanished, as they wrote down themselves
	impatient int         // clients that would vanish if they had to wait
	passages  []*passage  // at the shaper; none if there was none
	missed    float64     // units that the shaper lost to lateness beyond its slack
}

// span is from the first arrival to the last thing that happened. There must be
// an arrival.
func (t trial) span() (begin, end time.Time) {
	begin = t.arrived[0]
	for _, instants := range [][]time.Time{t.arrived, t.reached, t.gone} {
		if n := len(instants); n > 0 && instants[n-1].After(end) {
			end = instants[n-1]
		}
	}
	return begin, end
}

// showBurst fires the burst twice, straight at the upstream and through a
// shaper of its own on a free port, and shows what came of it. The status is
// that of -once.
func showBurst(ctx context.Context, t *terminal, c config, f *fragile) (status int, err error) {
	m := meaningOf(c.limits)
	introduce(t, m, f.size)

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

	sends := ragged(c.burst, spanOf(c.burst, f.size))
	t.say("%d requests straight at the upstream ...", c.burst)
	straight, err := fireStraight(ctx, f, sends)
	if err != nil {
		return exitFailed, err
	}
	vanishers := vanishersOf(c.burst, c.vanish, m, &p.log)
	t.say("%d requests through the shaper%s ...\n", c.burst, foretell(m, sends, len(vanishers)))
	shaped, err := fireShaped(ctx, t, f, p, sends, vanishers)
	if err != nil {
		return exitFailed, err
	}

	t.say("%s", picture(t, m, straight, shaped))
	t.say("%s", table(t, m, straight, shaped))
	faults := judge(m, f.size, straight, shaped)
	t.say("%s", verdict(t, m, straight, shaped, faults))
	if len(faults) > 0 {
		return exitFailed, nil
	}
	if c.svg != "" {
		if err := os.WriteFile(c.svg, []byte(drawing(m, shaped)), 0o644); err != nil {
			return exitFailed, err
		}
		t.say("The picture is in %s.", c.svg)
	}
	return exitOK, nil
}

// introduce says what is about to be shown.
func introduce(t *terminal, m meaning, s size) {
	t.say("%s\n", t.in(bold, "A burst goes in, a comb comes out."))
	explain(t, m)
	t.say("  upstream   %s of %s, up to %s/s; answers 503 when more press in\n",
		counted(int(s.workers), "worker"), humane(s.service.Seconds()), decimal(s.perSecond()))
}

// explain says what the limits mean.
func explain(t *terminal, m meaning) { sayLimits(t, m, m.String()) }

// sayLimits says the limits, and below them part by part what they mean.
func sayLimits(t *terminal, m meaning, meaning string) {
	const under = "\n             "
	t.say("  limits     %s:%s%s", m.limits, under, strings.ReplaceAll(meaning, "; ", ";"+under))
}

// foretell announces those who will not stay, and a run that lasts longer than
// people wait unasked.
func foretell(m meaning, sends []time.Duration, impatient int) string {
	text := ""
	if impatient > 0 {
		text = fmt.Sprintf(", %d of them impatient", impatient)
	}
	if m.endless || len(sends) == 0 {
		return text
	}
	span := sends[len(sends)-1].Seconds()
	served := min(float64(len(sends)), float64(m.fits())+m.rate*span)
	wait := (served - float64(m.atOnce)) * (1 - float64(impatient)/float64(len(sends)))
	if seconds := max(span, wait*m.every); seconds >= 1 {
		text += fmt.Sprintf("; this takes about %s", humane(float64(int(seconds*10+0.5))/10))
	}
	return text
}

func fireStraight(ctx context.Context, f *fragile, sends []time.Duration) (trial, error) {
	f.reached.start()
	answers, err := fire(ctx, burstURL(f.url), sends, nil)
	reached := f.reached.stop()
	return trial{tally: count(answers), arrived: reached, reached: reached}, err
}

func fireShaped(ctx context.Context, t *terminal, f *fragile, p *proxy, sends []time.Duration, vanishers map[int]*vanisher) (trial, error) {
	target, err := url.Parse(p.url)
	if err != nil {
		return trial{}, err
	}
	unwatch := watchShaper(t, p.shaper, &p.broken)
	defer unwatch()
	f.reached.start()
	p.log.start()
	answers, err := fire(ctx, burstURL(target), sends, vanishers)
	if err != nil {
		return trial{}, err // Some passages may still be under way.
	}
	shaped := trial{tally: count(answers), impatient: len(vanishers), passages: p.log.stop()}
	shaped.reached = f.reached.stop()
	shaped.missed = p.shaper.Stats().Missed
	for _, at := range byArrival(shaped.passages) {
		shaped.arrived = append(shaped.arrived, at.arrived)
		if !at.vanished.IsZero() {
			shaped.gone = append(shaped.gone, at.vanished)
		}
	}
	slices.SortFunc(shaped.gone, time.Time.Compare)
	return shaped, nil
}
