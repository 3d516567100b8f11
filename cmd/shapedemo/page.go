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

// A watchPage serves the page that shows the proxy's bucket, with buttons of the demo's
// own, on a listener of its own.
type watchPage struct {
	clients   *simulatedClients
	inspector *inspect.Inspector
	server    *server // If its listener fails, the proxy goes on without a page.
}

// listenPage listens at the address of c for the page, or returns nil if there is to be
// none. The page has buttons that change the demo, so it is for this machine only.
func listenPage(c config) (net.Listener, error) {
	if c.inspect == "" {
		return nil, nil
	}
	at, err := net.ResolveTCPAddr("tcp", c.inspect)
	if err == nil && !at.IP.IsLoopback() {
		err = errors.New("the page is for this machine only, so the address must be a loopback address such as 127.0.0.1:9000")
	}
	var l net.Listener
	if err == nil {
		l, err = net.Listen("tcp", at.String())
	}
	if err != nil {
		return nil, fmt.Errorf("-inspect %q: %w", c.inspect, err)
	}
	return l, nil
}

// startPage serves the page about a proxy on l. With a server of the user's behind the
// proxy, the page can send no clients. The caller must close the page.
func startPage(l net.Listener, p *proxy, usersServer bool) *watchPage {
	i := inspect.New(
		inspect.WithTitle("shapedemo"),
		inspect.WithScript("/demo/panel.js"),
		inspect.WithLogger(slog.New(slog.DiscardHandler)),
	)
	i.Add("proxy", inspect.Of(p.shaper))
	w := &watchPage{clients: newSimulatedClients(p.url.String()), inspector: i}
	panel := newPanel(p.shaper, w.clients, usersServer)
	// Guard refuses requests to other names of this machine, and the protection refuses
	// requests of other origins: no other site presses a button.
	demo := i.Guard(http.NewCrossOriginProtection().Handler(panel.handler()))
	w.server = startServer(l, &http.Server{
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
	return w
}

// close ends the page and waits until it has ended. The streams come first: a server that
// shuts down waits for them.
func (w *watchPage) close() {
	w.clients.close()
	_ = w.inspector.Close()
	w.server.shutDown()
}

// A panel is the part of the page that only the demo has. Each button is a POST request
// below /demo/, whose body is the value of the button. It answers with the [panelState],
// or with a sentence about the mistake. This API is for the page alone, and changes as
// the page does.
type panel struct {
	shaper      *shaper.Shaper
	clients     *simulatedClients
	usersServer bool // behind the proxy, to which no clients are sent

	slowest, fastest float64 // rates between which the slider moves; 0 at rate inf
}

func newPanel(s *shaper.Shaper, c *simulatedClients, usersServer bool) *panel {
	p := &panel{shaper: s, clients: c, usersServer: usersServer}
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
	if !p.usersServer {
		for _, name := range []string{"burst", "herd", "impatient", "traffic"} {
			button(name, func(number string) error { return p.sendClients(name, number) })
		}
		button("stop", func(string) error { p.clients.stop(); return nil })
	}
	return mux
}

// sendClients sends the clients that a visitor asks for, all at one instant. The traffic,
// for which the page asks while its visitor has asked for nothing, comes over a second.
func (p *panel) sendClients(name, number string) error {
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > maxBurst {
		return fmt.Errorf("%q is no number of clients from 1 to %d", number, maxBurst)
	}
	e := &errand{name: name, clients: n}
	switch name {
	case "impatient":
		// Each waits for a part of the time for which the last of a full line waits.
		info := newLimitsInfo(p.shaper.Limits())
		e.patience = time.Duration(min(float64(info.mayWait)*info.interval, time.Hour.Seconds())*float64(time.Second)) + 1
	case "traffic":
		e.over = time.Second
	}
	return p.clients.send(e)
}

// setRate changes the rate of the proxy, and nothing else of its limits: the line is
// re-timed at once.
func (p *panel) setRate(perSecond string) error {
	parsed, err := shaper.ParseLimits(perSecond + "/s")
	if err != nil {
		return err
	}
	if r := float64(parsed.Rate); r < p.slowest || r > p.fastest {
		return fmt.Errorf("%q is not from %v to %v per second", perSecond, p.slowest, p.fastest)
	}
	l := p.shaper.Limits()
	l.Rate = parsed.Rate
	return p.shaper.SetLimits(l)
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
		SendsClients: !p.usersServer, Fits: info.fits, Drain: float64(info.mayWait) * info.interval,
		Errand: p.clients.latestErrand(),
	}
	if line := p.shaper.Line(maxBurst); len(line) > 0 {
		s.LastIn = max(0, time.Until(line[len(line)-1].Leaves).Seconds())
	}
	return s
}

// herdTime is when the clients of a herd that have not been served go away for
// good: with slow limits the last would come back for hours.
const herdTime = time.Minute

var (
	errTooManyClients = errors.New("so many clients do not fit beside those of earlier buttons, which are still there")
	errStopping       = errors.New("the demo is stopping")
)

// simulatedClients are all clients that the page has let loose on the proxy. Their
// methods may be called from any goroutine.
type simulatedClients struct {
	client *http.Client
	get    func(context.Context) result // sends a request to the proxy

	mu      sync.Mutex
	there   context.Context // until all are sent away
	leave   context.CancelFunc
	ended   bool    // no client may come any more
	count   int     // there now, or about to come
	errands int     // that visitors have asked for
	latest  *errand // the last of them; nil at first
	all     sync.WaitGroup
}

// newSimulatedClients returns the clients of the proxy at that URL. The caller must
// close them.
func newSimulatedClients(proxy string) *simulatedClients {
	c := &simulatedClients{client: newClient(256)}
	c.get = func(ctx context.Context) result { return get(ctx, c.client, proxy) }
	c.there, c.leave = context.WithCancel(context.Background())
	return c
}

// An errand is the task on which one button sends clients, and its outcome.
type errand struct {
	name     string // of the button
	id       int    // counts the errands
	clients  int
	over     time.Duration // in which they come
	patience time.Duration // of which each second client waits for a part, and then disconnects; 0: all stay

	mu    sync.Mutex
	got   tally
	ended bool // all have gone
}

// send lets the clients of an errand come, if they fit, and returns without waiting
// for them.
func (c *simulatedClients) send(e *errand) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ended:
		return errStopping
	case c.count+e.clients > maxBurst:
		return errTooManyClients
	}
	c.count += e.clients
	if e.name != "traffic" {
		c.errands++
		e.id, c.latest = c.errands, e
	}
	there := c.there
	c.all.Go(func() {
		sendAt(there, sendTimes(e.clients, e.over), func(i int) { c.visit(there, e, i) })
		e.mu.Lock()
		e.ended = true
		e.mu.Unlock()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.count -= e.clients
	})
	return nil
}

// visit sends the request of the i-th client of an errand. If the client is of a herd and
// is refused, it comes back when its Retry-After is over, which is whole seconds:
// together with the others, again and again.
func (c *simulatedClients) visit(there context.Context, e *errand, i int) {
	if e.patience > 0 && i%2 == 1 {
		var gone context.CancelFunc
		there, gone = context.WithTimeout(there, time.Duration(patienceOf(i/2)*float64(e.patience)))
		defer gone()
	}
	for begin := time.Now(); time.Since(begin) < herdTime && !c.haveEnded(); {
		r := c.get(there)
		r.left = r.status == 0 && there.Err() != nil
		e.mu.Lock()
		e.got.add(r)
		e.mu.Unlock()
		if e.name != "herd" || r.status != http.StatusTooManyRequests {
			return
		}
		if sleep(there, r.retryAfter); there.Err() != nil {
			return
		}
	}
}

func (c *simulatedClients) haveEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// stop sends all clients away at once: those that wait disconnect.
func (c *simulatedClients) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leave()
	c.there, c.leave = context.WithCancel(context.Background())
}

// end lets no more clients come. Those that are there stay until they have their
// responses.
func (c *simulatedClients) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}

// close sends all clients away and waits until they have gone.
func (c *simulatedClients) close() {
	c.end()
	c.stop()
	c.all.Wait()
	c.client.CloseIdleConnections()
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

// latestErrand returns the errand that a visitor asked for last, or nil.
func (c *simulatedClients) latestErrand() *errandState {
	c.mu.Lock()
	e := c.latest
	c.mu.Unlock()
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return &errandState{
		ID: e.id, Name: e.name, Clients: e.clients, Ended: e.ended,
		Sent: e.got.sent, Served: e.got.served, Refused: e.got.refused, GaveUp: e.got.left, Failed: e.got.failed + e.got.other,
	}
}
