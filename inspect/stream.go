package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	maxStreams = 256              // streams at once; the next gets 503
	heartbeat  = 15 * time.Second // between comments, so that a dead connection is noticed
	writeLimit = 10 * time.Second // for one write: a reader that takes nothing is cut off
	closeLimit = time.Second      // the same, once Close has been called
	maxNotices = 64               // events other than frames that may be pending; far more than happen in a writeLimit
)

// A stream is the connection of one reader of events. Bytes to be written are left in
// it by the sampler and others, who never wait for it: of frames and details only the
// latest is kept.
type stream struct {
	target target
	track  *track

	removed <-chan struct{} // closed when the source of target is removed; nil without a target

	wake chan struct{} // has room for one, a sign that something is pending; the receiver looks for it

	mu      sync.Mutex
	frame   []byte
	detail  []byte
	notices [][]byte
	control *http.ResponseController
	closing bool
}

// offer leaves a frame, and a detail unless it is nil.
func (s *stream) offer(frame, detail []byte) {
	s.mu.Lock()
	s.frame = frame
	if detail != nil {
		s.detail = detail
	}
	s.mu.Unlock()
	s.poke()
}

// notify leaves an event of another kind.
func (s *stream) notify(event []byte) {
	s.mu.Lock()
	if len(s.notices) == maxNotices {
		s.notices = append(s.notices[:0], s.notices[1:]...)
	}
	s.notices = append(s.notices, event)
	s.mu.Unlock()
	s.poke()
}

func (s *stream) poke() {
	select {
	case s.wake <- struct{}{}:
	default: // It will find everything.
	}
}

// hurry lets a write that hangs fail soon.
func (s *stream) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	if s.control != nil {
		_ = s.control.SetWriteDeadline(time.Now().Add(closeLimit))
	}
}

// pending returns the bytes to be written now.
func (s *stream) pending() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	var text []byte
	for _, event := range s.notices {
		text = append(text, event...)
	}
	text = append(append(text, s.frame...), s.detail...)
	s.frame, s.detail, s.notices = nil, nil, nil
	return text
}

// write sends text at once, and gives up when the reader takes nothing for too long.
func (s *stream) write(w http.ResponseWriter, text []byte) error {
	if err := s.limitWrite(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	return s.control.Flush()
}

// bye ends the stream in good order.
func (s *stream) bye(w http.ResponseWriter) {
	_ = s.write(w, append(s.pending(), encodeEvent("bye", struct{}{})...))
}

// limitWrite sets when the next write is given up. It returns an error that is
// [http.ErrNotSupported] if the writer knows no deadlines. Behind a server a reader that
// takes nothing would then hold up Close for ever; in memory nothing holds up a write.
func (s *stream) limitWrite() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := writeLimit
	if s.closing {
		limit = closeLimit
	}
	// The deadline that a server's WriteTimeout has set counts from the request, and would
	// end every stream.
	return s.control.SetWriteDeadline(time.Now().Add(limit))
}

// end takes the stream's hand off the connection.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.control.SetWriteDeadline(time.Time{})
	s.control = nil
}

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

// A sampled has the figures of one track in one sample.
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
		if n%perSecond == 0 {
			w.window.add(w.source.histograms())
			w.rest(now)
			if w.turns != nil {
				w.turns.sample(now)
			}
		}
	}
	var details map[*track][]byte
	if n%perSecond == 0 {
		details = c.details()
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	frames, steps := make(map[*track][]byte, len(samples)), map[*track][]byte{}
	whole := make(map[*watched]*totals, len(sources))
	for k, s := range samples {
		p, long := s.track.add(s.read, s.ok, now)
		if k < len(sources) { // These come first.
			whole[s.of] = &totals{p.rates, p.Waiting}
			// Once a second: otherwise a source with ten short lines a second would be told of ten
			// times.
			if health := s.track.health(now); n%perSecond == 0 && s.of.health.Swap(health) != any(health) {
				changed = true
			}
		} else {
			p.Totals = whole[s.of]
		}
		if s.track.viewers > 0 {
			frames[s.track] = encodeEvent("frame", p)
			if long != nil {
				steps[s.track] = encodeEvent("step", long)
			}
		}
	}
	for s := range c.streams {
		if long := steps[s.track]; long != nil {
			s.notify(long)
		}
		if frame := frames[s.track]; frame != nil {
			s.offer(frame, details[s.track])
		}
	}
	if changed {
		c.tellSourcesLocked()
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
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, text)
}
