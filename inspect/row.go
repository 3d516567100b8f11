package inspect

import (
	"math"
	"net/url"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// recently is how long a bucket counts as refusing after its count of refusals has grown.
const recently = 10 * time.Second

// seen is what is remembered of a bucket from one scan to the next.
type seen struct {
	text    string // of its key
	round   uint64 // the latest scan that met it
	noted   bool
	refused uint64
	grew    time.Time // when refused was last seen to have grown; zero if it was not
}

// note compares the count of refusals with what it was. Of a bucket that is met for the
// first time it is not known when it refused, so that counts as having been at its
// latest call.
func (s *seen) note(st shaper.Stats, now time.Time) {
	switch {
	case st.Refused > 0 && !s.noted:
		s.grew = st.LastCall
	case st.Refused > s.refused, st.Refused > 0 && st.Refused < s.refused: // or a new bucket of the same key
		s.grew = now
	}
	s.noted, s.refused = true, st.Refused
}

// limitsView is what a row tells of its Limits. Rows with the same Limits share one.
type limitsView struct {
	limits   shaper.Limits
	text     string
	rate     *float64
	interval *float64
	burst    int
	depth    int
	maxWait  *float64
	inFlight int
	capacity float64 // in units: what the bucket and the line hold
}

func newLimitsView(l shaper.Limits) *limitsView {
	v := &limitsView{limits: l, text: l.String(), rate: finite(l.Rate), burst: max(l.Burst, 1), depth: l.Depth, inFlight: l.InFlight}
	if v.rate != nil {
		interval := 1 / *v.rate
		v.interval = &interval
	}
	if l.MaxWait > 0 {
		wait := l.MaxWait.Seconds()
		v.maxWait = &wait
	}
	v.capacity = float64(v.burst) + float64(v.depth)
	return v
}

// finite returns a rate, or nil if it is none.
func finite(l rate.Limit) *float64 {
	if l == rate.Inf || !(l > 0) {
		return nil
	}
	f := float64(l)
	return &f
}

// A limitsTable has one limitsView for all equal Limits.
type limitsTable map[shaper.Limits]*limitsView

// maxLimits bounds a limitsTable. Beyond it the table is begun anew.
const maxLimits = 10_000

func (t limitsTable) of(l shaper.Limits) *limitsView {
	v := t[l]
	if v == nil {
		if len(t) >= maxLimits {
			clear(t)
		}
		v = newLimitsView(l)
		t[l] = v
	}
	return v
}

// A row is a bucket as a scan has found it: what can be filtered, sorted and shown, in
// little memory.
type row struct {
	source *watched // set by the scan of the source
	key    string   // the text of the key; any bytes
	limits *limitsView
	grew   time.Time // when it was last seen to have refused

	at         time.Time
	waiting    int
	level      float64
	inFlight   int
	oldestWait time.Duration
	heldUntil  time.Time
	blocked    time.Time // until then
	dryRun     bool
	lastCall   time.Time

	departed, refused, abandoned          uint64
	queueFull, tooLate, tooCostly, closed uint64
	totalWait                             time.Duration
	missed                                float64
}

func newRow(key string, st shaper.Stats, limits *limitsView, grew, now time.Time) row {
	return row{
		key: key, limits: limits, grew: grew, at: now,
		waiting: st.Waiting, level: st.Level, inFlight: st.InFlight, oldestWait: st.OldestWait,
		heldUntil: st.HeldUntil, blocked: st.BlockedUntil, dryRun: st.DryRun, lastCall: st.LastCall,
		departed: st.Departed, refused: st.Refused, abandoned: st.Abandoned,
		queueFull: st.QueueFull, tooLate: st.TooLate, tooCostly: st.TooCostly, closed: st.Closed,
		totalWait: st.TotalWait, missed: st.Missed,
	}
}

// fill returns how much of the bucket and its line is taken, from 0 to 1.
func (r *row) fill() float64 {
	if r.limits.rate == nil {
		return 0
	}
	return min((r.level+float64(r.waiting))/r.limits.capacity, 1)
}

// idle returns how long the bucket has not been called; negative if it never has been.
func (r *row) idle() time.Duration {
	if r.lastCall.IsZero() {
		return -1
	}
	return max(r.at.Sub(r.lastCall), 0)
}

// refusing reports whether the bucket has refused of late.
func (r *row) refusing() bool { return !r.grew.IsZero() && r.at.Sub(r.grew) < recently }

// A bucket is a row in the form of the API.
type bucket struct {
	Source       string     `json:"source"`
	Key          string     `json:"key"`
	ID           string     `json:"id"`
	Limits       string     `json:"limits"`
	Rate         *float64   `json:"rate"`
	IntervalS    *float64   `json:"interval_s"`
	Burst        int        `json:"burst"`
	Depth        int        `json:"depth"`
	MaxWaitS     *float64   `json:"max_wait_s"`
	InFlightMax  int        `json:"in_flight_max"`
	Waiting      int        `json:"waiting"`
	Level        float64    `json:"level"`
	Fill         float64    `json:"fill"`
	InFlight     int        `json:"in_flight"`
	OldestWaitS  float64    `json:"oldest_wait_s"`
	HeldUntil    *time.Time `json:"held_until"`
	BlockedUntil *time.Time `json:"blocked_until"`
	DryRun       bool       `json:"dry_run"`
	LastCall     *time.Time `json:"last_call"`
	IdleS        *float64   `json:"idle_s"`
	Departed     uint64     `json:"departed"`
	Refused      uint64     `json:"refused"`
	Abandoned    uint64     `json:"abandoned"`
	QueueFull    uint64     `json:"queue_full"`
	TooLate      uint64     `json:"too_late"`
	TooCostly    uint64     `json:"too_costly"`
	Closed       uint64     `json:"closed"`
	TotalWaitS   float64    `json:"total_wait_s"`
	Missed       float64    `json:"missed"`
	Refusing     bool       `json:"refusing"`

	raw  string // the key as it is
	only bool   // the one bucket of a shaper, which has no key
}

// view returns the row in the form of the API.
func (r *row) view() bucket {
	b := bucket{
		Source: r.source.name, Key: strings.ToValidUTF8(r.key, "\uFFFD"), ID: idOf(r.key),
		Limits: r.limits.text, Rate: r.limits.rate, IntervalS: r.limits.interval,
		Burst: r.limits.burst, Depth: r.limits.depth, MaxWaitS: r.limits.maxWait, InFlightMax: r.limits.inFlight,
		Waiting: r.waiting, Level: number(r.level), Fill: number(r.fill()), InFlight: r.inFlight,
		OldestWaitS: r.oldestWait.Seconds(), HeldUntil: instant(r.heldUntil), BlockedUntil: instant(r.blocked), DryRun: r.dryRun,
		LastCall: instant(r.lastCall),
		Departed: r.departed, Refused: r.refused, Abandoned: r.abandoned,
		QueueFull: r.queueFull, TooLate: r.tooLate, TooCostly: r.tooCostly, Closed: r.closed,
		TotalWaitS: r.totalWait.Seconds(), Missed: number(r.missed), Refusing: r.refusing(),
		raw: r.key, only: r.source.source.kind() == "shaper",
	}
	if idle := r.idle(); idle >= 0 {
		seconds := idle.Seconds()
		b.IdleS = &seconds
	}
	return b
}

// instant returns t for JSON: in UTC, nil if it is zero.
func instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// number returns f, or 0 if JSON has no number for it.
func number(f float64) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return 0
	}
	return f
}

// idOf returns the id of a key: the key percent-encoded, for use as a segment of a path.
// The keys "." and ".." get a "=" in front, as browsers take such segments out of a path
// even if they are encoded; a "=" of the key itself is encoded.
func idOf(key string) string {
	id := strings.ReplaceAll(url.PathEscape(key), "=", "%3D")
	if id == "." || id == ".." {
		return "=" + id
	}
	return id
}

// keyOf returns the key that an id stands for.
func keyOf(id string) (string, error) { return url.PathUnescape(strings.TrimPrefix(id, "=")) }
