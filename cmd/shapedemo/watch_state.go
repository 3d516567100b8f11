package main

import (
	"time"

	"example.com/leakybucket/shaper"
)

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
