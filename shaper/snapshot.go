package shaper

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
)

// Snapshot returns the level of the bucket as JSON, with what is left of a [Shaper.Hold] and
// of a block ([WithBlock]), for [Shaper.Restore] in the next process: so a restart empties no
// bucket. It changes nothing, and works on a closed Shaper too. At best it is called when
// Shutdown has returned, as what leaves afterwards is not in it. Requests in line and counts
// are not in it either.
//
// The JSON has a version, 1, which later versions of this package keep reading, and the wall
// time at which it was taken. Its levels are exact: cost units as a fraction, such as "7/3".
func (s *Shaper) Snapshot() ([]byte, error) {
	s.mustBeMade()
	s.lockFlow(&s.flow)
	copied := s.flow.copy(s.blocks)
	s.unlockAndArm()
	at := time.Now()
	bucket, _ := copied.saved(s.instantOf(at))
	return json.Marshal(savedShaper{savedHead: headOf(snapshotOfShaper, at), savedBucket: bucket})
}

// Restore raises the level to what is left of the one in a snapshot that [Shaper.Snapshot]
// has returned. From the time at which that was taken until now, by the wall clock, the
// bucket counts as having leaked; if the clock has gone back, as not having leaked. Holds and
// blocks go on until they would have ended, blocks only if [WithBlock] is set.
//
// The limits need not be those of the snapshot. The level is kept in cost units. If the rates
// differ, the bucket counts as having leaked at the lower of the two: it is not known when the
// rate changed, so this is the one answer that never lets more leave than either would.
//
// Restore may be called while the Shaper is in use. Then the level becomes the greater of the
// two, of two holds the one that ends last counts, and requests in line are re-timed. On a
// closed Shaper it works as SetLimits does.
//
// If data is no snapshot of a Shaper, is damaged, or has a version that this package does not
// know, Restore returns an error and changes nothing.
func (s *Shaper) Restore(data []byte) error {
	s.mustBeMade()
	var saved savedShaper
	if err := decodeSnapshot(data, snapshotOfShaper, &saved); err != nil {
		return err
	}
	level, err := make(levelReader).read(&saved.savedBucket)
	if err != nil {
		return damaged(err)
	}
	level.since(saved.Taken, time.Now(), &s.dispatcher)
	now := s.lockFlow(&s.flow)
	defer s.unlockAndArm()
	s.restoreLocked(&s.flow, now, &level)
	return nil
}

const (
	snapshotVersion  = 1
	snapshotOfShaper = "shaper"
	snapshotOfGroup  = "group"
)

// savedHead is what all snapshots begin with.
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
}

// savedBucket is a bucket in a snapshot, when that was taken.
type savedBucket struct {
	Key       json.RawMessage `json:"key,omitempty"`        // only in a Group
	Level     string          `json:"level,omitempty"`      // in cost units, as a whole number or a fraction; empty: 0
	Rate      float64         `json:"rate,omitempty"`       // at which the level leaked, per second
	HeldNS    int64           `json:"held_ns,omitempty"`    // for how long it was still held
	BlockedNS int64           `json:"blocked_ns,omitempty"` // for how long it was still blocked
}

// A bucketCopy is what a snapshot needs of a flow, taken under the lock.
type bucketCopy struct {
	plan        *plan
	empty       exact.Nanos
	roundedUpBy *big.Rat // never changed once it is set
	hold        int64
	block       int64
}

// copy returns the bucketCopy of a flow.
func (f *flow) copy(b *blocks) bucketCopy {
	c := f.bucket.coldOrNone()
	return bucketCopy{f.bucket.plan, f.bucket.empty, c.roundedUpBy, c.hold.Whole(), b.end(f)}
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

// read returns the level of a bucket, or what is wrong with it.
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

// restoreLocked raises the level of a flow to what is left of a restored one, and makes its
// hold and its block last as long as those.
func (d *dispatcher) restoreLocked(f *flow, now int64, r *restoredLevel) {
	f.bucket.restore(r)
	if remaining := r.held - r.age; remaining > 0 {
		c := f.bucket.coldOrNew()
		c.hold = exact.Later(c.hold, exact.At(exact.Sum(r.now, remaining)))
	}
	if remaining := r.blocked - r.age; remaining > 0 && !f.bucket.interval.IsZero() {
		d.blocks.extend(f, exact.Sum(r.now, remaining))
	}
	if f.line != nil {
		f.line.leftAt = unknown // The next spacing would not be one of the line's own.
	}
	d.markDirtyLocked(f)
	d.advanceLocked(now, headFirst)
}

// restore raises the level to what is left of a restored one, if it is not higher.
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
		return // Nothing remains: now is a multiple of what instants are rounded up to.
	}
	if b.interval.Compare(empty, roundedUpBy, b.empty, b.coldOrNone().roundedUpBy) <= 0 {
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
