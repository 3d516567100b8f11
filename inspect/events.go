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

// selected says what a stream shows. Key and ID are nil if it is a whole source.
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
	StepS  float64 `json:"step_s"`
	Points []point `json:"points"`
}

func (i *Inspector) serveEvents(w http.ResponseWriter, r *http.Request, q query) error {
	of, ref, err := i.targetOf(r.Context(), q)
	if err != nil {
		return err
	}
	hello := hello{At: time.Now().UTC(), Title: i.title, Sources: i.sourceViews(), Control: i.mayControl()}
	if of != nil {
		hello.Selected = &selected{Source: of.source.name}
		if !of.whole {
			key, id := strings.ToValidUTF8(of.key, "\uFFFD"), idOf(of.key)
			hello.Selected.Key, hello.Selected.ID = &key, &id
		}
	}
	s := &stream{wake: make(chan struct{}, 1), control: http.NewResponseController(w)}
	points, err := i.join(s, of, ref, &hello)
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
	first := append(encodeEvent("hello", hello), encodeEvent("history", history{step.Seconds(), points})...)
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

// targetOf returns what a query selects: nil if there is no source at all. Without a
// source it is the first. The bucketRef is nil for a whole group.
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

// join adds a stream to those that are told of events. It completes the hello and
// returns the history in the same step, so that nothing is missing and nothing is told
// twice.
func (c *core) join(s *stream, of *target, ref bucketRef, h *hello) ([]point, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, &failure{Status: http.StatusServiceUnavailable, Message: "the inspector is closed"}
	}
	if len(c.streams) >= maxStreams {
		return nil, &failure{Status: http.StatusServiceUnavailable, Message: "too many streams are open"}
	}
	points := []point{}
	if of != nil {
		s.target = *of
		if of.source.isRemoved() { // just now
			return nil, unknownSource(of.source.name)
		}
		s.track, s.removed = c.trackLocked(*of, ref), of.source.removed
		s.track.viewers++
		points = append(points, s.track.points...)
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
	return points, nil
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
	views := []sourceView{}
	for _, w := range c.sources {
		views = append(views, w.view())
	}
	c.tellLocked("sources", views)
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
		b := c.withOverride(r.view(r.at))
		d.Bucket = &b
		if r.waiting > 0 {
			d.NextDeparture = newLine(r.at, r.waiting, ref.line(1)).next()
		}
	}
	if w.turns != nil {
		d.Turns = w.turns.view(turnsShown)
	}
	d.Quota, _ = w.quota(teamsShown) // That it failed is logged.
	return d, true
}

const (
	step        = 250 * time.Millisecond // between two points of a history
	maxPoints   = 240                    // a minute of them
	rateSteps   = 4                      // steps over which rates are taken: a second
	keepUnseen  = time.Minute            // how long the history of a bucket is kept when nobody looks at it
	maxTracked  = 512                    // buckets with a history
	detailEvery = 4                      // steps
)

// A point has the figures of a bucket, or of a source, at one instant.
type point struct {
	AtMS       int64    `json:"at_ms"`
	Arrivals   float64  `json:"arrivals"` // these four are per second, over the last second
	Departures float64  `json:"departures"`
	Refusals   float64  `json:"refusals"`
	Abandoned  float64  `json:"abandoned"`
	Waiting    int      `json:"waiting"`
	Level      *float64 `json:"level"`
	InFlight   *int     `json:"in_flight"`
	Rate       *float64 `json:"rate"`
	Depth      *int     `json:"depth"`
	Held       bool     `json:"held"`
	DryRun     bool     `json:"dry_run"`
	Totals     *totals  `json:"totals,omitempty"` // of the source; in frames of one bucket of a group only
}

// totals are figures of a whole source, told beside the figures of one of its buckets.
type totals struct {
	Arrivals   float64 `json:"arrivals"` // these four are per second, over the last second
	Departures float64 `json:"departures"`
	Refusals   float64 `json:"refusals"`
	Abandoned  float64 `json:"abandoned"`
	Waiting    int     `json:"waiting"`
}

// A target is the subject of a stream or of a change: a source, or one of its buckets. It does not
// move to another source that has come under the same name.
type target struct {
	source *watched
	key    string
	whole  bool
}

// A track is the history of a target. Only the sampler adds to it; the lock of the
// [Inspector] guards it.
type track struct {
	read    func() (reading, bool) // of the target, now; called outside the lock
	bucket  bucketRef              // of one bucket, else nil: it remains right when the text of its key is forgotten
	counts  [rateSteps + 1]counts  // a ring of the latest
	taken   int                    // how many samples have been taken
	points  []point                // oldest first
	viewers int
	seenAt  time.Time // when it last had a viewer
}

// counts are how often each thing has happened since the track was begun.
type counts struct {
	at                                     time.Time
	arrivals, departed, refused, abandoned float64
	of                                     reading
}

func newTrack(read func() (reading, bool)) *track { return &track{read: read} }

// add takes a sample into the history. If ok is false the target is a bucket that is not
// in use, which is empty.
func (t *track) add(r reading, ok bool, now time.Time) point {
	latest := counts{at: now, of: r, arrivals: float64(r.waiting)}
	if t.taken > 0 {
		last := t.counts[(t.taken-1)%len(t.counts)]
		if !ok {
			r = last.of.emptied()
		}
		latest = last.then(r, now)
	}
	t.counts[t.taken%len(t.counts)] = latest
	first := t.counts[max(t.taken-rateSteps, 0)%len(t.counts)]
	t.taken++

	p := point{AtMS: now.UnixMilli(), Waiting: r.waiting, Level: r.level, InFlight: r.inFlight,
		Rate: r.rate, Depth: r.depth, Held: r.held, DryRun: r.dryRun}
	if seconds := latest.at.Sub(first.at).Seconds(); seconds > 0 {
		p.Arrivals = (latest.arrivals - first.arrivals) / seconds
		p.Departures = (latest.departed - first.departed) / seconds
		p.Refusals = (latest.refused - first.refused) / seconds
		p.Abandoned = (latest.abandoned - first.abandoned) / seconds
	}
	if len(t.points) == maxPoints {
		t.points = append(t.points[:0], t.points[1:]...)
	}
	t.points = append(t.points, p)
	return p
}

// then returns the counts with the events since. A call is counted by the shaper when it ends, so
// those that wait have arrived too.
func (c counts) then(r reading, now time.Time) counts {
	departed := grown(c.of.departed, r.departed)
	refused := grown(c.of.refused, r.refused)
	abandoned := grown(c.of.abandoned, r.abandoned)
	next := counts{
		at: now, of: r,
		departed:  c.departed + departed,
		refused:   c.refused + refused,
		abandoned: c.abandoned + abandoned,
	}
	// Between its slot and its return a call neither waits nor is counted, which does not
	// mean that it has not arrived.
	next.arrivals = max(c.arrivals, next.departed+next.refused+next.abandoned+float64(r.waiting))
	return next
}

// emptied returns the reading once the bucket has drained.
func (r reading) emptied() reading {
	r.waiting, r.level, r.inFlight, r.held = 0, new(float64), new(int), false
	return r
}

// grown returns by how much a total has grown. That of a bucket which was deleted and
// made again has begun at 0.
func grown(from, to uint64) float64 {
	if to < from {
		return float64(to)
	}
	return float64(to - from)
}
