package shaper

import (
	"errors"
	"fmt"

	"example.com/leakybucket/shaper/internal/keyed"
)

// errEmptyBucketKey is for a key function of [WithBuckets] that breaks its contract.
var errEmptyBucketKey = errors.New("the key function of WithBuckets has returned an empty key")

// bucketKey returns the [Bucket]'s key of a key; none without a Bucket. The lock is not
// held.
func (k ofKey[K]) bucketKey() (bucketKey, error) {
	g := k.s.group
	if g.bucketKey == nil {
		return bucketKey{}, nil
	}
	name := g.bucketKey(k.key)
	if name == "" {
		return bucketKey{}, &limitsError{errEmptyBucketKey}
	}
	return g.over.shared.bucketKeyOf(name), nil
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
	s.shared.newFlowLocked(&kf.Value, key)
}
