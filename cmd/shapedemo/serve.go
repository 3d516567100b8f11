package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/url"
	"time"
)

// A door is where the demo serves. It is opened before anything else, so that
// a port that is taken is told first.
type door struct {
	listener net.Listener // nil: with -once and -outbound nothing is served
	moved    bool         // the usual port was taken
}

// newDoor listens at the address of c. Only if the user named none, another
// port will do.
func newDoor(c config) (*door, error) {
	if c.once || c.outbound {
		return &door{}, nil
	}
	l, err := net.Listen("tcp", c.addr)
	if err == nil {
		return &door{listener: l}, nil
	}
	if !c.addrGiven {
		if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
			return &door{listener: l, moved: true}, nil
		}
	}
	return nil, fmt.Errorf("-addr %q: %w", c.addr, err)
}

// close lets go of the address, unless a server has done so already.
func (d *door) close() {
	if d.listener != nil {
		_ = d.listener.Close()
	}
}

// serve puts a shaper in front of target, serves until the first signal, and
// then drains. It returns the exit status.
func serve(stop *interrupts, t *terminal, c config, front *door, target *url.URL) (int, error) {
	p, err := startProxy(front.listener, c.limits, target)
	if err != nil {
		return exitFailed, err
	}
	invite(t, c, front, p.url)
	unwatch := watchShaper(t, p.shaper, &p.broken)
	defer unwatch()
	select {
	case <-p.gone:
		return exitFailed, p.close()
	case <-stop.first.Done():
	}
	return drain(stop.second, t, p)
}

// invite says where the demo serves and how to try it.
func invite(t *terminal, c config, front *door, at string) {
	if c.upstream == nil && c.burst > 0 {
		t.say("") // Below the burst.
	}
	if front.moved {
		t.say("%s is taken; a free port will do.", defaultAddr)
	}
	switch {
	case c.upstream != nil:
		explain(t, meaningOf(c.limits))
		t.say("  upstream   %s\n", c.upstream.Redacted())
	case c.burst == 0: // No burst has said it.
		explain(t, meaningOf(c.limits))
		t.say("")
	}
	t.say("Serving on %s until Ctrl-C. Try:\n", t.in(bold, at))
	t.say("  curl -i %s/", at)
	t.say("  for i in $(seq %d); do curl -so /dev/null -w '%%{http_code}\\n' %s/ & done | sort | uniq -c", herd(c), at)
	if line := k6Line(c, at); line != "" {
		t.say("  %s", line)
	}
	t.say("")
}

// herd is a number of clients of which some are refused, where that is a number
// that a shell can start.
func herd(c config) int {
	return min(max(20, int(float64(min(meaningOf(c.limits).fits(), 1000))*1.3)), 500)
}

// k6Line is the call of the load script, or "" for limits that it can't judge:
// it counts in whole requests per second, and of a line shorter than a second,
// or one that MaxWait or a cap cuts off, it can't tell a mistake from noise.
func k6Line(c config, at string) string {
	m := meaningOf(c.limits)
	if m.endless || c.limits.InFlight > 0 || m.rate != math.Trunc(m.rate) || m.waiting < c.limits.Depth || float64(m.waiting) < m.rate {
		return ""
	}
	line := "k6 run -e BASE_URL=" + at
	if c.limits.String() != defaultLimits {
		line += fmt.Sprintf(" -e RATE=%.0f -e DEPTH=%d -e BURST=%d", m.rate, m.waiting, m.atOnce)
	}
	return line + " loadtest/k6.js"
}

// drain lets the line leave, then what is under way, and closes the proxy.
// Newcomers meanwhile get a 503. It ends at once when stop does.
func drain(stop context.Context, t *terminal, p *proxy) (int, error) {
	p.draining.Store(true)
	before := p.shaper.Stats()
	t.say("%s", farewell(before.Waiting, meaningOf(before.Limits)))
	// The shaper first, then the server: the server's Shutdown neither wakes nor
	// cancels those in the line.
	if err := p.shaper.Shutdown(stop); err == nil {
		// The line is empty; those that left last still have their answers to
		// get. A client that reads none must not keep the program alive.
		patience, cancel := context.WithTimeout(stop, 10*time.Second)
		_ = p.server.Shutdown(patience)
		cancel()
	}
	cut := p.shaper.Stats().Waiting
	err := p.close()
	if stop.Err() != nil {
		t.say("Stopped at once; %d in the line got a 503.", cut)
		return exitInterrupted, nil
	}
	if err != nil {
		return exitFailed, err
	}
	if before.Waiting == 0 {
		t.say("Stopped.")
		return exitOK, nil
	}
	after := p.shaper.Stats()
	t.say("Drained: %d left, %d gave up.", after.Departed-before.Departed, after.Abandoned-before.Abandoned)
	return exitOK, nil
}

// farewell says how long the end will take.
func farewell(waiting int, m meaning) string {
	if waiting == 0 {
		return "Nobody waits: stopping (Ctrl-C again to stop at once)."
	}
	longest := math.Ceil(float64(waiting)*m.every*10) / 10
	bound := "at most"
	if m.limits.InFlight > 0 {
		bound = "at least" // Nobody knows how long the upstream takes.
	}
	return fmt.Sprintf("Draining %d waiting (%s %s; Ctrl-C again to stop at once).", waiting, bound, humane(longest))
}
