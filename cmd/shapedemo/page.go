package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/shaper"
)

//go:embed page_panel.js
var panelScript []byte

//go:embed page_panel.css
var panelStyle []byte

// servePage serves the page that shows the proxy's bucket on l, with the panel of the demo. It returns
// a function that ends the page and waits until it has ended. If the listener fails, the proxy goes on
// without a page.
func servePage(l net.Listener, panel *panel) (end func()) {
	i := inspect.New(
		inspect.WithTitle("shapedemo"),
		inspect.WithScript("/demo/panel.js"),
		inspect.WithLogger(slog.New(slog.DiscardHandler)),
	)
	i.Add("proxy", inspect.Of(panel.shaper))
	// Guard refuses requests to other names of this machine, and the protection refuses
	// requests of other origins: no other site presses a button.
	demo := i.Guard(http.NewCrossOriginProtection().Handler(panel.handler()))
	s := startServer(l, &http.Server{
		// No ServeMux decides between the two: it would clean the paths of the Inspector,
		// in which there are keys.
		Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/demo/") {
				demo.ServeHTTP(rw, r)
				return
			}
			i.ServeHTTP(rw, r)
		}),
		// A time limit for all of an answer would end the streams of events.
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
	})
	return func() {
		_ = i.Close() // It ends the streams. A server that shuts down waits for them.
		s.shutDown()
	}
}

// A panel is the part of the page that only the demo has: buttons that send simulated clients to the
// proxy, and a slider for its rate. Its methods may be called from any goroutine.
//
// Each button is a POST request below /demo/, whose body is the value of the button. It answers with
// the [panelState], or with a sentence about the mistake. This API is for the page alone, and changes
// as the page does.
type panel struct {
	shaper           *shaper.Shaper
	slowest, fastest float64                      // rates between which the slider moves; 0 at rate inf
	get              func(context.Context) result // sends a request to the proxy; nil: no clients are sent

	mu     sync.Mutex
	there  context.Context // until all clients are sent away
	leave  context.CancelFunc
	ended  bool    // no client may come any more
	count  int     // clients there now, or about to come
	latest *errand // the one that a visitor has asked for last; nil at first
	all    sync.WaitGroup
}

// newPanel returns the panel of a shaper, to whose proxy get sends requests. The caller must close it.
func newPanel(s *shaper.Shaper, get func(context.Context) result) *panel {
	p := &panel{shaper: s, get: get}
	p.there, p.leave = context.WithCancel(context.Background())
	if l := s.Limits(); !newLimitsInfo(l).unlimited {
		p.slowest, p.fastest = rateRange(l)
	}
	return p
}

// rateRange returns a tenth of the rate of l and four times the rate. Where one of these
// is not valid, it is the rate itself.
func rateRange(l shaper.Limits) (slowest, fastest float64) {
	slow, fast := l, l
	if slow.Rate /= 10; slow.Validate() != nil {
		slow = l
	}
	if fast.Rate *= 4; fast.Validate() != nil {
		fast = l
	}
	return float64(slow.Rate), float64(fast.Rate)
}

// handler returns the handler of the paths below /demo/. It trusts its callers: the
// guard stands in front.
func (p *panel) handler() http.Handler {
	mux := http.NewServeMux()
	file := func(name, contentType string, content []byte) {
		mux.HandleFunc("GET /demo/"+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			_, _ = w.Write(content)
		})
	}
	button := func(name string, press func(value string) error) {
		mux.HandleFunc("POST /demo/"+name, func(w http.ResponseWriter, r *http.Request) {
			value, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1000))
			if err == nil {
				err = press(string(value))
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(p.state())
		})
	}
	file("panel.js", "text/javascript; charset=utf-8", panelScript)
	file("panel.css", "text/css; charset=utf-8", panelStyle)
	button("state", func(string) error { return nil })
	button("rate", p.setRate)
	if p.get != nil {
		for _, name := range []string{"burst", "herd", "impatient", "traffic"} {
			button(name, func(number string) error { return p.sendClients(name, number) })
		}
		button("stop", func(string) error { p.sendAway(); return nil })
	}
	return mux
}

// setRate changes the rate of the proxy, and nothing else of its limits: the line is
// re-timed at once.
func (p *panel) setRate(perSecond string) error {
	r, err := strconv.ParseFloat(perSecond, 64)
	if err != nil || r < p.slowest || r > p.fastest {
		return fmt.Errorf("%q is not from %v to %v per second", perSecond, p.slowest, p.fastest)
	}
	// A script writes a rate of a few a year as 3e-8, which is no form of limits.
	parsed, err := shaper.ParseLimits(strconv.FormatFloat(r, 'f', -1, 64) + "/s")
	if err != nil {
		return err
	}
	return p.shaper.UpdateLimits(func(l shaper.Limits) shaper.Limits {
		l.Rate = parsed.Rate
		return l
	})
}

// A panelState has the figures and settings that the panel shows.
type panelState struct {
	Rate    float64 `json:"rate"`    // of the proxy now, per second; 0 at rate inf, as the next two
	Slowest float64 `json:"slowest"` // that can be set
	Fastest float64 `json:"fastest"`
	Waiting int     `json:"waiting"`
	LastIn  float64 `json:"last_in_s"` // seconds until the last in line leaves

	SendsClients bool         `json:"sends_clients"`
	Fits         int          `json:"fits"`    // how many of a simultaneous burst are admitted
	Drain        float64      `json:"drain_s"` // seconds in which a full line leaves
	Errand       *errandState `json:"errand"`  // the one that a visitor asked for last; null at first
}

// state returns the state of the demo now.
func (p *panel) state() panelState {
	stats := p.shaper.Stats()
	info := newLimitsInfo(stats.Limits)
	s := panelState{
		Rate: info.rate, Slowest: p.slowest, Fastest: p.fastest, Waiting: stats.Waiting,
		SendsClients: p.get != nil, Fits: info.fits, Drain: float64(info.mayWait) * info.interval,
	}
	if line := p.shaper.Line(maxBurst); len(line) > 0 {
		s.LastIn = max(0, time.Until(line[len(line)-1].Leaves).Seconds())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.latest; e != nil {
		s.Errand = &errandState{
			ID: e.id, Name: e.name, Clients: e.clients, Ended: e.ended,
			Sent: e.sent, Served: e.served, Refused: e.refused, GaveUp: e.left, Failed: e.failed + e.other,
		}
	}
	return s
}

type errandState struct {
	ID      int    `json:"id"`
	Name    string `json:"name"`
	Clients int    `json:"clients"`
	Ended   bool   `json:"ended"`
	Sent    int    `json:"sent"`
	Served  int    `json:"served"`
	Refused int    `json:"refused"`
	GaveUp  int    `json:"gave_up"`
	Failed  int    `json:"failed"` // by the upstream, or without an answer
}

// An errand is the task on which one button sends clients, and its outcome.
type errand struct {
	id       int    // counts the errands that visitors have asked for
	name     string // of the button
	clients  int
	patience time.Duration // of which each second client waits for a part, and then disconnects; 0: all stay
	ended    bool          // all have gone
	tally
}

// herdTime is when the clients of a herd that have not been served go away for
// good: with slow limits the last would come back for hours.
const herdTime = time.Minute

// sendClients sends the clients that a visitor asks for, all at one instant, if they fit, and returns
// without waiting for them. The traffic, for which the page asks while its visitor has asked for
// nothing, comes over a second.
func (p *panel) sendClients(name, number string) error {
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > maxBurst {
		return fmt.Errorf("%q is no number of clients from 1 to %d", number, maxBurst)
	}
	e := &errand{id: 1, name: name, clients: n}
	over := time.Duration(0)
	switch name {
	case "impatient":
		// Each waits for a part of the time for which the last of a full line waits.
		info := newLimitsInfo(p.shaper.Limits())
		e.patience = time.Duration(min(float64(info.mayWait)*info.interval, time.Hour.Seconds())*float64(time.Second)) + 1
	case "traffic":
		over = time.Second
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended:
		return errors.New("the demo is stopping")
	case p.count+n > maxBurst:
		return errors.New("so many clients do not fit beside those of earlier buttons, which are still there")
	}
	p.count += n
	if name != "traffic" {
		if p.latest != nil {
			e.id = p.latest.id + 1
		}
		p.latest = e
	}
	there := p.there
	p.all.Go(func() {
		sendAt(there, sendTimes(n, over), func(i int) { p.visit(there, e, i) })
		p.mu.Lock()
		defer p.mu.Unlock()
		e.ended = true
		p.count -= n
	})
	return nil
}

// visit sends the request of the i-th client of an errand. If the client is of a herd and
// is refused, it comes back when its Retry-After is over, which is whole seconds:
// together with the others, again and again.
func (p *panel) visit(there context.Context, e *errand, i int) {
	if e.patience > 0 && i%2 == 1 {
		var gone context.CancelFunc
		there, gone = context.WithTimeout(there, time.Duration(patienceOf(i/2)*float64(e.patience)))
		defer gone()
	}
	for begin := time.Now(); time.Since(begin) < herdTime && !p.hasEnded(); {
		r := p.get(there)
		r.left = r.status == 0 && there.Err() != nil
		p.mu.Lock()
		e.add(r)
		p.mu.Unlock()
		if e.name != "herd" || r.status != http.StatusTooManyRequests {
			return
		}
		if sleep(there, r.retryAfter); there.Err() != nil {
			return
		}
	}
}

// sendAway sends all clients away at once: those that wait disconnect.
func (p *panel) sendAway() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave()
	p.there, p.leave = context.WithCancel(context.Background())
}

// end lets no more clients come. Those that are there stay until they have their
// responses.
func (p *panel) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
}

func (p *panel) hasEnded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// close sends all clients away and waits until they have gone.
func (p *panel) close() {
	p.end()
	p.sendAway()
	p.all.Wait()
}
