package main

import (
	"math"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
)

const (
	// unwatchedAfter is how long after the last sign of a page the scene ends. A page
	// gives a sign each second; a browser may delay that by a second or two.
	unwatchedAfter = 3 * time.Second

	sceneLead   = 500 * time.Millisecond // from the first sign of a page to the first burst
	scenePeriod = 8 * time.Second        // from one burst to the next, unless the line needs longer
	sceneSpan   = 400 * time.Millisecond // over which the clients of a burst come
	sceneBeat   = 50 * time.Millisecond  // at which single clients are sent

	maxSceneBurst   = 300
	maxSceneTraffic = 100.0 // per second
)

// A scene is what the page shows while its visitor has pressed no button: a few
// clients all the time, and every few seconds a burst that is too large for the line.
// It plays only while a page is open, so that it does not disturb measurements of the proxy.
// Beside the scene there can be steady traffic, of four fifths of the rate that the
// proxy had at first: the line grows as soon as the rate is set below that.
type scene struct {
	clients *simulatedClients
	burst   int           // clients in a burst
	period  time.Duration // from one burst to the next
	rate    float64       // of the proxy at first

	mu        sync.Mutex
	seen      time.Time // when a page gave its last sign
	playing   bool      // the visitor wants the scene
	steady    bool      // the visitor wants steady traffic
	nextBurst time.Time
	running   bool // there is a goroutine
	ended     bool
	stop      chan struct{} // closed to end the goroutine
	all       sync.WaitGroup
}

// newScene returns the scene for a proxy with limits l. The caller must close it.
func newScene(c *simulatedClients, l shaper.Limits) *scene {
	info := newLimitsInfo(l)
	if info.unlimited {
		return &scene{clients: c, burst: maxSceneBurst, period: scenePeriod, rate: maxSceneTraffic, stop: make(chan struct{})}
	}
	drain := min(1.5*float64(info.mayWait)*info.interval, time.Minute.Seconds())
	return &scene{
		clients: c,
		burst:   int(min(max(3, math.Ceil(1.5*float64(info.fits()))), maxSceneBurst)),
		period:  max(scenePeriod, time.Duration(drain*float64(time.Second))),
		rate:    info.rate,
		stop:    make(chan struct{}),
	}
}

// watch notes a sign of a page. The first sign after a time without begins the scene.
func (s *scene) watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = time.Now()
	if s.running || s.ended {
		return
	}
	s.running, s.playing, s.steady = true, true, false
	s.nextBurst = s.seen.Add(sceneLead)
	s.all.Go(s.run)
}

// play begins or ends the scene, at the visitor's wish.
func (s *scene) play(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on && !s.playing {
		s.nextBurst = time.Now().Add(sceneLead)
	}
	s.playing = on
}

// flow begins or ends the steady traffic.
func (s *scene) flow(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steady = on
}

// state reports what the visitor wants: the scene, and steady traffic.
func (s *scene) state() (playing, steady bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.playing, s.steady
}

// run sends clients until nobody watches.
func (s *scene) run() {
	beat := time.NewTicker(sceneBeat)
	defer beat.Stop()
	due := 0.0 // single clients that are to be sent; the fraction is kept for the next beat
	for {
		select {
		case <-beat.C:
		case <-s.stop:
		}
		burst, traffic, watched := s.next(time.Now())
		if !watched {
			return
		}
		if burst {
			s.sendClients(s.burst, sceneSpan)
		}
		due += traffic * sceneBeat.Seconds()
		if whole := math.Floor(due); whole > 0 {
			due -= whole
			s.sendClients(int(whole), sceneBeat)
		}
	}
}

// next returns what to send now, and whether somebody watches.
func (s *scene) next(now time.Time) (burst bool, traffic float64, watched bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || now.Sub(s.seen) > unwatchedAfter {
		s.running = false
		return false, 0, false
	}
	if s.playing {
		traffic = 0.5 * s.rate
		if burst = !now.Before(s.nextBurst); burst {
			s.nextBurst = s.nextBurst.Add(s.period)
		}
	}
	if s.steady {
		traffic = 0.8 * s.rate
	}
	return burst, min(traffic, maxSceneTraffic), true
}

// sendClients sends clients that no visitor has asked for. If they do not fit beside
// those that a visitor has asked for, there are enough without them.
func (s *scene) sendClients(n int, over time.Duration) {
	_ = s.clients.burst(&errand{clients: n}, over, nil)
}

// close ends the scene for good, and waits until it has ended.
func (s *scene) close() {
	s.mu.Lock()
	if !s.ended {
		s.ended = true
		close(s.stop)
	}
	s.mu.Unlock()
	s.all.Wait()
}

// A demoState is what the demo-only part of the page shows.
type demoState struct {
	Limits  string  `json:"limits"` // of the proxy now
	Rate    float64 `json:"rate"`   // per second; 0 at rate inf
	Slowest float64 `json:"slowest"`
	Fastest float64 `json:"fastest"` // 0 at rate inf: there is nothing to set
	Waiting int     `json:"waiting"`
	LastIn  float64 `json:"last_in_s"` // seconds until the last in line leaves

	Candidate candidateState `json:"candidate"`
	Clients   *clientsState  `json:"clients"` // null with a server of the user's
	Errand    *errandState   `json:"errand"`  // what a visitor asked for last; null at first
}

// A candidateState is what the limits in the dry run would have done since they were set.
type candidateState struct {
	Limits  string `json:"limits"`
	Seen    uint64 `json:"seen"`
	Refused uint64 `json:"refused"`
}

type clientsState struct {
	Scene  bool `json:"scene"`
	Steady bool `json:"steady"`
	Slow   bool `json:"slow"`

	Suggested   int     `json:"suggested"` // clients for a burst that does not fit
	SceneBurst  int     `json:"scene_burst"`
	ScenePeriod float64 `json:"scene_period_s"`

	Workers     int64   `json:"workers"` // of the upstream
	Busy        int64   `json:"busy"`
	ServiceTime float64 `json:"service_s"`
	Failed      uint64  `json:"failed"` // requests that found no worker
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

// state returns the state of the demo now.
func (c *control) state() demoState {
	stats := c.proxy.shaper.Stats()
	s := demoState{
		Limits:    stats.Limits.String(),
		Slowest:   c.slowest,
		Fastest:   c.fastest,
		Waiting:   stats.Waiting,
		LastIn:    lastIn(c.proxy.shaper),
		Candidate: c.dryRuns.state(),
	}
	if c.fastest > 0 {
		s.Rate = float64(stats.Limits.Rate)
	}
	if c.upstream != nil {
		s.Clients = c.clientsState()
	}
	if e := c.clients.latestErrand(); e != nil {
		s.Errand = e.state()
	}
	return s
}

func (c *control) clientsState() *clientsState {
	s := &clientsState{
		Suggested:   suggestedClients(newLimitsInfo(c.proxy.shaper.Limits())),
		Slow:        c.upstream.slowed.Load(),
		SceneBurst:  c.scene.burst,
		ScenePeriod: c.scene.period.Seconds(),
		Workers:     c.upstream.size.workers,
		Busy:        c.upstream.busy.Load(),
		ServiceTime: c.upstream.serviceTime().Seconds(),
		Failed:      c.upstream.refused.Load(),
	}
	s.Scene, s.Steady = c.scene.state()
	return s
}

// suggestedClients returns how many clients make a burst of which about half do not fit,
// within what is quickly sent.
func suggestedClients(info limitsInfo) int {
	if info.unlimited {
		return 100
	}
	return min(max(10, 2*min(info.fits(), 500)/10*10), 500)
}

func (e *errand) state() *errandState {
	got, ended := e.report()
	return &errandState{
		ID: e.id, Name: e.name, Clients: e.clients, Ended: ended,
		Sent: got.sent, Served: got.served, Refused: got.refused, GaveUp: got.disconnected, Failed: got.failed + got.other,
	}
}

// lastIn returns in how many seconds the last in the line of s leaves, if nothing
// changes.
func lastIn(s *shaper.Shaper) float64 {
	line := s.Line(maxBurst)
	if len(line) == 0 {
		return 0
	}
	return max(0, time.Until(line[len(line)-1].Leaves).Seconds())
}
