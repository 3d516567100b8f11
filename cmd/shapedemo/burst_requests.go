package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
)

// A passage is what became of one request at the shaper, in instants. Those
// that did not happen are zero. It travels in the request's context; all of it
// is written by the goroutine that serves the request.
type passage struct {
	arrived   time.Time // just before the middleware
	queued    time.Time // admitted to the line
	left      time.Time
	refused   time.Time
	reason    error // of the refusal
	abandoned time.Time

	client   *vanisher // nil: a patient one
	vanished time.Time // when the client did; written when all is over
}

// admitted is when a request entered the line, or left without one.
func (p *passage) admitted() time.Time {
	if p.queued.IsZero() {
		return p.left
	}
	return p.queued
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
		Enqueued: write(func(p *passage, e shaper.Event) {
			p.queued = e.At
			p.client.queued(e.Waiting)
		}),
		Departed: write(func(p *passage, e shaper.Event) {
			p.left = e.At
			p.client.stay()
		}),
		Refused:   write(func(p *passage, e shaper.Event) { p.refused, p.reason = e.At, e.Err }),
		Abandoned: write(func(p *passage, e shaper.Event) { p.abandoned = e.At }),
	}
}

// A logbook keeps the passages between start and stop, and no others: see
// instants.
type logbook struct {
	mu       sync.Mutex
	open     bool
	all      []*passage
	expected map[string]*vanisher // by the client's end of the connection
	underWay sync.WaitGroup       // of all
}

func (b *logbook) start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open, b.all, b.expected = true, nil, map[string]*vanisher{}
}

// expect says that a vanisher will ask from that address.
func (b *logbook) expect(from string, v *vanisher) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected[from] = v
}

// follow adds the passage of a request from that address, and returns what is
// to be called at its end.
func (b *logbook) follow(p *passage, from string) (end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return func() {}
	}
	p.client = b.expected[from]
	b.all = append(b.all, p)
	b.underWay.Add(1)
	return b.underWay.Done
}

// stop returns the passages since start when all are at an end. Those of clients
// that have vanished may be so a little later than the last answer.
func (b *logbook) stop() []*passage {
	b.mu.Lock()
	b.open = false
	b.mu.Unlock()
	b.underWay.Wait()
	for _, p := range b.all {
		p.vanished = p.client.goneAt()
	}
	return b.all
}

// byArrival returns passages in the order in which they arrived.
func byArrival(passages []*passage) []*passage {
	return slices.SortedFunc(slices.Values(passages), func(a, b *passage) int { return a.arrived.Compare(b.arrived) })
}
