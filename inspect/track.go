package inspect

import (
	"time"
)

const (
	step        = 250 * time.Millisecond // between two points of a history
	maxPoints   = 240                    // a minute of them
	rateSteps   = 4                      // steps over which rates are taken: a second
	keepUnseen  = time.Minute            // how long the history of a bucket is kept when nobody looks at it
	maxTracked  = 512                    // buckets with a history
	detailEvery = 4                      // steps
)

// A point is what there is to see of a bucket, or of a source, at one instant.
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

// totals are figures of a whole source, beside those of one of its buckets.
type totals struct {
	Arrivals   float64 `json:"arrivals"` // these four are per second, over the last second
	Departures float64 `json:"departures"`
	Refusals   float64 `json:"refusals"`
	Abandoned  float64 `json:"abandoned"`
	Waiting    int     `json:"waiting"`
}

// A target is what a stream shows or a change is made to: a source, or one of its buckets. It is
// not that of another source which has come under the same name.
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

// then returns the counts with what has happened since. A call is counted by the shaper
// when it ends, so those that wait have arrived too.
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
