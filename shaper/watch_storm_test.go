package shaper_test

import (
	"iter"
	"math/rand/v2"

	"example.com/leakybucket/shaper"
)

// watched is what a Shaper or a Group tells those who watch it.
type watched interface {
	Histograms() shaper.Histograms
	Refusals() []shaper.Refusal
}

// A watch looks at all that is told while a storm blows, from one goroutine, and says what
// cannot be.
type watch struct {
	fault     func(format string, args ...any)
	waits     uint64 // the most that a Histogram has counted so far
	recording *shaper.Recording
}

// look takes one look. line and record are those of the Shaper or of a key.
func (w *watch) look(at watched, line func(int) []shaper.Waiter, record func(int) *shaper.Recording) {
	before := w.waits
	h := at.Histograms()
	w.waits = h.Wait.Count()
	if h.Wait.Count() < before || counted(h.Wait.Buckets()) != h.Wait.Count() || counted(h.Spacing.Buckets()) != h.Spacing.Count() {
		w.fault("Histograms are %+v, after %d waits", h, before)
	}
	refusals := at.Refusals()
	for i, r := range refusals {
		if r.Reason == nil || r.Cost < 1 || len(refusals) > 64 || i > 0 && r.At.IsZero() {
			w.fault("refusal %d of %d is %+v", i, len(refusals), r)
		}
	}
	most := rand.N(6)
	waiters := line(most)
	for i, waiter := range waiters {
		if len(waiters) > most || waiter.Cost < 1 || waiter.Leaves.Before(waiter.Since) || i > 0 && waiter.Leaves.Before(waiters[i-1].Leaves) {
			w.fault("in line are %+v", waiters)
		}
	}
	if w.recording == nil {
		w.recording = record(1 + rand.N(50))
		return
	}
	for i, a := range w.recording.Arrivals() {
		if i >= 50 || a.Cost < 1 || a.Waited < 0 || !a.Done && (a.Err != nil || a.Allow) {
			w.fault("arrival %d is %+v", i, a)
		}
	}
	if rand.N(3) == 0 {
		w.recording.Stop()
		w.recording = nil
	}
}

// counted adds up the counts of a Histogram.
func counted(buckets iter.Seq2[float64, uint64]) (sum uint64) {
	for _, n := range buckets {
		sum += n
	}
	return sum
}
