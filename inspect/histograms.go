package inspect

import (
	"math"
	"sync"

	"example.com/leakybucket/shaper"
)

// windowSeconds is over how many seconds the histograms of a stream are taken.
const windowSeconds = 60

// waits says how long the requests that left have waited.
type waits struct {
	Of      string   `json:"of"` // "bucket", or "source" if only those of all keys are known
	Count   uint64   `json:"count"`
	P50S    *float64 `json:"p50_s"`
	P95S    *float64 `json:"p95_s"`
	P99S    *float64 `json:"p99_s"`
	WithinS *float64 `json:"within_s"` // how far p99_s may be off; the others are off by less
}

func newWaits(of string, h shaper.Histogram) waits {
	w := waits{Of: of, Count: h.Count()}
	w.P50S, _ = quantile(h, 0.5)
	w.P95S, _ = quantile(h, 0.95)
	w.P99S, w.WithinS = quantile(h, 0.99)
	return w
}

// quantile returns a quantile and how far it may be off; nil for what is no number.
func quantile(h shaper.Histogram, q float64) (value, within *float64) {
	v, w := h.Quantile(q)
	return finiteOrNil(v), finiteOrNil(w)
}

func finiteOrNil(f float64) *float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	return &f
}

// histogramsView are the histograms of the last minute in the form of the API.
type histogramsView struct {
	Of        string   `json:"of"`
	Wait      bars     `json:"wait"`    // in seconds
	Spacing   bars     `json:"spacing"` // in intervals
	Count     uint64   `json:"count"`   // of wait
	P50S      *float64 `json:"wait_p50_s"`
	P95S      *float64 `json:"wait_p95_s"`
	P99S      *float64 `json:"wait_p99_s"`
	Spacing50 *float64 `json:"spacing_p50"`
	Spacing99 *float64 `json:"spacing_p99"`
}

// bars are the buckets of a histogram that are not empty: the upper bound, and how many
// values are in it. The last possible bound is infinite, which JSON can't say: null.
type bars [][2]any

func newBars(h shaper.Histogram) bars {
	b := bars{}
	for upper, count := range h.Buckets() {
		b = append(b, [2]any{finiteOrNil(upper), count})
	}
	return b
}

// A window remembers the histograms of a source once a second, to tell those of the last
// minute.
type window struct {
	mu     sync.Mutex
	kept   [windowSeconds + 1]shaper.Histograms // a ring
	taken  int
	latest shaper.Histograms
}

// add remembers the present histograms.
func (w *window) add(h shaper.Histograms) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept[w.taken%len(w.kept)] = h
	w.taken++
	w.latest = h
}

// view returns what has been counted in the window.
func (w *window) view(of string) histogramsView {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.taken == 0 {
		return histogramsView{Of: of, Wait: bars{}, Spacing: bars{}}
	}
	first := w.kept[max(w.taken-len(w.kept), 0)%len(w.kept)]
	wait, spacing := w.latest.Wait.Sub(first.Wait), w.latest.Spacing.Sub(first.Spacing)
	v := histogramsView{Of: of, Wait: newBars(wait), Spacing: newBars(spacing), Count: wait.Count()}
	v.P50S, _ = quantile(wait, 0.5)
	v.P95S, _ = quantile(wait, 0.95)
	v.P99S, _ = quantile(wait, 0.99)
	v.Spacing50, _ = quantile(spacing, 0.5)
	v.Spacing99, _ = quantile(spacing, 0.99)
	return v
}
