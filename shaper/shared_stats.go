package shaper

import "time"

// BucketStats tells about the [Bucket] that a level is in. Of a [Group] it has only the State,
// Err and the totals: those of all keys together, with the state of a server that can't be
// asked if there is one.
type BucketStats struct {
	State BucketState // "" without a Bucket
	Err   error       // the latest failure; nil if the latest call succeeded

	RTT   time.Duration // the shortest round trip of late; 0 if there was none
	Share float64       // the part of the slots that this process has had of late, from 0 to 1; 0 if that is not known

	Lateness time.Duration // for how long after its instant a slot may be used

	Held       int64  // cost units that are leased and not used yet
	Ahead      int64  // the most cost units that may be leased ahead, as round trips and costs have been so far: L in docs/shared.md
	RoundTrips uint64 // calls of Take, and of GiveBack
	Failures   uint64 // calls that failed
	Leased     uint64 // cost units taken
	Dropped    uint64 // cost units whose slots have passed unused
	GivenBack  uint64 // cost units given back
}

// BucketState says how requests leave that share a level.
type BucketState string

const (
	BucketShared BucketState = "shared" // at the slots of the Bucket
	BucketDown   BucketState = "down"   // not at all: it can't be asked (FallbackClosed)
	BucketLocal  BucketState = "local"  // at a part of the rate: it can't be asked (FallbackLocal)
	BucketOpen   BucketState = "open"   // at the whole rate in each process: it can't be asked (FallbackOpen)
)

// A BucketEvent reports that a [Bucket] can't be asked any more, or can be again: for all keys of
// one of its servers, or for a single key that fails while others are answered. A [Group] that
// forgets such a key reports that it can be asked for again.
type BucketEvent struct {
	Name  string      // the name of the Shaper or Group
	Shard string      // which of the Bucket's servers, if it tells; see [Bucket]
	State BucketState // from now on
	At    time.Time
	Err   error // the failure; nil if it can be asked again
}

// statsLocked returns the [BucketStats] of one lease.
func (ls *lease) statsLocked() BucketStats {
	st := ls.counts.stats()
	st.State, st.Err = ls.d.shared.stateOf(ls.backend), ls.failed
	if st.Err == nil && ls.backend.open { // Another key has found the outage.
		st.Err = ls.backend.err
	}
	st.RTT, st.Held, st.Lateness = time.Duration(ls.rtt), ls.leasedLocked(), time.Duration(ls.latenessLocked())
	st.Ahead = ls.mostAheadLocked()
	if ls.counts.leased > 0 {
		st.Share = 1 / ls.pace
	}
	return st
}

// stats returns the totals.
func (c bucketCounts) stats() BucketStats {
	return BucketStats{RoundTrips: c.roundTrips, Failures: c.failures, Leased: c.leased, Dropped: c.dropped, GivenBack: c.givenBack}
}

// stats returns the [BucketStats] of all keys together. State and Err are those of a
// backend that can't be asked, if there is one.
func (s *sharedLevels) stats() BucketStats {
	st := s.counts.stats()
	st.State = BucketShared
	for _, b := range s.backends {
		if b.open {
			st.State, st.Err = s.stateOf(b), b.err
		}
	}
	return st
}
