package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/url"

	"example.com/leakybucket/internal/limitwords"
)

// A frontListener is where the demo serves. It is opened before anything else
// happens, so that a port in use is reported first.
type frontListener struct {
	listener net.Listener // nil with -once and -outbound, which serve nothing
	page     net.Listener // for the page that shows the proxy; nil: there is none
	moved    bool         // to a free port, as the default port was in use
}

// listenFront listens at the address of c. If that is in use it takes a free
// port instead, but only if the user has not chosen the address.
func listenFront(c config) (*frontListener, error) {
	if c.once || c.outbound {
		return &frontListener{}, nil
	}
	page, err := listenPage(c)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", c.addr)
	if err == nil {
		return &frontListener{listener: l, page: page}, nil
	}
	if !c.addrGiven {
		if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
			return &frontListener{listener: l, page: page, moved: true}, nil
		}
	}
	(&frontListener{page: page}).close()
	return nil, fmt.Errorf("-addr %q: %w", c.addr, err)
}

// close closes the listeners that no server has closed already.
func (d *frontListener) close() {
	for _, l := range []net.Listener{d.listener, d.page} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// serve puts a shaper in front of target, serves until the first signal, and
// then drains the line. It serves the page about it meanwhile, if there is a listener
// for that. The upstream is what serves target, or nil if that is a server of the
// user's. It returns the exit status.
func serve(stop *interrupts, t *terminal, c config, front *frontListener, target *url.URL, upstream *fragileUpstream) (int, error) {
	if front.page == nil {
		p, err := startProxy(front.listener, c.limits, target)
		if err != nil {
			return exitFailed, err
		}
		return serveProxy(stop, t, c, front, p, nil)
	}
	d, err := newDryRuns(c.limits)
	if err != nil {
		return exitFailed, err
	}
	defer d.close()
	p, err := startProxy(front.listener, c.limits, target, d.middleware()...)
	if err != nil {
		return exitFailed, err
	}
	page := startPage(front.page, p, d, upstream)
	defer page.close()
	return serveProxy(stop, t, c, front, p, page)
}

// serveProxy serves until the first signal, and then drains the line. The page may be
// nil. It closes the proxy, and not the page: that shows how the line drains.
func serveProxy(stop *interrupts, t *terminal, c config, front *frontListener, p *proxy, page *watchPage) (int, error) {
	printHowToTry(t, c, front, p.url)
	if page != nil {
		t.say("Watch it:  %s\n", t.coloured(bold, page.url))
	}
	stopStatus := watchShaper(t, p.shaper, &p.upstreamErrors)
	defer stopStatus()
	select {
	case <-p.done:
		return exitFailed, p.close()
	case <-stop.graceful.Done():
	}
	if page != nil {
		page.endClients()
	}
	return drain(stop.immediate, t, p)
}

// printHowToTry prints where the demo serves, and commands to try it with.
func printHowToTry(t *terminal, c config, front *frontListener, at string) {
	if c.upstream == nil && c.burst > 0 {
		t.say("") // An empty line after the results of the burst.
	}
	if front.moved {
		t.say("%s is in use: taking a free port.", defaultAddr)
	}
	switch {
	case c.upstream != nil:
		printLimits(t, c.limits)
		t.say("  upstream   %s\n", c.upstream.Redacted())
	case c.burst == 0: // Otherwise the burst has printed the limits.
		printLimits(t, c.limits)
		t.say("")
	}
	t.say("Serving on %s until Ctrl-C. Try:\n", t.coloured(bold, at))
	t.say("  curl -i %s/", at)
	t.say("  for i in $(seq %d); do curl -so /dev/null -w '%%{http_code}\\n' %s/ & done | sort | uniq -c", clientCount(c), at)
	if line := k6Line(c, at); line != "" {
		t.say("  %s", line)
	}
	t.say("")
}

// clientCount returns how many clients to start so that some are refused, within
// the number that a shell can start.
func clientCount(c config) int {
	return min(max(20, int(float64(min(newLimitsInfo(c.limits).fits(), 1000))*1.3)), 500)
}

// k6Line returns the command that runs the load script, or "" for limits that
// the script cannot judge. Its rate must be a whole number of requests per
// second. If the line is shorter than a second, or cut short by MaxWait or a cap,
// the script cannot tell a mistake from noise.
func k6Line(c config, at string) string {
	info := newLimitsInfo(c.limits)
	if info.unlimited || c.limits.InFlight > 0 || info.rate != math.Trunc(info.rate) || info.mayWait < c.limits.Depth || float64(info.mayWait) < info.rate {
		return ""
	}
	line := "k6 run -e BASE_URL=" + at
	if c.limits.String() != defaultLimits {
		line += fmt.Sprintf(" -e RATE=%.0f -e DEPTH=%d -e BURST=%d", info.rate, info.mayWait, info.atOnce)
	}
	return line + " loadtest/k6.js"
}

// drain takes no more connections, lets all waiting requests leave, waits until they
// have their responses, and closes the proxy. When ctx is done it ends at once.
func drain(ctx context.Context, t *terminal, p *proxy) (int, error) {
	before := p.shaper.Stats()
	t.say("%s", drainMessage(before.Waiting, newLimitsInfo(before.Limits)))
	p.drain(ctx)
	cut := p.shaper.Stats().Waiting
	err := p.close()
	if ctx.Err() != nil {
		t.say("Stopped at once; %d waiting requests got a 503.", cut)
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
	t.say("Drained: %d served, %d gave up.", after.Departed-before.Departed, after.Abandoned-before.Abandoned)
	return exitOK, nil
}

// drainMessage returns what to print before the line is drained, with how long
// that takes.
func drainMessage(waiting int, info limitsInfo) string {
	if waiting == 0 {
		return "No request is waiting: stopping (Ctrl-C again to stop at once)."
	}
	longest := math.Ceil(float64(waiting)*info.interval*10) / 10
	bound := "at most"
	if info.limits.InFlight > 0 {
		bound = "at least" // How long the upstream takes is unknown.
	}
	return fmt.Sprintf("Draining %s (%s %s; Ctrl-C again to stop at once).", countOf(waiting, "waiting request"), bound, limitwords.Seconds(longest))
}
