package shaper

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"example.com/leakybucket/internal/exact"
)

// A watch keeps the news of a dispatcher's requests for those who look at it: counts, histograms,
// the latest refusals, and recordings. It decides nothing.
type watch struct {
	totals      *totals      // of all keys together; nil: it belongs to a Shaper
	measures    *measures    // nil: no request has waited yet
	refusalRing *refusalRing // nil: no request has been refused yet

	keysRefused *[keptRefusals]any // the keys of refusalRing; nil: requests have no keys that it knows
	recordings  []*Recording       // of a Shaper
}

// totals are the counts of all flows of a [Group] together, which outlive the flows. A
// [Shaper] has one flow, and does not use them.
type totals struct {
	departed, abandoned uint64
	refused             refusals
	wait                int64   // the sum of the waits of those that departed, in nanoseconds
	missed              float64 // cost units lost to lateness beyond slack
	settlements
}

// add adds the counts of others.
func (t *totals) add(o *totals) {
	t.departed += o.departed
	t.abandoned += o.abandoned
	for i, n := range o.refused {
		t.refused[i] += n
	}
	t.wait = exact.Sum(t.wait, o.wait)
	t.missed += o.missed
	t.settlements.add(&o.settlements)
}

// countPassLocked counts a request that has left f as it came, now.
func (o *watch) countPassLocked(f *flow, now int64) {
	f.entered = now // No call has come later.
	f.departed++
	if o.totals != nil {
		o.totals.departed++
	}
}

// countDepartureLocked counts a request that has left the line of f. It entered at the instant
// entered and waited for waited nanoseconds.
func (o *watch) countDepartureLocked(f *flow, entered, waited int64) {
	f.entered = max(f.entered, entered)
	f.departed++
	f.wait = exact.Sum(f.wait, waited)
	if o.totals != nil {
		o.totals.departed++
		o.totals.wait = exact.Sum(o.totals.wait, waited)
	}
}

// countRefusalLocked counts a request that came at the instant entered and was refused at the
// instant at, and why.
func (o *watch) countRefusalLocked(f *flow, entered, at int64, why reason) {
	f.entered = max(f.entered, entered)
	c := f.bucket.coldOrNew()
	c.refused.count(why)
	c.refusedAt = max(c.refusedAt, at)
	if o.totals != nil {
		o.totals.refused.count(why)
	}
}

// countAbandonmentLocked counts a request whose context ended.
func (o *watch) countAbandonmentLocked(f *flow, entered int64) {
	f.entered = max(f.entered, entered)
	f.bucket.coldOrNew().abandoned++
	if o.totals != nil {
		o.totals.abandoned++
	}
}

// A refusalRing holds the latest refusals. A dispatcher gets one with its first refusal.
type refusalRing struct {
	latest [keptRefusals]refusalRecord
	count  uint64 // of all refusals; the next one goes to this index, modulo keptRefusals

	errors *[16]RejectError // made at once; nil: none has been yet
	spare  int              // how many of them have not been handed out yet, the first ones
}

type refusalRecord struct {
	at         int64
	retryAfter time.Duration
	cost       int64
	reason     reason
}

// keepRefusalLocked remembers a refusal.
func (o *watch) keepRefusalLocked(at, cost int64, why rejection) {
	o.refusalRingLocked().add(at, cost, why)
}

// keepRefusedKeyLocked notes the key of the latest refusal, if requests have keys.
func (o *watch) keepRefusedKeyLocked(key any) {
	o.keysRefused[(o.refusalRing.count-1)%keptRefusals] = key
}

// refusalRingLocked returns the refusalRing of a dispatcher, and makes it if there is none.
func (o *watch) refusalRingLocked() *refusalRing {
	if o.refusalRing == nil {
		o.refusalRing = new(refusalRing)
	}
	return o.refusalRing
}

// add adds a refusal.
func (r *refusalRing) add(at, cost int64, why rejection) {
	r.count++
	last := r.last()
	last.at, last.retryAfter, last.cost, last.reason = at, why.retryAfter, cost, why.reason
}

// newError returns the error of a refusal. They are made 16 in one allocation, as one by one
// they would take a fifth of the time of a refusal.
func (r *refusalRing) newError(why rejection) *RejectError {
	if r.spare == 0 {
		r.errors, r.spare = new([16]RejectError), 16
	}
	r.spare--
	err := &r.errors[r.spare]
	*err = why.value()
	return err
}

// last returns the latest refusal. There has been one.
func (r *refusalRing) last() *refusalRecord { return &r.latest[(r.count-1)%keptRefusals] }

// refusals returns the content of the ring, each [Refusal] with the Key that keyOf returns for
// its number.
func (r *refusalRing) refusals(d *dispatcher, keyOf func(number uint64) any) []Refusal {
	first := r.count - min(r.count, keptRefusals)
	found := make([]Refusal, 0, r.count-first)
	for i := first; i < r.count; i++ {
		record := r.latest[i%keptRefusals]
		found = append(found, Refusal{
			At: d.timeOf(record.at), Reason: reasonErrors[record.reason], RetryAfter: record.retryAfter, Cost: int(record.cost), Key: keyOf(i),
		})
	}
	return found
}

// prepareRefusalLocked makes room for records of refusals. It is not inlined into
// refuseLocked, which takes less time without its calls.
//
//go:noinline
func (o *watch) prepareRefusalLocked(f *flow) {
	f.bucket.coldOrNew()
	o.refusalRingLocked()
}

// recordLocked adds a request to recordings, with the decision.
func (o *watch) recordLocked(into []*Recording, now int64, r *request, dec decision) {
	if len(into) == 0 || dec.event == noEvent || dec.event == askEvent {
		return
	}
	a := &arrival{at: now, deadline: r.deadline, cost: r.cost, allow: r.kind == allow}
	switch {
	case r.verdict != nil:
		a.end.Store(&ending{int64(r.verdict.Wait), r.verdict.Err})
	case dec.waiter != nil:
		if r.with == nil {
			r.with = &a.with
		}
		r.with.arrival = a
	case a.allow && dec.event == refusedEvent && dec.err == nil: // No RejectError is made for it.
		a.end.Store(&ending{err: reasonErrors[o.refusalRing.last().reason]})
	default:
		a.end.Store(&ending{err: dec.err})
	}
	for _, recording := range into {
		recording.add(a)
	}
}

// recordLeftLocked tells the recordings of a departure that is counted, if requests have keys.
func (o *watch) recordLeftLocked(r *request, at int64) {
	if len(o.recordings) == 0 || o.keysRefused == nil {
		return
	}
	key, _ := r.key.(string)
	if len(key) > maxRecordedKey {
		key = strings.Clone(key[:maxRecordedKey]) // Else all of it would stay in memory.
	}
	for _, recording := range o.recordings {
		recording.addLeft(departure{at, r.cost, key})
	}
}

// endedLocked is told of the end, at an instant, of a request that has waited. A refusal has been
// counted with its reason.
func (o *watch) endedLocked(f *flow, r *request, at int64, dec *decision) {
	waited := at - r.entered
	switch dec.event {
	case departedEvent:
		o.countDepartureLocked(f, r.entered, waited)
		o.measureWaitLocked(waited)
		o.recordLeftLocked(r, at)
	case abandonedEvent:
		o.countAbandonmentLocked(f, r.entered)
	}
	if r.with != nil && r.with.arrival != nil {
		r.with.arrival.end.Store(&ending{waited, dec.err})
	}
}

// measures has the counts of the [Histograms]. A dispatcher gets them with the first request
// that waits. Requests that leave at once are not counted here: that would make their calls
// a tenth slower. Their number follows from the counts of departures.
type measures struct {
	waits      [highestWait - lowestWait + 1]uint64
	spacings   [highestSpacing - lowestSpacing + 1]uint64
	atOnce     uint64 // departures out of a line with a spacing of 0
	spacingSum float64
}

// countIn counts a value above 0 in the buckets that begin with lowest.
func countIn(counts []uint64, lowest int, v float64) {
	counts[min(max(bucketOf(v)-lowest, 0), len(counts)-1)]++
}

// measuresLocked returns the measures of a dispatcher, and makes them if there are none.
func (o *watch) measuresLocked() *measures {
	if o.measures == nil {
		o.measures = new(measures)
	}
	return o.measures
}

// measureWaitLocked counts for how long a request that has left has waited.
func (o *watch) measureWaitLocked(waited int64) {
	if waited > 0 {
		countIn(o.measuresLocked().waits[:], lowestWait, time.Duration(waited).Seconds())
	}
}

// shortestSpacing is the least that the schedule may put between two departures for their
// spacing to be counted, in intervals. Below it the rounding of lastLeftAt would show.
const shortestSpacing = 1. / 4096

// measureSpacingLocked counts the spacing of the departure that the head of a line, of cost
// n, makes at an instant.
func (o *watch) measureSpacingLocked(ln *line, at, n int64) {
	b := &ln.flow.bucket
	leftAt, scheduled := ln.leftAt, float64(ln.above)+float64(min(b.burst, n))
	ln.leftAt, ln.above = at, float32(max(0, n-b.burst))
	if math.IsNaN(scheduled) {
		ln.leftAt = unknown
		return
	}
	if leftAt == unknown || b.interval.IsZero() || scheduled < shortestSpacing {
		return
	}
	spacing := b.interval.Units(exact.At(at-leftAt)) / scheduled
	m := o.measuresLocked()
	if spacing <= 0 {
		m.atOnce++
		return
	}
	m.spacingSum += spacing
	countIn(m.spacings[:], lowestSpacing, spacing)
}

// addLocked adds the counts of a dispatcher, if it has any.
func (m *measures) addLocked(d *dispatcher) {
	o := d.measures
	if o == nil {
		return
	}
	for i, n := range o.waits {
		m.waits[i] += n
	}
	for i, n := range o.spacings {
		m.spacings[i] += n
	}
	m.atOnce += o.atOnce
	m.spacingSum += o.spacingSum
}

// histograms is [Histograms] for so many requests that have left, and have waited for so many
// nanoseconds.
func (m *measures) histograms(departed uint64, wait int64) Histograms {
	h := Histograms{
		Wait:    Histogram{counts: trimmed(m.waits[:]), lowest: lowestWait, count: departed, zeros: departed, sum: time.Duration(wait).Seconds()},
		Spacing: Histogram{counts: trimmed(m.spacings[:]), lowest: lowestSpacing, count: m.atOnce, zeros: m.atOnce, sum: m.spacingSum},
	}
	for _, n := range h.Wait.counts {
		h.Wait.zeros -= n
	}
	for _, n := range h.Spacing.counts {
		h.Spacing.count += n
	}
	return h
}

// trimmed returns the counts as they are; nil if all of them are 0.
func trimmed(counts []uint64) []uint64 {
	if !slices.ContainsFunc(counts, func(n uint64) bool { return n > 0 }) {
		return nil
	}
	return counts
}

// A Refusal is a request that was refused.
type Refusal struct {
	At         time.Time
	Reason     error         // ErrQueueFull, ErrTooLate, ErrTooCostly, ErrClosed or ErrUnavailable
	RetryAfter time.Duration // as in the RejectError
	Cost       int
	Key        any // the request's key in a Group, or in a Shaper WithFairQueue (a string); nil in another Shaper
}

// keptRefusals is how many refusals are remembered. It is a power of 2.
const keptRefusals = 64

// Refusals returns the latest 64 refusals, in the order in which they were noted. The
// refusal of a request that waited is noted when its call returns, so a newcomer's may come before
// it. A dry run has refusals of the requests that would have been refused when they came. Waits in its shadow
// that Close ends are counted in [Stats], and not shown here.
func (s *Shaper) Refusals() []Refusal {
	s.mustBeMade()
	var others []Refusal
	var keys [keptRefusals]any
	found := s.latestRefusals(func() {
		others = s.stripes.latest(&s.dispatcher)
		if s.keysRefused != nil {
			keys = *s.keysRefused
		}
	})
	found = append(found, others...)
	slices.SortStableFunc(found, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(a.Key.(uint64), b.Key.(uint64)), a.At.Compare(b.At))
	})
	found = found[max(0, len(found)-keptRefusals):]
	for i := range found {
		found[i].Key = keys[found[i].Key.(uint64)%keptRefusals]
	}
	return found
}

// Refusals is [Shaper.Refusals] for all keys together.
func (g *Group[K]) Refusals() []Refusal {
	g.mustBeMade()
	var all []Refusal
	for _, s := range g.all {
		var keys [keptRefusals]refusedKey[K]
		found := s.latestRefusals(func() {
			if s.refusedKeys != nil {
				keys = *s.refusedKeys
			}
		})
		for i := range found {
			found[i].Key = keys[found[i].Key.(uint64)%keptRefusals]
		}
		all = append(all, found...)
	}
	// The refusals of one shard are in their order already.
	slices.SortFunc(all, func(a, b Refusal) int { return cmp.Compare(a.Key.(refusedKey[K]).number, b.Key.(refusedKey[K]).number) })
	all = all[max(0, len(all)-keptRefusals):]
	for i := range all {
		all[i].Key = all[i].Key.(refusedKey[K]).key
	}
	return all
}

// A refusedKey is the key of a refusal, and the number of the refusal among the refusals of all
// shards of a [Group].
type refusedKey[K comparable] struct {
	key    K
	number uint64
}

// keepRefusedKeyLocked notes the key of the latest refusal.
func (s *keyShard[K]) keepRefusedKeyLocked(key K) {
	if s.refusedKeys == nil {
		s.refusedKeys = new([keptRefusals]refusedKey[K])
	}
	s.refusedKeys[(s.refusalRing.count-1)%keptRefusals] = refusedKey[K]{key, s.group.refusals.Add(1)}
}

// latestRefusals is Refusals for the refusals that the dispatcher has noted. also is called under
// the lock. The Key of each [Refusal] is its number, for the caller to replace it.
func (d *dispatcher) latestRefusals(also func()) []Refusal {
	var log refusalRing
	d.lockAndAdvance()
	if d.refusalRing != nil {
		log = *d.refusalRing
	}
	also()
	d.unlockAndArm()
	return log.refusals(d, func(i uint64) any { return i })
}

// keepRefusedInLine remembers the refusal, at an instant, of a request that waited. Any other error
// is none. The lock is not held.
func (s *keyShard[K]) keepRefusedInLine(key K, r *request, at int64, err error) {
	if rejected, ok := err.(*RejectError); ok {
		s.lockAndAdvance()
		why := rejection{reason: refusedClosed, retryAfter: rejected.RetryAfter}
		if rejected.Reason == ErrUnavailable {
			why.reason = refusedUnavailable
		}
		s.keepRefusalLocked(at, r.cost, why)
		s.keepRefusedKeyLocked(key)
		s.unlockAndArm()
	}
}

// noteFailed remembers a call that got no bucket, with its error. The lock is not held.
func (s *keyShard[K]) noteFailed(key K, r *request, err error) {
	now := s.lockAndAdvance()
	defer s.unlockAndArm()
	if rejected, ok := err.(*RejectError); ok {
		s.keepRefusalLocked(now, r.cost, rejection{reason: refusedFull, retryAfter: rejected.RetryAfter})
		s.keepRefusedKeyLocked(key)
	}
	if s.recorded {
		s.recordLocked(s.recordingsOf[key], now, r, decision{err: err, event: refusedEvent})
	}
}
