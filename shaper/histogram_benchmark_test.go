package shaper_test

import (
	"context"
	"math"
	"sync"
	"testing"
	"time"

	"example.com/leakybucket/shaper"
)

// eventHistograms counts what Histograms tells, but from the events of a Trace.
type eventHistograms struct {
	mu              sync.Mutex
	left            time.Time
	waits, spacings [512]uint64
}

func (h *eventHistograms) departed(_ context.Context, e shaper.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count(&h.waits, e.Waited.Seconds())
	if e.Waited > 0 { // Of the others Spacing says nothing.
		h.count(&h.spacings, e.At.Sub(h.left).Seconds())
	}
	h.left = e.At
}

func (h *eventHistograms) count(into *[512]uint64, v float64) {
	if v == 0 {
		into[0]++
		return
	}
	_, exponent := math.Frexp(v)
	into[256+exponent]++
}

// BenchmarkHistogramsFedByEvents is BenchmarkConforming of Wait with the histograms fed by a
// hook. Those of the Shaper itself are part of every other benchmark.
func BenchmarkHistogramsFedByEvents(b *testing.B) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	eachParallelism(b, "call=Wait", func(b *testing.B) func() {
		h := new(eventHistograms)
		s, err := shaper.New(shaper.Limits{Rate: 1e9, Burst: 1e9, Depth: 1}, shaper.WithTrace(&shaper.Trace{Departed: h.departed}))
		if err != nil {
			b.Fatal(err)
		}
		return func() { _ = s.Wait(ctx) }
	})
}
