package inspect

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A report is something that operators must see. An empty message takes away the one
// before.
type report struct {
	At      time.Time `json:"at"`
	Message string    `json:"message"`
}

// selected is the subject of a stream. Key and ID are nil if it is a whole source.
type selected struct {
	Source string  `json:"source"`
	Key    *string `json:"key"`
	ID     *string `json:"id"`
}

// hello is the first event of a stream.
type hello struct {
	At       time.Time    `json:"at"`
	Title    string       `json:"title"`
	Sources  []sourceView `json:"sources"`
	Selected *selected    `json:"selected"`
	Control  bool         `json:"control"`
	Reports  []report     `json:"reports"`
	Changes  []change     `json:"changes"`
	InForce  []record     `json:"in_force"`
}

// history is the second event of a stream.
type history struct {
	StepS     float64 `json:"step_s"`
	Points    []point `json:"points"` // of the last minute
	LongStepS float64 `json:"long_step_s"`
	Long      []point `json:"long"` // of the last hour
}

func (i *Inspector) serveEvents(w http.ResponseWriter, r *http.Request, q query) error {
	of, ref, err := i.targetOf(r.Context(), q)
	if err != nil {
		return err
	}
	hello := hello{At: time.Now().UTC(), Title: i.title, Sources: viewsOf(i.all()), Control: i.mayControl()}
	if of != nil {
		hello.Selected = &selected{Source: of.source.name}
		if !of.whole {
			key, id := strings.ToValidUTF8(of.key, "\uFFFD"), idOf(of.key)
			hello.Selected.Key, hello.Selected.ID = &key, &id
		}
	}
	s := &stream{wake: make(chan struct{}, 1), control: http.NewResponseController(w)}
	since := int64(0)
	if err := q.milliseconds("since", &since); err != nil {
		return err
	}
	i.controller.endOvertaken()
	past, err := i.join(s, of, ref, &hello, since)
	if err != nil {
		return err
	}
	defer i.leave(s)

	if _, served := r.Context().Value(http.ServerContextKey).(*http.Server); served {
		if err := s.limitWrite(); errors.Is(err, http.ErrNotSupported) {
			return &failure{Status: http.StatusNotImplemented,
				Message: "a stream needs a ResponseWriter with write deadlines; a handler around the Inspector has one without them, and without Unwrap"}
		}
	}
	// The deadline that a server's ReadTimeout has set would end the request in the middle
	// of the stream: net/http reads ahead, to notice that a client has gone.
	_ = s.control.SetReadDeadline(time.Time{})
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	first := append(encodeEvent("hello", hello), encodeEvent("history", past)...)
	if of != nil {
		if d, ok := i.liveDetail(*of, s.track.bucket); ok {
			first = append(first, encodeEvent("detail", d)...)
		}
	}
	if r.Method == http.MethodHead || s.write(w, first) != nil {
		return nil
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		var text []byte
		select {
		case <-s.wake:
			text = s.pending()
		case <-beat.C:
			text = []byte(": still here\n\n")
		case <-r.Context().Done():
			return nil
		case <-i.closing:
			s.bye(w)
			return nil
		case <-s.removed:
			s.bye(w)
			return nil
		}
		if s.write(w, text) != nil {
			return nil
		}
	}
}

// targetOf returns the target of a query, nil if there are no sources. A query without a
// source selects the first. The bucketRef is nil for a whole group.
func (c *core) targetOf(ctx context.Context, q query) (*target, bucketRef, error) {
	name := q.text("source")
	if name == "" {
		sources := c.all()
		if len(sources) == 0 {
			return nil, nil, nil
		}
		name = sources[0].name
	}
	w, err := c.sourceNamed(name)
	if err != nil {
		return nil, nil, err
	}
	if err := keeps(q.text("key")); err != nil {
		return nil, nil, err
	}
	of := &target{source: w, key: q.text("key"), whole: !q.has("key")}
	if w.source.kind() == "shaper" && of.key == "" {
		of.whole = true // One bucket is all that there is.
	}
	if of.whole && w.source.kind() == "group" {
		return of, nil, nil
	}
	ref, err := w.bucket(ctx, of.key)
	return of, ref, err
}

// join lets a stream receive events. It completes the hello and returns the history after an
// instant, in milliseconds, in the same step, so that nothing is missing and nothing is told
// twice.
func (c *core) join(s *stream, of *target, ref bucketRef, h *hello, since int64) (history, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return history{}, &failure{Status: http.StatusServiceUnavailable, Message: "the inspector is closed"}
	}
	if len(c.streams) >= maxStreams {
		return history{}, &failure{Status: http.StatusServiceUnavailable, Message: "too many streams are open"}
	}
	past := history{StepS: step.Seconds(), Points: []point{}, LongStepS: longStep.Seconds(), Long: []point{}}
	if of != nil {
		s.target = *of
		if of.source.isRemoved() { // just now
			return history{}, unknownSource(of.source.name)
		}
		s.track, s.removed = c.trackLocked(*of, ref), of.source.removed
		s.track.viewers++
		past.Points, past.Long = s.track.recent.after(since), s.track.long.after(since)
	}
	h.Reports, h.Changes = slices.Clone(c.reports), slices.Clone(c.ledger.told)
	if h.Reports == nil {
		h.Reports = []report{}
	}
	if h.Changes == nil {
		h.Changes = []change{}
	}
	h.InForce = c.ledger.current()
	c.streams[s] = true
	c.running.Add(1)
	return past, nil
}

// leave undoes join.
func (c *core) leave(s *stream) {
	s.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, s)
	if s.track != nil {
		s.track.viewers--
		s.track.seenAt = time.Now()
	}
	c.running.Done()
}

// trackLocked returns the history of a target, which begins now if it has none.
func (c *core) trackLocked(of target, ref bucketRef) *track {
	if of.whole {
		return of.source.whole
	}
	t := c.tracked[of]
	if t != nil {
		return t
	}
	if len(c.tracked) >= maxTracked {
		c.dropOldestLocked()
	}
	t = newTrack(func() (reading, bool) {
		st, ok := ref.stats()
		return readingOf(st, time.Now()), ok
	})
	t.bucket = ref
	c.tracked[of] = t
	return t
}

// dropOldestLocked forgets the track that has been without a viewer for longest. There
// is one, as there are fewer streams than tracks.
func (c *core) dropOldestLocked() {
	var oldest target
	found := false
	for of, t := range c.tracked {
		if t.viewers == 0 && (!found || t.seenAt.Before(c.tracked[oldest].seenAt)) {
			oldest, found = of, true
		}
	}
	delete(c.tracked, oldest)
}

// tellLocked sends an event to all streams.
func (c *core) tellLocked(name string, value any) {
	event := encodeEvent(name, value)
	for s := range c.streams {
		s.notify(event)
	}
}

// tellSourcesLocked tells all streams which sources there are.
func (c *core) tellSourcesLocked() {
	if len(c.streams) == 0 {
		return
	}
	c.tellLocked("sources", viewsOf(c.sources))
}

// announce tells all streams, and those to come, of a change.
func (c *core) announce(key changeKey, made change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if key.of.source.isRemoved() { // Another source may be known by its name.
		return
	}
	c.ledger.add(key, made)
	c.tellLocked("change", made)
}

// liveDetail is the report on its target that a stream gets once a second. The histograms are of
// the last minute.
type liveDetail struct {
	Bucket        *bucket        `json:"bucket"` // nil for a whole group, and while the bucket is not in use
	NextDeparture *time.Time     `json:"next_departure"`
	Histograms    histogramsView `json:"histograms"`
	Turns         *turnsView     `json:"turns,omitempty"` // of a Shaper WithFairQueue
	Quota         *quotaView     `json:"quota,omitempty"` // of a source of OfQuota
}

func (c *core) liveDetail(t target, ref bucketRef) (liveDetail, bool) {
	w := t.source
	if w.isRemoved() {
		return liveDetail{}, false
	}
	d := liveDetail{Histograms: w.window.view(of(w))}
	if ref == nil {
		return d, true
	}
	if r, ok := w.look(t.key, ref); ok {
		b := c.withOverride(r.view(w, r.instant()))
		d.Bucket = &b
		if r.waiting > 0 {
			d.NextDeparture = newLine(r.instant(), int(r.waiting), ref.line(1)).next()
		}
	}
	if w.turns != nil {
		d.Turns = w.turns.view(turnsShown)
	}
	d.Quota, _ = w.quota(teamsShown) // That it failed is logged.
	return d, true
}
