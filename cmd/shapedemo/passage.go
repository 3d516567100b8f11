package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
)

// A passage is what became of one request at the shaper, in instants. Those
// that did not happen are zero. It travels in the request's context; all of it
// is written by the goroutine that serves the request.
type passage struct {
	arrived time.Time // just before the middleware
	queued  time.Time // admitted to the line
	left    time.Time
	refused time.Time
	reason  error // of the refusal
}

type passageKey struct{}

// passageOf returns the passage of a request under way, or nil.
func passageOf(ctx context.Context) *passage {
	p, _ := ctx.Value(passageKey{}).(*passage)
	return p
}

// tracePassages returns the hooks that write the shaper's own instants down.
func tracePassages() *shaper.Trace {
	write := func(set func(*passage, shaper.Event)) func(context.Context, shaper.Event) {
		return func(ctx context.Context, e shaper.Event) {
			if p := passageOf(ctx); p != nil {
				set(p, e)
			}
		}
	}
	return &shaper.Trace{
		Enqueued: write(func(p *passage, e shaper.Event) { p.queued = e.At }),
		Departed: write(func(p *passage, e shaper.Event) { p.left = e.At }),
		Refused:  write(func(p *passage, e shaper.Event) { p.refused, p.reason = e.At, e.Err }),
	}
}

// serverTiming is the header that tells the client how long the line held it.
const serverTiming = "Server-Timing"

// tellWait writes the time since the arrival, which is the wait, into the
// answer. It must run after the middleware and before the answer begins.
func tellWait(h http.Header, p *passage) {
	h.Set(serverTiming, fmt.Sprintf("shaper;dur=%.3f", float64(time.Since(p.arrived))/float64(time.Millisecond)))
}

// A logbook keeps the passages between start and stop, and no others: see
// instants.
type logbook struct {
	mu   sync.Mutex
	open bool
	all  []*passage
}

func (b *logbook) start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open, b.all = true, nil
}

func (b *logbook) add(p *passage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open {
		b.all = append(b.all, p)
	}
}

// stop returns the passages since start. They are at rest only when every
// answer to them has come.
func (b *logbook) stop() []*passage {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = false
	return b.all
}

// byArrival returns passages in the order in which they arrived.
func byArrival(passages []*passage) []*passage {
	return slices.SortedFunc(slices.Values(passages), func(a, b *passage) int { return a.arrived.Compare(b.arrived) })
}
