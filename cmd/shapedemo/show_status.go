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
	// statusSamples is how many samples the rate over one second needs: one more
	// than there are steps between them.
	statusSamples = int(time.Second/statusEvery) + 1
)

// watchShaper shows a status line about a shaper at the bottom of a live terminal
// until the function that it returns is called. It shows upstreamErrors too, if
// that is not nil.
func watchShaper(t *terminal, shaped *shaper.Shaper, upstreamErrors *atomic.Uint64) (end func()) {
	if !t.live {
		return func() {}
	}
	if upstreamErrors == nil {
		upstreamErrors = new(atomic.Uint64)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		beat := time.NewTicker(statusEvery)
		defer beat.Stop()
		var m rateMeter
		for {
			s := shaped.Stats()
			t.status(statusLine(m.rate(time.Now(), s.Departed), s, upstreamErrors.Load()))
			select {
			case <-beat.C:
			case <-stop:
				t.status("")
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

// statusLine returns the state of a shaper in fewer than 80 characters.
func statusLine(rate float64, s shaper.Stats, upstreamErrors uint64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %5.1f/s   waiting %d   departed %d   refused %d   abandoned %d", rate, s.Waiting, s.Departed, s.Refused, s.Abandoned)
	if upstreamErrors > 0 {
		fmt.Fprintf(&b, "   unanswered %d", upstreamErrors)
	}
	return b.String()
}

// A rateMeter measures how many requests departed per second during the last
// second.
type rateMeter struct {
	samples []rateSample
}

type rateSample struct {
	at       time.Time
	departed uint64
}

// rate adds a sample, and returns the rate since the oldest sample that it keeps.
func (m *rateMeter) rate(at time.Time, departed uint64) float64 {
	m.samples = append(m.samples, rateSample{at, departed})
	if len(m.samples) > statusSamples {
		m.samples = m.samples[1:]
	}
	oldest := m.samples[0]
	if span := at.Sub(oldest.at); span > 0 {
		return float64(departed-oldest.departed) / span.Seconds()
	}
	return 0
}
