package inspect

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	scanEvery = time.Second // between two scans of a source, at least
	restAfter = time.Minute // without a scan, its memory is given back
)

// A watched is a source under its name.
type watched struct {
	name   string
	source source
	logger *slog.Logger // for mistakes of the program's functions
	whole  *track       // of all of it together; guarded by Inspector.mu

	removed chan struct{} // closed by Inspector.Remove
	ending  bool          // its changes are being ended, so none may begin; guarded by controller.mu

	turns *turns // of a Shaper WithFairQueue; nil: it is another source

	window    window
	wasClosed bool         // used by the sampler alone
	health    atomic.Value // a string: see track.health

	mu       sync.Mutex
	latest   *snapshot
	scans    uint64        // how many have begun
	next     time.Time     // when latest is too old
	again    time.Time     // when another scan may begin, for a key that is not known
	scanning chan struct{} // closed when the scan that runs has ended; nil if none runs
}

// capsAll reports whether all processes together have a cap on requests in flight: then all requests of the source say
// when they end.
func (w *watched) capsAll() bool {
	shared := w.source.read().shared
	return shared != nil && shared.InFlight > 0
}

// A snapshot is the result of a scan. Its rows do not change until it is released.
type snapshot struct {
	of      *watched
	number  uint64 // of its scan, from 1
	at      time.Time
	rows    []row
	readers int // guarded by watched.mu
}

func newWatched(name string, s Source, logger *slog.Logger) *watched {
	w := &watched{name: name, source: s.open(), logger: logger, removed: make(chan struct{})}
	w.health.Store("rest")
	w.whole = newTrack(func() (reading, bool) { return w.source.read(), true })
	if w.source.kind() == "shaper" {
		w.whole.bucket, _ = w.source.find("")
	}
	if fair, ok := w.source.(*openShaper); ok {
		w.turns = turnsOf(fair.s)
	}
	return w
}

// isRemoved reports whether the source is shown no longer.
func (w *watched) isRemoved() bool { return hasEnded(w.removed) }

// scan returns the buckets of the source as they were at most a second ago. All who ask
// meanwhile get the same snapshot. The caller must release it.
func (w *watched) scan(ctx context.Context) (*snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.latest == nil || !time.Now().Before(w.next) {
		if err := w.renewLocked(ctx); err != nil {
			return nil, err
		}
	}
	if w.latest == nil {
		return nil, errors.New("the buckets could not be read: a method of a key did not return")
	}
	w.latest.readers++
	return w.latest, nil
}

// find returns the bucket of a key. If the key is not known, it may have come since the latest
// scan: then another one is made, or awaited, that has begun after the call. These take a quarter
// of a core at most, however many unknown keys are asked for.
func (w *watched) find(ctx context.Context, key string) (ref bucketRef, found bool, err error) {
	if ref, found = w.source.find(key); found || w.source.knowsAll() {
		return ref, found, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for wanted := w.scans + 1; w.latest == nil || w.latest.number < wanted; {
		if rest := time.Until(w.again); rest > 0 && w.scanning == nil {
			err = w.sleepUnlocked(ctx, rest)
		} else {
			err = w.renewLocked(ctx)
		}
		if err != nil {
			return nil, false, err
		}
	}
	ref, found = w.source.find(key)
	return ref, found, nil
}

// sleepUnlocked sleeps without the lock.
func (w *watched) sleepUnlocked(ctx context.Context, d time.Duration) error {
	w.mu.Unlock()
	defer w.mu.Lock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// renewLocked puts a new snapshot in place of the latest, or waits for the scan that is
// doing so.
func (w *watched) renewLocked(ctx context.Context) error {
	if done := w.scanning; done != nil {
		w.mu.Unlock()
		defer w.mu.Lock()
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	done := make(chan struct{})
	w.scanning = done
	var rows []row
	if old := w.latest; old != nil && old.readers == 0 && w.source.knowsAll() {
		// Whoever asks now waits for this scan, so it takes the place of the one before. If it
		// needs methods of keys it may fail, and the one before must still be there.
		rows, w.latest = old.rows, nil
	}
	defer func() { // also if a method of a key panics, else all who ask later would wait
		w.scanning = nil
		close(done)
	}()

	w.scans++
	number, begun := w.scans, time.Now()
	rows = w.scanUnlocked(rows[:0])
	w.latest = &snapshot{of: w, number: number, at: begun, rows: rows}
	took := time.Since(begun)
	w.next = begun.Add(max(scanEvery, 2*took)) // so that scanning takes half of a core at most
	w.again = begun.Add(4 * took)
	return nil
}

// scanUnlocked scans the source into rows, and lets go of the lock meanwhile.
func (w *watched) scanUnlocked(rows []row) []row {
	w.mu.Unlock()
	defer w.mu.Lock()
	rows = w.source.scan(rows)
	clear(rows[len(rows):cap(rows)]) // rows of an earlier scan
	return rows
}

// release says that the caller no longer reads the snapshot.
func (s *snapshot) release() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.readers--
}

// rest forgets the results of scans, and their memory, if nobody has asked for a while.
func (w *watched) rest(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.latest != nil && w.latest.readers == 0 && w.scanning == nil && now.Sub(w.next) > restAfter {
		w.latest = nil
		w.source.forget()
	}
}

// look returns the row of a bucket as it is now; ok reports whether it is in use.
func (w *watched) look(key string, ref bucketRef) (r row, ok bool) {
	st, ok := ref.stats()
	if !ok {
		return row{}, false
	}
	return newRow(key, st, newLimitsView(st.Limits), time.Now()), true
}
