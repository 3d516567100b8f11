package shaper

import (
	"errors"
	"fmt"

	"example.com/leakybucket/shaper/internal/keyed"
)

// errEmptyBucketKey is for a key function of [WithBuckets] that breaks its contract.
var errEmptyBucketKey = errors.New("the key function of WithBuckets has returned an empty key")

// bucketKeyOf returns the [Bucket]'s key of a key; none without a Bucket. The lock is not
// held.
func (g *Group[K]) bucketKeyOf(key K) (bucketKey, error) {
	if g.bucketKey == nil {
		return bucketKey{}, nil
	}
	k := g.bucketKey(key)
	if k == "" {
		return bucketKey{}, &limitsError{errEmptyBucketKey}
	}
	return g.over.shared.bucketKeyOf(k), nil
}

// leaseLocked makes the lease of a bucket that has none, if levels are shared. A bucket that
// several keys share here is shared with the one of the same number in other processes.
//
// It is not inlined, so that its callers need no stack for it.
//
//go:noinline
func (s *keyShard[K]) leaseLocked(kf *keyedFlow[K], key bucketKey) {
	if s.shared.flows[&kf.Value] != nil || kf == s.closedFlow || kf == s.unlimited {
		return
	}
	if kf.Home != keyed.Own {
		l := kf.Value.bucket.limits
		// The Bucket can't be asked for its backend here, so such keys have a circuit breaker of their own.
		key = bucketKey{key: fmt.Sprintf("overflow/%s/%g/%d/%d", s.name, float64(l.Rate), l.burst(), kf.Home)}
	}
	s.newLeaseLocked(&kf.Value, key)
}

// planOfLocked returns the plan of the [Limits] that a bucket was given, which is the one
// whose users are counted.
func (s *keyShard[K]) planOfLocked(kf *keyedFlow[K]) *plan {
	if s.shared != nil {
		if sf := s.shared.flows[&kf.Value]; sf != nil {
			return sf.given
		}
	}
	return kf.Value.bucket.plan
}

// forgetLeaseLocked forgets the lease of a bucket that is deleted.
func (s *keyShard[K]) forgetLeaseLocked(kf *keyedFlow[K]) {
	if s.shared == nil {
		return
	}
	if sf := s.shared.flows[&kf.Value]; sf != nil && s.phase != closed {
		sf.standWithOthersLocked(s.clock) // Else nobody would be told that its outage has ended.
	}
	delete(s.shared.flows, &kf.Value)
}

// leaseBusyLocked reports whether a flow has a lease that is in use.
func (s *keyShard[K]) leaseBusyLocked(f *flow) bool {
	if s.shared == nil {
		return false
	}
	sf := s.shared.flows[f]
	return sf != nil && sf.busyLocked(s.clock)
}

// newVersionLocked makes rates that are put in force from now on newer than those before.
func (s *keyShard[K]) newVersionLocked() {
	if s.shared != nil {
		s.shared.nextVersion()
	}
}
