// Package naive is the shaper that a programmer writes first: a channel and a ticker.
// Tests and benchmarks compare the real one with it. The tests of package shaper show
// its faults.
package naive

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A Queue is a channel with room for the waiters, and a goroutine that lets the head
// go at each tick of a [time.Ticker]. [New] makes one, [Queue.Start] starts its
// goroutine, and [Queue.Stop] ends it. Wait is safe for concurrent use.
type Queue struct {
	// Mended is the second try: the goroutine reads each tick, whether a request waits
	// or not, and spends no tick on a request that has given up.
	Mended bool
	// Stall runs on the goroutine after each tick. It stands for wake-ups that
	// come late, which virtual time does not have. nil means none.
	Stall func()

	line   chan *waiter
	ticker *time.Ticker
	quit   chan struct{}
	run    sync.WaitGroup
}

// ErrFull is the error of [Queue.Wait] if the queue is full.
var ErrFull = errors.New("the naive queue is full")

type waiter struct {
	ctx   context.Context
	leave chan struct{} // closed when it may leave
}

// New returns a queue with so many departures a second and room for depth waiters. Its
// fields may be set before [Queue.Start].
func New(perSecond float64, depth int) *Queue {
	return &Queue{
		line:   make(chan *waiter, depth),
		ticker: time.NewTicker(time.Duration(float64(time.Second) / perSecond)),
		quit:   make(chan struct{}),
	}
}

// Start lets requests leave from now on.
func (q *Queue) Start() {
	if q.Mended {
		q.run.Go(q.releaseMended)
	} else {
		q.run.Go(q.release)
	}
}

// Stop ends the goroutine, after which no request leaves.
func (q *Queue) Stop() {
	close(q.quit)
	q.run.Wait()
	q.ticker.Stop()
}

// Wait blocks until the request may leave. It returns [ErrFull] at once if the line is
// full, and ctx.Err() if the context ends first.
func (q *Queue) Wait(ctx context.Context) error {
	w := &waiter{ctx: ctx, leave: make(chan struct{})}
	select {
	case q.line <- w:
	default:
		return ErrFull
	}
	select {
	case <-w.leave:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// release takes the head of the line, waits for a tick and lets it leave.
func (q *Queue) release() {
	for {
		var head *waiter
		select {
		case head = <-q.line:
		case <-q.quit:
			return
		}
		if !q.tick() {
			return
		}
		close(head.leave)
	}
}

// releaseMended waits for a tick and lets the first request leave that has not given
// up.
func (q *Queue) releaseMended() {
	for q.tick() {
		if head := q.firstAlive(); head != nil {
			close(head.leave)
		}
	}
}

// tick waits for the next tick, and reports whether it came before Stop was called.
func (q *Queue) tick() bool {
	select {
	case <-q.ticker.C:
	case <-q.quit:
		return false
	}
	if q.Stall != nil {
		q.Stall()
	}
	return true
}

// firstAlive returns the first request that has not given up, or nil.
func (q *Queue) firstAlive() *waiter {
	for {
		select {
		case head := <-q.line:
			if head.ctx.Err() == nil {
				return head
			}
		default:
			return nil
		}
	}
}
