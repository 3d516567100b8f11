package inspect

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"example.com/leakybucket/internal/replay"
	"example.com/leakybucket/shaper"
)

const (
	maxArrivals   = 10_000          // that a recording keeps: 167 a second for a minute, in a megabyte
	maxRecordings = 16              // at once
	keepRecording = 5 * time.Minute // after it was last asked for
)

// recordings are the recordings of the buckets that somebody has asked about of late. No other
// bucket is recorded.
type recordings struct {
	mu      sync.Mutex
	buckets map[target]*recorded
	closed  bool
	running sync.WaitGroup // timers that have not been stopped, and their functions

	replaying chan struct{} // has room for one replay at a time, however many ask
}

// recorded is the recording of a bucket, and the state of the bucket when it began.
type recorded struct {
	recording *shaper.Recording
	since     time.Time
	start     replay.Start
	longer    bool      // more requests were in line than start has
	fair      bool      // its keys take turns, which a replay ignores
	settles   bool      // costs were settled, which a replay ignores too; guarded by recordings.replaying
	asked     time.Time // when it was last asked for
	timer     *time.Timer
}

// A recorder is the part of a [bucketRef] that tells of its requests.
type recorder interface {
	// record begins to record the latest of them, at most max.
	record(max int) *shaper.Recording
}

// of returns the recording of a bucket, which begins now if there is none.
func (r *recordings) of(of target, ref bucketRef) (*recorded, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	rec := r.buckets[of]
	switch {
	case r.closed:
		return nil, errClosed
	case of.source.isRemoved(): // just now
		return nil, unknownSource(of.source.name)
	case rec != nil:
		rec.asked = now
		return rec, nil
	case len(r.buckets) >= maxRecordings:
		r.endOldestLocked()
	}
	rec = beginRecording(ref, of.source.turns != nil)
	r.buckets[of] = rec
	r.running.Add(1)
	rec.timer = time.AfterFunc(keepRecording, func() { r.endIfUnused(of, rec) })
	return rec, nil
}

// beginRecording begins a recording, and notes the level and the line at its beginning.
func beginRecording(ref bucketRef, fair bool) *recorded {
	rec := &recorded{since: time.Now(), recording: ref.record(maxArrivals), fair: fair}
	rec.asked = rec.since
	st, _ := ref.stats()
	rec.start.Level, rec.longer = st.Level, st.Waiting > maxArrivals
	line := ref.line(maxArrivals)
	// Requests that came meanwhile may be in the line and in the recording.
	arrivals := rec.recording.Arrivals()
	for _, w := range line {
		if len(arrivals) > 0 && !w.Since.Before(arrivals[0].At) {
			continue
		}
		rec.start.Line = append(rec.start.Line, replay.Request{At: w.Since.Sub(rec.since), Cost: w.Cost, Deadline: replay.Never, Patience: replay.Never})
	}
	if fair { // Its line is in the order of the turns, and the replay has one line.
		slices.SortStableFunc(rec.start.Line, func(a, b replay.Request) int { return cmp.Compare(a.At, b.At) })
	}
	return rec
}

// endIfUnused ends a recording, or looks again when it may have to end.
func (r *recordings) endIfUnused(of target, rec *recorded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.buckets[of] == rec { // Else it was ended at this very instant.
		if rest := time.Until(rec.asked.Add(keepRecording)); rest > 0 {
			rec.timer.Reset(rest)
			return
		}
		r.endLocked(of, rec)
	}
	r.running.Done()
}

// endLocked ends a recording. If its timer has fired, the function of the timer sees that the
// recording has gone.
func (r *recordings) endLocked(of target, rec *recorded) {
	delete(r.buckets, of)
	rec.recording.Stop()
	if rec.timer.Stop() {
		r.running.Done()
	}
}

// endOldestLocked ends the recording that was not asked for longest. If a new one were
// refused instead, any reader could keep all others from replays by asking about keys of no
// interest.
func (r *recordings) endOldestLocked() {
	var oldest target
	var rec *recorded
	for of, other := range r.buckets {
		if rec == nil || other.asked.Before(rec.asked) {
			oldest, rec = of, other
		}
	}
	r.endLocked(oldest, rec)
}

// replay returns the fates of the arrivals of a recording under other limits.
func (r *recordings) replay(ctx context.Context, rec *recorded, l shaper.Limits, st shaper.Stats) (whatIf, error) {
	select {
	case r.replaying <- struct{}{}:
		defer func() { <-r.replaying }()
	case <-ctx.Done():
		return whatIf{}, ctx.Err()
	}
	if st.Reserved > 0 || st.GivenBack > 0 || st.Charged > 0 || st.Forfeited > 0 { // A bucket that is made anew has forgotten it.
		rec.settles = true
	}
	arrivals := rec.recording.Arrivals()
	return newWhatIf(rec, arrivals, time.Now(), l, st), nil
}

// endOf ends all recordings of a source that has been removed.
func (r *recordings) endOf(source *watched) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for of, rec := range r.buckets {
		if of.source == source {
			r.endLocked(of, rec)
		}
	}
}

// close ends all recordings.
func (r *recordings) close() {
	r.mu.Lock()
	r.closed = true
	for of, rec := range r.buckets {
		r.endLocked(of, rec)
	}
	r.mu.Unlock()
	r.running.Wait()
}

func (s *openShaper) record(max int) *shaper.Recording { return s.s.Record(max) }

func (b *groupBucket[K]) record(max int) *shaper.Recording { return b.group.g.Record(b.key, max) }
