package shaper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/internal/keyed"
	"example.com/leakybucket/shaper/internal/sketch"
)

// Snapshot returns the level of the bucket as JSON, with the rest of a [Shaper.Hold] and of a block, for
// [Shaper.Restore] in the next process: so a restart empties no bucket. Requests in line, counts and open
// reservations are not in it, so it is best called when Shutdown has returned. The JSON has a version, 1, which
// later versions of this package keep reading.
func (s *Shaper) Snapshot() ([]byte, error) {
	s.mustBeMade()
	s.lockFlow(&s.flow)
	copied := s.flow.copy()
	var meters []bucketCopy
	if s.further != nil {
		for i := range s.further.buckets() {
			meters = append(meters, s.further.buckets()[i].copy())
		}
	}
	s.unlockAndArm()
	at := time.Now()
	bucket, _ := copied.saved(s.instantOf(at))
	saved := savedShaper{savedHead: headOf(snapshotOfShaper, at), savedBucket: bucket}
	for i := range meters {
		level, _ := meters[i].saved(s.instantOf(at))
		saved.Meters = append(saved.Meters, savedMeter{s.further.named()[i], level})
	}
	return json.Marshal(saved)
}

// Restore raises the level to the rest of the level in a [Shaper.Snapshot]. Since then, by the wall clock, the
// bucket counts as having leaked, at the lower of the two rates if they differ; if the clock has gone back, as not
// having leaked. Holds and blocks go on until they would have ended, blocks only with [WithBlock]. If the Shaper is
// in use, the greater level and the later end count, and requests in line are re-timed. If data is no snapshot of a
// Shaper, is damaged, or has an unknown version, Restore returns an error and changes nothing.
func (s *Shaper) Restore(data []byte) error {
	s.mustBeMade()
	var saved savedShaper
	if err := decodeSnapshot(data, snapshotOfShaper, &saved); err != nil {
		return err
	}
	reader, at := make(levelReader), time.Now()
	level, err := reader.read(&saved.savedBucket)
	if err != nil {
		return damaged(err)
	}
	level.since(saved.Taken, at, &s.dispatcher)
	meters := make(map[string]restoredLevel)
	for i := range saved.Meters {
		read, err := reader.read(&saved.Meters[i].savedBucket)
		if err != nil {
			return damaged(err)
		}
		read.since(saved.Taken, at, &s.dispatcher)
		meters[saved.Meters[i].Name] = read
	}
	now := s.lockFlow(&s.flow)
	defer s.unlockAndArm()
	for i := 0; s.further != nil && i < len(s.further.buckets()); i++ {
		if read, ok := meters[s.further.named()[i]]; ok {
			b := &s.further.buckets()[i]
			b.idleUntil(now)
			read.raise(b, now)
		}
	}
	level.restore(&s.dispatcher, &s.flow, now)
	return nil
}

const (
	snapshotVersion  = 1
	snapshotOfShaper = "shaper"
	snapshotOfGroup  = "group"
)

// savedHead is the beginning of all snapshots.
type savedHead struct {
	Version int       `json:"version"`
	Of      string    `json:"of"`    // snapshotOfShaper or snapshotOfGroup
	Taken   time.Time `json:"taken"` // by the wall clock
}

func headOf(what string, at time.Time) savedHead {
	return savedHead{Version: snapshotVersion, Of: what, Taken: at.Round(0).UTC()}
}

// savedShaper is the snapshot of a [Shaper].
type savedShaper struct {
	savedHead
	savedBucket
	Meters []savedMeter `json:"meters,omitempty"`
}

// savedMeter is the bucket that has the level of a [Meter].
type savedMeter struct {
	Name string `json:"name"`
	savedBucket
}

// savedBucket is a bucket in a snapshot, when that was taken.
type savedBucket struct {
	Key       json.RawMessage `json:"key,omitempty"`        // only in a Group
	Level     string          `json:"level,omitempty"`      // in cost units, as a whole number or a fraction; empty: 0
	Rate      float64         `json:"rate,omitempty"`       // at which the level leaked, per second
	HeldNS    int64           `json:"held_ns,omitempty"`    // for how long it was still held
	BlockedNS int64           `json:"blocked_ns,omitempty"` // for how long it was still blocked
}

// A bucketCopy is the part of a flow that a snapshot needs, copied under the lock.
type bucketCopy struct {
	plan        *plan
	empty       exact.Nanos
	roundedUpBy *big.Rat // never changed once it is set
	hold        int64
	block       int64
}

// copy returns the bucketCopy of a flow.
func (f *flow) copy() bucketCopy {
	c := f.bucket.copy()
	c.hold, c.block = f.bucket.coldOrNone().hold.Whole(), f.keptOutUntil()
	return c
}

// copy returns the bucketCopy of a bucket, without what keeps the flow.
func (b *bucket) copy() bucketCopy {
	return bucketCopy{plan: b.plan, empty: b.empty, roundedUpBy: b.roundedUpBy()}
}

// saved returns the bucket as it is at an instant, if no request has left since it was
// copied. worth reports whether a new bucket would not be just the same.
func (c *bucketCopy) saved(now int64) (bucket savedBucket, worth bool) {
	p := c.plan
	if !p.interval.IsZero() && c.empty.After(exact.At(now)) {
		bucket.Level = p.interval.UnitsAfter(now, c.empty, c.roundedUpBy).RatString()
		bucket.Rate = float64(p.limits.Rate)
	}
	bucket.HeldNS, bucket.BlockedNS = max(0, c.hold-now), max(0, c.block-now)
	return bucket, bucket.Level != "" || bucket.HeldNS > 0 || bucket.BlockedNS > 0
}

// A restoredLevel is a savedBucket that has been read and checked.
type restoredLevel struct {
	units         *big.Rat // the level; nil: 0
	interval      exact.Interval
	held, blocked int64

	// As of these the level is put back; see since.
	now, age int64
}

// A levelReader reads buckets of snapshots. It remembers the intervals of the rates that it
// has met.
type levelReader map[float64]exact.Interval

// maxLevelText is the length of the longest level that Snapshot can return, generously: its
// denominator has at most some 4,200 bits, and its numerator 64 more than that.
const maxLevelText = 4096

// read returns the level of a bucket, or an error if it is invalid.
func (v levelReader) read(b *savedBucket) (r restoredLevel, err error) {
	for _, span := range []int64{b.HeldNS, b.BlockedNS} {
		if span < 0 || span > int64(horizon) {
			return r, fmt.Errorf("a bucket is held or blocked for %d ns, must be from 0 to 365 days", span)
		}
	}
	r.held, r.blocked = b.HeldNS, b.BlockedNS
	if b.Level == "" {
		return r, nil
	}
	if r.units, err = readLevel(b.Level); err != nil {
		return r, err
	}
	known := false
	if r.interval, known = v[b.Rate]; known {
		return r, nil
	}
	if err = (Limits{Rate: rate.Limit(b.Rate)}).Validate(); err != nil {
		return r, err
	}
	r.interval = exact.IntervalOf(rate.Limit(b.Rate))
	v[b.Rate] = r.interval
	return r, nil
}

// readLevel reads digits, or digits/digits. (A big.Rat reads much more than that, such as an
// exponent that makes a number of any size.)
func readLevel(text string) (*big.Rat, error) {
	bad := len(text) > maxLevelText
	for _, c := range text {
		bad = bad || c != '/' && (c < '0' || c > '9')
	}
	if !bad {
		if level, ok := new(big.Rat).SetString(text); ok {
			return level, nil
		}
	}
	return nil, fmt.Errorf("the level %.60q is not a number of cost units", text)
}

// since notes how old the level is at a time, on the clock of a dispatcher.
func (r *restoredLevel) since(taken, at time.Time, d *dispatcher) {
	r.now = d.instantOf(at)
	r.age = max(0, int64(at.Round(0).Sub(taken)))
}

// restore raises the level of a flow to the rest of the restored level, and makes its hold and
// its block last as long as the restored ones. The lock is held.
func (r *restoredLevel) restore(d *dispatcher, f *flow, now int64) {
	r.raise(&f.bucket, now)
	if remaining := r.held - r.age; remaining > 0 {
		d.holdUntilLocked(f, now, exact.Sum(r.now, remaining))
	}
	if remaining := r.blocked - r.age; remaining > 0 && !f.bucket.interval.IsZero() && d.gate != nil {
		d.gate.keepOut(f, exact.Sum(r.now, remaining))
	}
	if f.line != nil {
		d.watcher.rescheduled(f.line)
	}
	d.markDirtyLocked(f)
	d.advanceLocked(now, headFirst)
}

// raise is restore for the level of a bucket alone.
func (r *restoredLevel) raise(b *bucket, now int64) {
	if l := b.ledger(); l != nil {
		l.rises(b, exact.At(now), false)
	}
	b.restore(r)
}

// restore raises the level to the rest of a restored level, unless the level is higher already.
func (b *bucket) restore(r *restoredLevel) {
	if r.units == nil || b.interval.IsZero() {
		return
	}
	var empty exact.Nanos
	var roundedUpBy *big.Rat
	if slower := b.slowerInterval(r.interval); slower == b.interval {
		// All leaks at one rate, as if the units had come at the time of the snapshot.
		empty, roundedUpBy = b.interval.InstantAfter(exact.Sum(r.now, -r.age), r.units)
	} else {
		leaked := new(big.Rat).SetInt64(r.age)
		empty, roundedUpBy = b.interval.InstantAfter(r.now, leaked.Sub(r.units, leaked.Quo(leaked, slower.Rat())))
	}
	if !empty.After(exact.At(r.now)) {
		return // Nothing remains: now is a multiple of the unit to which instants are rounded up.
	}
	if b.interval.Compare(empty, roundedUpBy, b.empty, b.roundedUpBy()) <= 0 {
		return
	}
	b.setEmpty(empty, roundedUpBy)
	// Requests that have left before are not part of this level. So none of them may be
	// taken off it: to giveBack this is as a departure.
	b.departures++
}

// slowerInterval returns the longer one of the interval of the bucket and another.
func (b *bucket) slowerInterval(other exact.Interval) exact.Interval {
	if other != b.interval && other.Rat().Cmp(b.interval.Rat()) > 0 {
		return other
	}
	return b.interval
}

// decodeSnapshot decodes a snapshot of that kind. into is a savedShaper or a savedGroup.
func decodeSnapshot(data []byte, of string, into any) error {
	var head struct {
		Version *int       `json:"version"`
		Of      string     `json:"of"`
		Taken   *time.Time `json:"taken"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return damaged(err)
	}
	switch {
	case head.Version == nil:
		return damaged(fmt.Errorf("it has no version"))
	case *head.Version != snapshotVersion:
		return fmt.Errorf("shaper: Restore: the snapshot has version %d, and this package knows only version %d", *head.Version, snapshotVersion)
	case head.Of != of:
		return fmt.Errorf("shaper: Restore: the snapshot is that of a %.20q, must be that of a %q", head.Of, of)
	}
	if head.Taken == nil { // A time long past would drain every level.
		return damaged(fmt.Errorf("it has no time"))
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return damaged(err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return damaged(fmt.Errorf("something follows its end"))
	}
	return nil
}

// damaged returns the error for a snapshot that can't be read.
func damaged(err error) error {
	return fmt.Errorf("shaper: Restore: the snapshot is damaged: %w", err)
}

// Snapshot is [Shaper.Snapshot] for all keys that have a bucket of their own which a new one would not equal, and
// for the counts of [Group.Top]. After Shutdown or Close it returns the buckets as they were then. Each key is as it
// was at its turn. Keys that share a bucket are not in it, nor are the limits of [Group.SetLimits]. Keys that
// encoding/json can't write, or would not read back as the same key, are left out; then Snapshot returns an error
// that names one, beside the snapshot of all others.
func (g *Group[K]) Snapshot() ([]byte, error) {
	g.mustBeMade()
	var copies []bucketCopy
	var keys []K
	for _, s := range g.shards {
		ofShard := s.keysToSave()
		keys, copies = slices.Grow(keys, len(ofShard)), slices.Grow(copies, len(ofShard))
		for _, key := range ofShard {
			if copied, ok := s.copyOf(key); ok {
				keys, copies = append(keys, key), append(copies, copied)
			}
		}
	}
	top, events, least := g.limited.All()

	at := time.Now()
	now := g.overflow.instantOf(at)
	names := keyed.NewNames[K]()
	saved := savedGroup{savedHead: headOf(snapshotOfGroup, at), Buckets: make([]savedBucket, 0, len(copies))}
	for i := range copies {
		bucket, worth := copies[i].saved(now)
		if !worth {
			continue
		}
		var ok bool
		if bucket.Key, ok = names.Encode(keys[i]); ok {
			saved.Buckets = append(saved.Buckets, bucket)
		}
	}
	saved.Top = savedTop{Calls: events, Least: least, Keys: []savedCount{}}
	for _, c := range top {
		if c.Key != c.Key {
			continue // Such as NaN: it is a new key at each call.
		}
		if key, ok := names.Encode(c.Key); ok {
			saved.Top.Keys = append(saved.Top.Keys, savedCount{key, c.Count, c.Error})
		}
	}
	data, err := json.Marshal(saved)
	return data, errors.Join(err, names.Failure())
}

// Restore is [Shaper.Restore] for the keys in a [Group.Snapshot], whose counts of [Group.Top] are added to those
// since NewGroup: so restore a snapshot only once. The limits function is called for each key. A key whose limits
// can't be had, or for which no bucket has room, is left out, and then Restore returns an error that says how many.
// On a closed Group it changes nothing.
func (g *Group[K]) Restore(data []byte) error {
	g.mustBeMade()
	var saved savedGroup
	if err := decodeSnapshot(data, snapshotOfGroup, &saved); err != nil {
		return err
	}
	keys, levels, err := readBuckets[K](saved.Buckets)
	if err != nil {
		return damaged(err)
	}
	counts, err := readTop[K](&saved.Top)
	if err != nil {
		return damaged(err)
	}
	if g.Closed() {
		return ErrClosed
	}
	g.limited.Merge(counts, saved.Top.Calls, saved.Top.Least)
	at := time.Now()
	var omitted leftOut
	for i, key := range keys {
		levels[i].since(saved.Taken, at, &g.overflow.dispatcher)
		switch err := g.shardOf(key).restore(key, &levels[i]); {
		case err == ErrClosed:
			return ErrClosed
		case err != nil:
			omitted.note(key, err)
		}
	}
	return omitted.failure(len(keys))
}

// restore puts back the level of one key. The lock is not held.
func (s *keyShard[K]) restore(key K, r *restoredLevel) error {
	kind := anyBucket
	if r.held > r.age {
		kind = bucketToHold
	}
	closed := false
	err := s.withFlowOrNew(context.Background(), key, kind, func(in *keyShard[K], kf *keyedFlow[K], now int64) {
		closed = kf == s.closedFlow
		if closed || kf == s.unlimited || kf.Light { // The level of an unlimited key is always 0.
			return
		}
		r.restore(&in.dispatcher, &kf.Value, now)
		if kf.Home == keyed.Own && in.idleLocked(&kf.Value, now) {
			in.deleteLocked(kf) // It has drained meanwhile, and leaves its room to others.
		}
	})
	if closed {
		return ErrClosed
	}
	return err
}

// keysToSave returns the keys that have a bucket of their own, or had one when the [Group]
// was closed. The lock is not held.
func (s *keyShard[K]) keysToSave() []K {
	s.mu.Lock()
	last := s.table.Last()
	s.mu.Unlock()
	if last == nil {
		return s.appendKeys(nil)
	}
	return slices.Collect(maps.Keys(last))
}

// copyOf returns a copy of the bucket of a key; ok reports whether there is one. The lock is
// not held.
func (s *keyShard[K]) copyOf(key K) (copied bucketCopy, ok bool) {
	s.lockAndAdvance()
	defer s.unlockAndArm()
	kf := s.table.Get(key)
	if kf == nil {
		kf = s.table.Last()[key]
	}
	if kf == nil {
		return copied, false
	}
	return kf.Value.copy(), true
}

// savedGroup is the snapshot of a [Group].
type savedGroup struct {
	savedHead
	Buckets []savedBucket `json:"buckets"`
	Top     savedTop      `json:"top"`
}

// savedTop has the counts of [Group.Top].
type savedTop struct {
	Calls uint64       `json:"calls"` // of all keys together
	Least uint64       `json:"least"` // the most calls that a key may have which is not among Keys
	Keys  []savedCount `json:"keys"`
}

// savedCount is a [watch.KeyCount].
type savedCount struct {
	Key   json.RawMessage `json:"key"`
	Count uint64          `json:"count"`
	Error uint64          `json:"error,omitempty"`
}

// readBuckets returns the keys and the levels of buckets, or the error of the first invalid one.
func readBuckets[K comparable](buckets []savedBucket) (keys []K, levels []restoredLevel, err error) {
	keys, levels = make([]K, len(buckets)), make([]restoredLevel, len(buckets))
	intervals, names := make(levelReader), keyed.NewNames[K]()
	for i := range buckets {
		if keys[i], err = names.Decode(buckets[i].Key); err != nil {
			return nil, nil, err
		}
		if levels[i], err = intervals.read(&buckets[i]); err != nil {
			return nil, nil, err
		}
	}
	return keys, levels, nil
}

// maxSavedCalls bounds the numbers of a savedTop, so that sums of them do not overflow.
const maxSavedCalls = 1 << 60

// readTop returns the counts of a savedTop, or an error if it is invalid.
func readTop[K comparable](top *savedTop) ([]sketch.Count[K], error) {
	if top.Calls > maxSavedCalls || top.Least > top.Calls {
		return nil, fmt.Errorf("top has %d calls, and %d of a key that it does not name", top.Calls, top.Least)
	}
	names := keyed.NewNames[K]()
	counts := make([]sketch.Count[K], len(top.Keys))
	seen := make(map[K]bool, len(top.Keys))
	remaining := top.Calls
	for i, c := range top.Keys {
		key, err := names.Decode(c.Key)
		switch {
		case err != nil:
			return nil, err
		case seen[key] || c.Count > remaining || c.Error > c.Count:
			return nil, fmt.Errorf("top can't have the key %.60s %d times, %d of them uncertain", c.Key, c.Count, c.Error)
		}
		seen[key] = true
		remaining -= c.Count
		counts[i] = sketch.Count[K]{Key: key, Count: c.Count, Error: c.Error}
	}
	return counts, nil
}

// leftOut collects the errors of keys that can't be restored.
type leftOut struct {
	count int
	first []error
}

// note notes a key that is left out.
func (l *leftOut) note(key any, err error) {
	if l.count++; l.count <= 10 {
		l.first = append(l.first, fmt.Errorf("key %.60q: %w", fmt.Sprint(key), err))
	}
}

// failure returns the error for the keys that were left out, of so many; nil if there are none.
func (l *leftOut) failure(of int) error {
	if l.count == 0 {
		return nil
	}
	more := fmt.Errorf("shaper: Restore: %d of %d keys could not be restored", l.count, of)
	return errors.Join(slices.Insert(l.first, 0, more)...)
}
