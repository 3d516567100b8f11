package inspect

import (
	"math"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
	"example.com/leakybucket/shaper/watch"
)

// recently is how long a bucket counts as refusing after it has refused.
const recently = 10 * time.Second

// limitsView is the part of a row that tells its Limits. Rows with the same Limits share one.
type limitsView struct {
	limits   shaper.Limits
	text     string
	rate     *float64
	interval *float64
	burst    int
	depth    int
	maxWait  *float64
	inFlight int
	capacity float64 // of the bucket and the line together, in units
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

// A row is a bucket as a scan has found it: the fields to be filtered, sorted and shown. There may be
// a million of them, so fields that are zero for most buckets stand in rare, and instants are in
// nanoseconds since 1970, 0 for none.
type row struct {
	key    string // the text of the key; any bytes
	limits *limitsView
	rare   *rare // nil: all of it is zero

	at                           int64 // the instant of all other fields
	lastCall, refusedAt          int64
	level                        float64
	oldestWait, totalWait        time.Duration
	departed, refused, abandoned uint64
	waiting                      int32
	dryRun                       bool
}

// rare are the fields of a row that are zero for most buckets. Requests that were refused for none
// of its reasons found the line full.
type rare struct {
	heldUntil, blocked                      time.Time // until then
	inFlight, reserved                      int
	tooLate, tooCostly, closed, unavailable uint64
	missed                                  float64
	givenBack, charged, forfeited           uint64
	shared                                  *shared.Stats // nil: its level is its own
}

// nothingRare stands for the rare fields of a row that has none.
var nothingRare rare

func newRow(key string, st shaper.Stats, limits *limitsView, now time.Time) row {
	r := row{
		key: key, limits: limits,
		at: now.UnixNano(), lastCall: nanoseconds(st.LastCall), refusedAt: nanoseconds(st.LastRefusal),
		level: st.Level, oldestWait: st.OldestWait, totalWait: st.TotalWait,
		departed: st.Departed, refused: st.Refused, abandoned: st.Abandoned,
		waiting: bounded(st.Waiting), dryRun: st.DryRun,
	}
	more := rare{
		heldUntil: st.HeldUntil, blocked: st.BlockedUntil, inFlight: st.InFlight, reserved: st.Reserved,
		tooLate: st.TooLate, tooCostly: st.TooCostly, closed: st.Closed, unavailable: st.Unavailable, missed: number(st.Missed),
		givenBack: st.GivenBack, charged: st.Charged, forfeited: st.Forfeited, shared: sharedBucket(st.Bucket),
	}
	if more != nothingRare {
		kept := more // Only this one is not on the stack.
		r.rare = &kept
	}
	return r
}

// instant returns the instant of the row.
func (r *row) instant() time.Time { return time.Unix(0, r.at) }

// nanoseconds returns an instant as it stands in a row.
func nanoseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// instantOf returns the instant that stands in a row, for JSON: in UTC, nil if there is none.
func instantOf(nanoseconds int64) *time.Time {
	if nanoseconds == 0 {
		return nil
	}
	t := time.Unix(0, nanoseconds).UTC()
	return &t
}

// sharedBucket returns the state of a shared bucket, or nil if there is none.
func sharedBucket(st shared.Stats) *shared.Stats {
	if st.State == "" {
		return nil
	}
	kept := st // Only this one is not on the stack.
	return &kept
}

// levelAt returns the level at an instant, which is not after the instant of the row. If the
// bucket was called in between, that level is unknown, and the level of the row stands for it,
// as it does while requests wait: each that leaves raises the level again.
func (r *row) levelAt(at time.Time) float64 {
	level := number(r.level)
	if then := at.UnixNano(); level > 0 && r.waiting == 0 && r.limits.rate != nil && r.at > then && r.lastCall <= then {
		leaked := *r.limits.rate * time.Duration(r.at-then).Seconds()
		level = max(level, min(level+leaked, float64(r.limits.burst))) // The line may have become empty since then.
	}
	return level
}

// fillOf returns the share of the bucket and its line that is taken, from 0 to 1.
func (r *row) fillOf(level float64) float64 {
	return min((level+float64(r.waiting))/r.limits.capacity, 1)
}

// round rounds the numbers by which rows are sorted and shown, so that they come out the same from
// any instant.
func round(f float64) float64 { return math.Round(f*1e6) / 1e6 }

// idle returns how long the bucket has not been called; negative if it never has been.
func (r *row) idle() time.Duration {
	if r.lastCall == 0 {
		return -1
	}
	return max(time.Duration(r.at-r.lastCall), 0)
}

// refusing reports whether the bucket has refused of late.
func (r *row) refusing() bool { return r.refusedAt != 0 && time.Duration(r.at-r.refusedAt) < recently }

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
	Reserved     int        `json:"reserved"`
	OldestWaitS  float64    `json:"oldest_wait_s"`
	HeldUntil    *time.Time `json:"held_until"`
	BlockedUntil *time.Time `json:"blocked_until"`
	DryRun       bool       `json:"dry_run"`
	LastCall     *time.Time `json:"last_call"`
	LastRefusal  *time.Time `json:"last_refusal"`
	IdleS        *float64   `json:"idle_s"`
	Departed     uint64     `json:"departed"`
	Refused      uint64     `json:"refused"`
	Abandoned    uint64     `json:"abandoned"`
	QueueFull    uint64     `json:"queue_full"`
	TooLate      uint64     `json:"too_late"`
	TooCostly    uint64     `json:"too_costly"`
	Closed       uint64     `json:"closed"`
	Unavailable  uint64     `json:"unavailable"`
	TotalWaitS   float64    `json:"total_wait_s"`
	Missed       float64    `json:"missed"`
	GivenBack    uint64     `json:"given_back"`
	Charged      uint64     `json:"charged"`
	Forfeited    uint64     `json:"forfeited"`
	Refusing     bool       `json:"refusing"`

	Shared   *sharedView `json:"shared"`
	Override *override   `json:"override"` // set by withOverride

	of  *watched // its source
	raw string   // the key as it is
}

// A sharedView is the state of a shared bucket in the form of the API.
type sharedView struct {
	State       string   `json:"state"` // shared, down, local or open
	Error       *string  `json:"error"`
	RTTS        float64  `json:"rtt_s"`
	Share       *float64 `json:"share"`
	LatenessS   float64  `json:"lateness_s"`
	Held        int64    `json:"held"`
	Ahead       int64    `json:"ahead"`
	InFlightMax int      `json:"in_flight_max"`
	Seats       int      `json:"seats"`
	RoundTrips  uint64   `json:"round_trips"`
	Failures    uint64   `json:"failures"`
	Leased      uint64   `json:"leased"`
	Dropped     uint64   `json:"dropped"`
	GivenBack   uint64   `json:"given_back"`
}

func newSharedView(st *shared.Stats) *sharedView {
	if st == nil {
		return nil
	}
	v := &sharedView{State: string(st.State), RTTS: st.RTT.Seconds(), LatenessS: st.Lateness.Seconds(), Held: st.Held, Ahead: st.Ahead,
		InFlightMax: st.InFlight, Seats: st.Seats,
		RoundTrips: st.RoundTrips, Failures: st.Failures, Leased: st.Leased, Dropped: st.Dropped, GivenBack: st.GivenBack}
	if st.Err != nil {
		text := strings.ToValidUTF8(st.Err.Error(), "\uFFFD")
		v.Error = &text
	}
	if st.Share > 0 {
		v.Share = &st.Share
	}
	return v
}

// view returns the row, of a source, in the form of the API. Its level and its fill are as at an
// instant that is not after the instant of the row.
func (r *row) view(of *watched, at time.Time) bucket {
	level, more := r.levelAt(at), r.rare
	if more == nil {
		more = &nothingRare
	}
	b := bucket{
		Source: of.name, Key: strings.ToValidUTF8(r.key, "\uFFFD"), ID: idOf(r.key),
		Limits: r.limits.text, Rate: r.limits.rate, IntervalS: r.limits.interval,
		Burst: r.limits.burst, Depth: r.limits.depth, MaxWaitS: r.limits.maxWait, InFlightMax: r.limits.inFlight,
		Waiting: int(r.waiting), Level: round(level), Fill: round(r.fillOf(level)), InFlight: more.inFlight,
		OldestWaitS: r.oldestWait.Seconds(), HeldUntil: instant(more.heldUntil), BlockedUntil: instant(more.blocked), DryRun: r.dryRun,
		LastCall: instantOf(r.lastCall), LastRefusal: instantOf(r.refusedAt),
		Departed: r.departed, Refused: r.refused, Abandoned: r.abandoned,
		QueueFull: r.refused - more.tooLate - more.tooCostly - more.closed - more.unavailable,
		TooLate:   more.tooLate, TooCostly: more.tooCostly, Closed: more.closed,
		Unavailable: more.unavailable, TotalWaitS: r.totalWait.Seconds(), Missed: more.missed, Refusing: r.refusing(),
		Reserved: more.reserved, GivenBack: more.givenBack, Charged: more.charged, Forfeited: more.forfeited,
		Shared: newSharedView(more.shared),
		of:     of, raw: r.key,
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

// windowSeconds is the span of the histograms of a stream, in seconds.
const windowSeconds = 60

// waits says how long the requests that left have waited.
type waits struct {
	Of      string   `json:"of"` // "bucket", or "source" if only the waits of all keys are known
	Count   uint64   `json:"count"`
	P50S    *float64 `json:"p50_s"`
	P95S    *float64 `json:"p95_s"`
	P99S    *float64 `json:"p99_s"`
	WithinS *float64 `json:"within_s"` // how far p99_s may be off; the others are off by less
}

func newWaits(of string, h watch.Histogram) waits {
	w := waits{Of: of, Count: h.Count()}
	w.P50S, _ = quantile(h, 0.5)
	w.P95S, _ = quantile(h, 0.95)
	w.P99S, w.WithinS = quantile(h, 0.99)
	return w
}

// quantile returns a quantile and how far it may be off; nil for a value that is no number.
func quantile(h watch.Histogram, q float64) (value, within *float64) {
	v, w := h.Quantile(q)
	return finiteOrNil(v), finiteOrNil(w)
}

func finiteOrNil(f float64) *float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	return &f
}

// histogramsView are the histograms of the last minute in the form of the API.
type histogramsView struct {
	Of        string   `json:"of"`
	Wait      bars     `json:"wait"`    // in seconds
	Spacing   bars     `json:"spacing"` // in intervals
	Count     uint64   `json:"count"`   // of wait
	P50S      *float64 `json:"wait_p50_s"`
	P95S      *float64 `json:"wait_p95_s"`
	P99S      *float64 `json:"wait_p99_s"`
	Spacing50 *float64 `json:"spacing_p50"`
	Spacing99 *float64 `json:"spacing_p99"`
}

// bars are the buckets of a histogram that are not empty: the upper bound, and how many
// values are in it. The last possible bound is infinite, which JSON can't say: null.
type bars [][2]any

func newBars(h watch.Histogram) bars {
	b := bars{}
	for upper, count := range h.Buckets() {
		b = append(b, [2]any{finiteOrNil(upper), count})
	}
	return b
}

// A window remembers the histograms of a source once a second, to tell the histograms of the last
// minute.
type window struct {
	mu     sync.Mutex
	kept   [windowSeconds + 1]watch.Histograms // a ring
	taken  int
	latest watch.Histograms
}

// add remembers the present histograms.
func (w *window) add(h watch.Histograms) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept[w.taken%len(w.kept)] = h
	w.taken++
	w.latest = h
}

// view returns the counts in the window.
func (w *window) view(of string) histogramsView {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.taken == 0 {
		return histogramsView{Of: of, Wait: bars{}, Spacing: bars{}}
	}
	first := w.kept[max(w.taken-len(w.kept), 0)%len(w.kept)]
	wait, spacing := w.latest.Wait.Sub(first.Wait), w.latest.Spacing.Sub(first.Spacing)
	v := histogramsView{Of: of, Wait: newBars(wait), Spacing: newBars(spacing), Count: wait.Count()}
	v.P50S, _ = quantile(wait, 0.5)
	v.P95S, _ = quantile(wait, 0.95)
	v.P99S, _ = quantile(wait, 0.99)
	v.Spacing50, _ = quantile(spacing, 0.5)
	v.Spacing99, _ = quantile(spacing, 0.99)
	return v
}
