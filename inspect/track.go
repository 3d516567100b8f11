package inspect

import (
	"math"
	"time"

	"example.com/leakybucket/shaper/shared"
)

const (
	step      = 100 * time.Millisecond // between two points of the last minute
	keptSteps = 600                    // a minute of them
	longStep  = 10 * time.Second       // between two points of the last hour
	keptLong  = 360                    // an hour of them
	perSecond = 10                     // steps

	keepUnseen = time.Minute // how long the history of a bucket is kept when nobody looks at it
	maxTracked = 512         // buckets with a history
)

// A point has the figures of a bucket, or of a source, at one instant, or in one step of the last
// hour.
type point struct {
	AtMS int64 `json:"at_ms"`
	rates
	Brief    brief    `json:"brief"`
	Waiting  int      `json:"waiting"`
	Level    *float64 `json:"level"`
	InFlight *int     `json:"in_flight"`
	Rate     *float64 `json:"rate"`
	Depth    *int     `json:"depth"`
	Held     bool     `json:"held"`
	DryRun   bool     `json:"dry_run"`
	Totals   *totals  `json:"totals,omitempty"` // of the source; in frames of one bucket of a group only
}

// rates are per second: over the last second, or over the whole step in the last hour.
type rates struct {
	Arrivals   float64 `json:"arrivals"`
	Departures float64 `json:"departures"`
	Refusals   float64 `json:"refusals"`
	Abandoned  float64 `json:"abandoned"`
}

// brief are rates over the shortest time that tells something, which shows a burst as a burst. In
// the last hour they are the greatest of each step.
type brief struct {
	OverS float64 `json:"over_s"`
	rates
}

// totals are figures of a whole source, told beside the figures of one of its buckets.
type totals struct {
	rates
	Waiting int `json:"waiting"`
}

// A target is the subject of a stream or of a change: a source, or one of its buckets. It does not
// move to another source that has come under the same name.
type target struct {
	source *watched
	key    string
	whole  bool
}

// A track is the history of a target: the last minute in short steps, and the last hour in long
// ones. Its memory is bounded, and does not depend on how much happens. Only the sampler adds to
// it; the lock of the [Inspector] guards it.
type track struct {
	read   func() (reading, bool) // of the target, now; called outside the lock
	bucket bucketRef              // of one bucket, else nil: it remains right when the text of its key is forgotten

	last   reading
	counts [perSecond + 1]counts // a ring of the latest
	taken  int                   // how many samples have been taken
	recent ring
	long   ring
	begun  counts // when the long step that goes on has begun
	open   sample // the part of it so far

	refusedAt, waitedAt time.Time // when something was last refused, and somebody waited

	viewers int
	seenAt  time.Time // when it last had a viewer
}

// counts are how often each thing has happened since the track was begun.
type counts struct {
	at                                     time.Time
	arrivals, departed, refused, abandoned float64
}

func newTrack(read func() (reading, bool)) *track {
	return &track{read: read, recent: ring{size: keptSteps}, long: ring{size: keptLong}, open: sample{inFlight: -1}}
}

// A sample is a point in little memory. NaN, or a number below 0, stands for unknown.
type sample struct {
	atMS            int64
	rates, brief    [4]float32
	over            float32
	waiting         int32
	inFlight, depth int32
	held, dryRun    bool
	level, rate     float64
}

// A ring keeps the latest samples.
type ring struct {
	size int
	kept []sample // up to size
	next int      // index that the next one replaces, once the ring is full
}

func (r *ring) add(s sample) {
	if n := len(r.kept); n < r.size {
		if n == cap(r.kept) { // append would make room for more than there will be.
			r.kept = append(make([]sample, 0, min(2*n+16, r.size)), r.kept...)
		}
		r.kept = append(r.kept, s)
		return
	}
	r.kept[r.next] = s
	r.next = (r.next + 1) % r.size
}

// after returns the points that are later than an instant in milliseconds, the oldest first.
func (r *ring) after(atMS int64) []point {
	points := []point{}
	for k := range r.kept {
		if s := &r.kept[(r.next+k)%len(r.kept)]; s.atMS > atMS {
			points = append(points, s.point())
		}
	}
	return points
}

func (s *sample) point() point {
	return point{AtMS: s.atMS, rates: newRates(s.rates), Brief: brief{thousandths(s.over), newRates(s.brief)},
		Waiting: int(s.waiting), Level: finiteOrNil(s.level), InFlight: countOrNil(s.inFlight),
		Rate: finiteOrNil(s.rate), Depth: countOrNil(s.depth), Held: s.held, DryRun: s.dryRun}
}

func newRates(r [4]float32) rates {
	return rates{thousandths(r[0]), thousandths(r[1]), thousandths(r[2]), thousandths(r[3])}
}

// thousandths returns a number of few digits, as hundreds of them go to each reader.
func thousandths(f float32) float64 { return math.Round(float64(f)*1e3) / 1e3 }

func countOrNil(n int32) *int {
	if n < 0 {
		return nil
	}
	whole := int(n)
	return &whole
}

// add takes a reading into the history. If ok is false the target is a bucket that is not in use,
// which is empty. The second result is the step of the last hour that ends now, if one does.
func (t *track) add(r reading, ok bool, now time.Time) (point, *point) {
	latest := counts{at: now, arrivals: float64(r.waiting)}
	if t.taken > 0 {
		before := t.counts[(t.taken-1)%len(t.counts)]
		if !ok {
			r = t.last.emptied()
		}
		latest = before.then(t.last, r, now)
		if latest.refused > before.refused {
			t.refusedAt = now
		}
	} else {
		t.begun = latest
	}
	if r.waiting > 0 {
		t.waitedAt = now
	}
	if !ok { // The totals of the next bucket of the key begin at 0.
		r.departed, r.refused, r.abandoned = 0, 0, 0
	}
	t.last = r
	t.counts[t.taken%len(t.counts)] = latest
	second := t.counts[max(t.taken-perSecond, 0)%len(t.counts)]

	s := sample{atMS: now.UnixMilli(), waiting: bounded(r.waiting), inFlight: -1, depth: -1, held: r.held, dryRun: r.dryRun,
		level: math.NaN(), rate: math.NaN(), rates: latest.since(second)}
	if r.level != nil {
		s.level = *r.level
	}
	if r.inFlight != nil {
		s.inFlight = bounded(*r.inFlight)
	}
	if r.rate != nil {
		s.rate = *r.rate
	}
	if r.depth != nil {
		s.depth = bounded(*r.depth)
	}
	short := t.briefly(s)
	s.brief, s.over = latest.since(short), float32(latest.at.Sub(short.at).Seconds())
	t.taken++
	t.recent.add(s)
	return s.point(), t.lengthen(s, latest)
}

// briefly returns the counts at the beginning of the shortest time, up to a second, in which
// enough requests leave that one more or less makes no difference: with fewer, an even band
// would look ragged.
func (t *track) briefly(s sample) counts {
	const enough = 20 // requests
	pace := s.rate
	if math.IsNaN(pace) {
		pace = float64(s.rates[1])
	}
	wanted := min(max(time.Duration(enough/max(pace, enough)*float64(time.Second)), step), time.Second)
	latest := t.counts[t.taken%len(t.counts)]
	for k := 1; k < perSecond && k < t.taken; k++ {
		// The ticker may be late for one sample and in time for the next, which are close then.
		if c := t.counts[(t.taken-k)%len(t.counts)]; latest.at.Sub(c.at) >= wanted-step/4 {
			return c
		}
	}
	return t.counts[max(t.taken-perSecond, 0)%len(t.counts)]
}

// lengthen takes a sample into the long step that goes on, and returns the step if it ends.
func (t *track) lengthen(s sample, latest counts) *point {
	of := &t.open
	for k, rate := range s.brief {
		s.brief[k] = max(rate, of.brief[k])
	}
	s.waiting, s.inFlight = max(s.waiting, of.waiting), max(s.inFlight, of.inFlight)
	s.level = math.Max(s.level, of.level) // NaN if either is: not known for all of the step
	s.held = s.held || of.held
	if latest.at.Sub(t.begun.at) < longStep-step/2 {
		t.open = s
		return nil
	}
	s.rates = latest.since(t.begun)
	t.long.add(s)
	t.begun, t.open = latest, sample{inFlight: -1}
	p := s.point()
	return &p
}

// health returns the state of a source in one word.
func (t *track) health(now time.Time) string {
	switch level := t.last.shared; {
	case level != nil && level.State != shared.StateShared:
		return "unavailable"
	case !t.refusedAt.IsZero() && now.Sub(t.refusedAt) < recently:
		return "refusing"
	case !t.waitedAt.IsZero() && now.Sub(t.waitedAt) < time.Second:
		return "line"
	}
	return "rest"
}

// bounded returns n as it is kept in a sample.
func bounded(n int) int32 { return int32(min(n, math.MaxInt32)) }

// then returns the counts with the events between two readings. A call is counted by the shaper
// when it ends, so those that wait have arrived too.
func (c counts) then(from, to reading, now time.Time) counts {
	next := counts{
		at:        now,
		departed:  c.departed + grown(from.departed, to.departed),
		refused:   c.refused + grown(from.refused, to.refused),
		abandoned: c.abandoned + grown(from.abandoned, to.abandoned),
	}
	// Between its slot and its return a call neither waits nor is counted, which does not
	// mean that it has not arrived.
	next.arrivals = max(c.arrivals, next.departed+next.refused+next.abandoned+float64(to.waiting))
	return next
}

// since returns arrivals, departures, refusals and abandonments per second since earlier counts.
func (c counts) since(from counts) [4]float32 {
	seconds := c.at.Sub(from.at).Seconds()
	if seconds <= 0 {
		return [4]float32{}
	}
	per := func(from, to float64) float32 { return float32((to - from) / seconds) }
	return [4]float32{per(from.arrivals, c.arrivals), per(from.departed, c.departed), per(from.refused, c.refused), per(from.abandoned, c.abandoned)}
}

// emptied returns the reading once the bucket has drained.
func (r reading) emptied() reading {
	r.waiting, r.level, r.inFlight, r.held = 0, new(float64), new(int), false
	return r
}

// grown returns the growth of a total. The total of a bucket that was deleted and made again
// has begun at 0.
func grown(from, to uint64) float64 {
	if to < from {
		return float64(to)
	}
	return float64(to - from)
}
