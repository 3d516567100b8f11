package main

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"example.com/leakybucket/shaper"
)

const (
	statusEvery = 250 * time.Millisecond
	// statusLooks is how many looks lie in the second over which the rate is
	// taken: one more than the steps between them.
	statusLooks = int(time.Second/statusEvery) + 1
)

// watchShaper keeps a line about a shaper, and about requests of which it is told
// how many broke, at the bottom of a live terminal until the function that it
// returns is called. If broken is nil, none do.
func watchShaper(t *terminal, shaped *shaper.Shaper, broken *atomic.Uint64) (stop func()) {
	if !t.live {
		return func() {}
	}
	if broken == nil {
		broken = new(atomic.Uint64)
	}
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		beat := time.NewTicker(statusEvery)
		defer beat.Stop()
		var m meter
		for {
			s := shaped.Stats()
			t.status(statusLine(m.rate(time.Now(), s.Departed), s, broken.Load()))
			select {
			case <-beat.C:
			case <-done:
				t.status("")
				return
			}
		}
	}()
	return func() {
		close(done)
		<-gone
	}
}

// statusLine is the state of a shaper in less than a line of 80.
func statusLine(rate float64, s shaper.Stats, broken uint64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %5.1f/s   waiting %d   departed %d   refused %d   abandoned %d", rate, s.Waiting, s.Departed, s.Refused, s.Abandoned)
	if broken > 0 {
		fmt.Fprintf(&b, "   unanswered %d", broken)
	}
	return b.String()
}

// A meter tells how many departed per second over the last second.
type meter struct {
	looks []look
}

type look struct {
	at       time.Time
	departed uint64
}

// rate takes a look, and returns the rate since the oldest that it keeps.
func (m *meter) rate(at time.Time, departed uint64) float64 {
	m.looks = append(m.looks, look{at, departed})
	if len(m.looks) > statusLooks {
		m.looks = m.looks[1:]
	}
	oldest := m.looks[0]
	if span := at.Sub(oldest.at); span > 0 {
		return float64(departed-oldest.departed) / span.Seconds()
	}
	return 0
}
