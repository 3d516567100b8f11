package inspect

import (
	"encoding/json"
	"time"
)

// sample takes a sample of all tracks every step, and sends them to the streams, until
// Close.
func (i *Inspector) sample() {
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for n := 0; ; n++ {
		i.sampleAll(n)
		select {
		case <-ticker.C:
		case <-i.closing:
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
func (i *Inspector) sampleAll(n int) {
	now := time.Now()
	i.mu.Lock()
	samples := make([]sampled, 0, len(i.sources)+len(i.tracked))
	sources := i.sources
	for _, w := range sources {
		samples = append(samples, sampled{track: w.whole, of: w})
	}
	for of, t := range i.tracked {
		if t.viewers == 0 && now.Sub(t.seenAt) > keepUnseen {
			delete(i.tracked, of)
			continue
		}
		samples = append(samples, sampled{track: t, of: of.source})
	}
	i.mu.Unlock()

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
		details = i.details()
	}

	i.mu.Lock()
	defer i.mu.Unlock()
	if changed {
		i.tellSourcesLocked()
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
	for s := range i.streams {
		if frame := frames[s.track]; frame != nil {
			s.offer(frame, details[s.track])
		}
	}
}

// details returns the detail events of the tracks that somebody looks at.
func (i *Inspector) details() map[*track][]byte {
	i.mu.Lock()
	targets := map[target]*track{}
	for s := range i.streams {
		if s.track != nil { // else there was no source when it began
			targets[s.target] = s.track
		}
	}
	i.mu.Unlock()
	details := make(map[*track][]byte, len(targets))
	for of, t := range targets {
		if d, ok := i.liveDetail(of, t.bucket); ok {
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
