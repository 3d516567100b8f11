package inspect

import (
	"encoding/json"
	"time"
)

// sample takes a sample of all tracks every step, and sends them to the streams, until
// Close.
func (c *core) sample() {
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for n := 0; ; n++ {
		c.sampleAll(n)
		select {
		case <-ticker.C:
		case <-c.closing:
			return
		}
	}
}

// A sampled is what one sample has found of one track.
type sampled struct {
	track *track
	of    *watched
	read  reading
	ok    bool
}

// sampleAll takes the sample number n.
func (c *core) sampleAll(n int) {
	now := time.Now()
	c.mu.Lock()
	samples := make([]sampled, 0, len(c.sources)+len(c.tracked))
	sources := c.sources
	for _, w := range sources {
		samples = append(samples, sampled{track: w.whole, of: w})
	}
	for of, t := range c.tracked {
		if t.viewers == 0 && now.Sub(t.seenAt) > keepUnseen {
			delete(c.tracked, of)
			continue
		}
		samples = append(samples, sampled{track: t, of: of.source})
	}
	c.mu.Unlock()

	changed := false
	for k := range samples {
		samples[k].read, samples[k].ok = samples[k].track.read()
	}
	for k, w := range sources {
		closed := samples[k].read.closed
		changed = changed || closed != w.wasClosed
		w.wasClosed = closed
		if n%detailEvery == 0 {
			w.window.add(w.source.histograms())
			w.rest(now)
		}
	}
	var details map[*track][]byte
	if n%detailEvery == 0 {
		details = c.details()
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if changed {
		c.tellSourcesLocked()
	}
	frames := make(map[*track][]byte, len(samples))
	whole := make(map[*watched]*totals, len(sources))
	for k, s := range samples {
		p := s.track.add(s.read, s.ok, now)
		if k < len(sources) { // These come first.
			whole[s.of] = &totals{p.Arrivals, p.Departures, p.Refusals, p.Abandoned, p.Waiting}
		} else {
			p.Totals = whole[s.of]
		}
		if s.track.viewers > 0 {
			frames[s.track] = encodeEvent("frame", p)
		}
	}
	for s := range c.streams {
		if frame := frames[s.track]; frame != nil {
			s.offer(frame, details[s.track])
		}
	}
}

// details returns the detail events of the tracks that somebody looks at.
func (c *core) details() map[*track][]byte {
	c.mu.Lock()
	targets := map[target]*track{}
	for s := range c.streams {
		if s.track != nil { // else there was no source when it began
			targets[s.target] = s.track
		}
	}
	c.mu.Unlock()
	details := make(map[*track][]byte, len(targets))
	for of, t := range targets {
		if d, ok := c.liveDetail(of, t.bucket); ok {
			details[t] = encodeEvent("detail", d)
		}
	}
	return details
}

// encodeEvent returns a server-sent event.
func encodeEvent(name string, value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // The types of events hold nothing that JSON can't say.
	}
	event := make([]byte, 0, len(name)+len(text)+16)
	event = append(event, "event: "...)
	event = append(event, name...)
	event = append(event, "\ndata: "...)
	event = append(event, text...)
	return append(event, "\n\n"...)
}
