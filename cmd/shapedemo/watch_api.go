package main

import (
	_ "embed"
	"math"
	"net/http"
	"strconv"
	"time"

	"example.com/leakybucket/shaper"
)

//go:embed watch_panel.js
var panelScript []byte

//go:embed watch_panel.css
var panelStyle []byte

// A control is what the demo-only buttons of the page reach: POST requests below /demo/
// with a JSON object. Each answers with the state of the demo. It is for the page alone,
// and changes as the page does.
type control struct {
	proxy    *proxy
	dryRuns  *dryRuns
	upstream *fragileUpstream // nil: a server of the user's, to which no clients are sent
	clients  *simulatedClients
	scene    *scene

	slowest, fastest float64 // rates between which the slider moves; 0 at rate inf
}

// newControl returns the control of a proxy that began with limits l.
func newControl(p *proxy, d *dryRuns, f *fragileUpstream, l shaper.Limits) *control {
	c := &control{proxy: p, dryRuns: d, upstream: f, clients: newSimulatedClients(p.url)}
	c.scene = newScene(c.clients, l)
	if info := newLimitsInfo(l); !info.unlimited {
		c.slowest, c.fastest = rateRange(l)
	}
	return c
}

// rateRange returns the slowest and the fastest rate of the slider: a tenth of the rate
// of l and four times of it. Where one of these is not valid, it is the rate itself.
func rateRange(l shaper.Limits) (slowest, fastest float64) {
	slow, fast := l, l
	slow.Rate, fast.Rate = l.Rate/10, l.Rate*4
	if slow.Validate() != nil {
		slow = l
	}
	if fast.Validate() != nil {
		fast = l
	}
	return float64(slow.Rate), float64(fast.Rate)
}

// handler returns the handler of the paths below /demo/. It trusts its callers: the
// guard stands in front.
func (c *control) handler() http.Handler {
	mux := http.NewServeMux()
	file(mux, "panel.js", "text/javascript; charset=utf-8", panelScript)
	file(mux, "panel.css", "text/css; charset=utf-8", panelStyle)
	post(mux, c, "watch", c.watch)
	post(mux, c, "rate", c.setRate)
	post(mux, c, "candidate", c.setCandidate)
	if c.upstream != nil {
		post(mux, c, "burst", c.sendBurst)
		post(mux, c, "herd", c.sendHerd)
		post(mux, c, "impatient", c.sendImpatient)
		post(mux, c, "slow", c.setSlow)
		post(mux, c, "scene", c.setScene)
		post(mux, c, "steady", c.setSteady)
		post(mux, c, "stop", c.stop)
	}
	return mux
}

// file registers a file of the page.
func file(mux *http.ServeMux, name, contentType string, content []byte) {
	mux.HandleFunc("GET /demo/"+name, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(content)
	})
}

type (
	nothing struct{}
	number  struct {
		N *int `json:"n"`
	}
	toggle struct {
		On *bool `json:"on"`
	}
	perSecond struct {
		Rate *float64 `json:"rate"`
	}
	limitsText struct {
		Limits *string `json:"limits"`
	}
)

// clients returns the number of clients that a button is to send.
func (n number) clients() (int, error) {
	switch {
	case n.N == nil:
		return 0, badField("n", "", "is missing")
	case *n.N < 1 || *n.N > maxBurst:
		return 0, badField("n", *n.N, "must be from 1 to %d", maxBurst)
	}
	return *n.N, nil
}

func (t toggle) set(on func(bool)) error {
	if t.On == nil {
		return badField("on", "", "is missing")
	}
	on(*t.On)
	return nil
}

func (c *control) watch(nothing) error {
	if c.upstream != nil {
		c.scene.watch()
	}
	return nil
}

// sendErrand sends what a visitor asks for, and ends the scene: what the page then shows
// is the visitor's own doing.
func (c *control) sendErrand(name string, n number, send func(*errand) error) error {
	clients, err := n.clients()
	if err != nil {
		return err
	}
	if err := send(&errand{name: name, clients: clients}); err != nil {
		return err
	}
	c.scene.play(false)
	return nil
}

func (c *control) sendBurst(n number) error {
	return c.sendErrand("burst", n, func(e *errand) error { return c.clients.burst(e, 0, nil) })
}

func (c *control) sendHerd(n number) error { return c.sendErrand("herd", n, c.clients.herd) }

// sendImpatient sends a burst in which every second client goes away while it waits: after
// a tenth to four tenths of the time for which the last of a full line waits.
func (c *control) sendImpatient(n number) error {
	info := newLimitsInfo(c.proxy.shaper.Limits())
	longest := min(float64(info.mayWait)*info.interval, time.Hour.Seconds())
	return c.sendErrand("impatient", n, func(e *errand) error {
		return c.clients.burst(e, 0, func(i int) time.Duration {
			if i%2 == 0 {
				return 0
			}
			const steps = 7
			share := minPatience + (maxPatience-minPatience)*float64(i/2%steps)/(steps-1)
			return max(time.Duration(share*longest*float64(time.Second)), time.Millisecond)
		})
	})
}

func (c *control) setScene(t toggle) error  { return t.set(c.scene.play) }
func (c *control) setSteady(t toggle) error { return t.set(c.scene.flow) }

// setSlow slows the upstream or lets it be as fast as usual. From then on the proxy takes
// the pauses that a busy upstream asks for.
func (c *control) setSlow(t toggle) error {
	return t.set(func(slow bool) {
		c.proxy.takesPauses.Store(true)
		c.upstream.slowed.Store(slow)
		if !slow {
			c.proxy.shaper.Hold(0)
		}
	})
}

func (c *control) stop(nothing) error {
	c.scene.play(false)
	c.scene.flow(false)
	c.clients.stop()
	return nil
}

// setRate changes the rate of the proxy, and nothing else of its limits: the line is
// re-timed at once.
func (c *control) setRate(wanted perSecond) error {
	switch {
	case wanted.Rate == nil:
		return badField("rate", "", "is missing")
	case c.fastest == 0:
		return badField("rate", *wanted.Rate, "cannot be set: the proxy's rate is inf")
	case math.IsNaN(*wanted.Rate) || *wanted.Rate < c.slowest || *wanted.Rate > c.fastest:
		return badField("rate", *wanted.Rate, "must be from %v to %v per second", c.slowest, c.fastest)
	}
	parsed, err := shaper.ParseLimits(strconv.FormatFloat(*wanted.Rate, 'f', -1, 64) + "/s")
	if err != nil {
		return badField("rate", *wanted.Rate, "%v", err)
	}
	l := c.proxy.shaper.Limits()
	l.Rate = parsed.Rate
	return c.proxy.shaper.SetLimits(l)
}

// setCandidate sets the limits that are tried in a dry run.
func (c *control) setCandidate(wanted limitsText) error {
	if wanted.Limits == nil {
		return badField("limits", "", "is missing")
	}
	l, err := shaper.ParseLimits(*wanted.Limits)
	if err == nil {
		err = c.dryRuns.try(l)
	}
	if err != nil {
		return badField("limits", *wanted.Limits, "%v", err)
	}
	return nil
}

// end lets no more clients come, and the line leave at its rate: the upstream is as
// fast as usual, and asks for no pause.
func (c *control) end() {
	c.scene.close()
	c.clients.end()
	c.proxy.takesPauses.Store(false)
	if c.upstream != nil && c.upstream.slowed.Swap(false) {
		c.proxy.shaper.Hold(0)
	}
}
