package shaper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"example.com/leakybucket/shaper/internal/keyed"
	"example.com/leakybucket/shaper/internal/sketch"
)

// Snapshot is [Shaper.Snapshot] for all keys that have a bucket of their own which a new one
// would not equal, and for what [Group.Top] counts. After Shutdown or Close it returns the
// buckets as they were then. The buckets are copied a key at a time under the lock, so it does
// not hold up other calls, and each key is as it was at its turn.
//
// Keys that share a bucket, as the table is full, are not in the snapshot, because a shared
// bucket does not know its keys. After a restart such a key begins with an empty bucket. Nor
// are the limits of [Group.SetLimits].
//
// A key is written by [encoding/json], so a string is a string (one that is not valid UTF-8,
// which JSON can't hold, is {"base64": …}). Keys that encoding/json can't write, or that it
// would not read back as the same key, such as structs with fields that are not exported, are
// left out. Then Snapshot returns an error that names one of them, beside the snapshot of all
// others, which is whole.
func (g *Group[K]) Snapshot() ([]byte, error) {
	g.mustBeMade()
	var copies []bucketCopy
	var keys []K
	for _, s := range g.shards {
		ofShard := s.keysToSave()
		keys, copies = slices.Grow(keys, len(ofShard)), slices.Grow(copies, len(ofShard))
		for _, key := range ofShard {
			if copied, ok := s.of(key).copyOf(); ok {
				keys, copies = append(keys, key), append(copies, copied)
			}
		}
	}
	top, events, least := g.limited.All()

	at := time.Now()
	now := g.over.instantOf(at)
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

// Restore is [Shaper.Restore] for the keys in a snapshot that [Group.Snapshot] has returned.
// What [Group.Top] counts is added to what it has counted since [NewGroup], so restore a
// snapshot only once.
//
// For each key the limits function is called, as it is for a new key. A key whose limits
// can't be had is left out, and counted in [GroupStats.LimitErrors]. A key for which the table
// has no room shares a bucket, whose level becomes at least that of the key; if there is none
// to share, the key is left out. If keys are left out, Restore goes on with the others, and
// then returns an error that says how many, in which errors.Is sees those of the first ones.
//
// If data is no snapshot of a Group with such keys, is damaged, or has a version that this
// package does not know, or if the Group is closed, Restore returns an error and changes
// nothing. Otherwise it may be called while the Group is in use. It takes the lock for one
// key at a time.
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
		levels[i].since(saved.Taken, at, &g.over.dispatcher)
		switch err := g.shardOf(key).of(key).restore(&levels[i]); {
		case err == ErrClosed:
			return ErrClosed
		case err != nil:
			omitted.note(key, err)
		}
	}
	return omitted.failure(len(keys))
}

// restore puts back the level of one key. The lock is not held.
func (k ofKey[K]) restore(r *restoredLevel) error {
	s := k.s
	kind := anyBucket
	if r.held > r.age {
		kind = bucketToHold
	}
	closed := false
	err := k.withFlowOrNew(context.Background(), kind, func(in *keyShard[K], kf *keyedFlow[K], now int64) {
		closed = kf == s.closedFlow
		if closed || kf == s.unlimited || kf.Light { // The level of an unlimited key is always 0.
			return
		}
		in.restoreLocked(&kf.Value, now, r)
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
func (k ofKey[K]) copyOf() (copied bucketCopy, ok bool) {
	s, key := k.s, k.key
	s.lockAndAdvance()
	defer s.unlockAndArm()
	kf := s.table.Get(key)
	if kf == nil {
		kf = s.table.Last()[key]
	}
	if kf == nil {
		return copied, false
	}
	return kf.Value.copy(s.blocks), true
}

// savedGroup is the snapshot of a [Group].
type savedGroup struct {
	savedHead
	Buckets []savedBucket `json:"buckets"`
	Top     savedTop      `json:"top"`
}

// savedTop is what [Group.Top] has counted.
type savedTop struct {
	Calls uint64       `json:"calls"` // of all keys together
	Least uint64       `json:"least"` // the most calls that a key may have which is not among Keys
	Keys  []savedCount `json:"keys"`
}

// savedCount is a [KeyCount].
type savedCount struct {
	Key   json.RawMessage `json:"key"`
	Count uint64          `json:"count"`
	Error uint64          `json:"error,omitempty"`
}

// readBuckets returns the keys and the levels of buckets, or what is wrong with one.
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

// readTop returns the counts of a savedTop, or what is wrong with it.
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
