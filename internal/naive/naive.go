// Package naive holds the shaper that one writes first, as the reference that tests
// and benchmarks compare the real one with. The tests of package shaper show what it
// gets wrong.
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
	// Mended is what one writes second: the goroutine reads each tick, whether
	// anything waits or not, and spends none on requests that have given up.
	Mended bool
	// Stall runs on the goroutine after each tick. It stands for wake-ups that
	// come late, which virtual time does not have. nil means none.
	Stall func()

	line   chan *waiter
	ticker *time.Ticker
	quit   chan struct{}
	run    sync.WaitGroup
}

// ErrFull is what a full queue returns.
var ErrFull = errors.New("the naive queue is full")

type waiter struct {
	ctx   context.Context
	leave chan struct{} // closed when it may leave
}

// New returns a queue for so many departures a second, with room for depth waiters.
// Its fields may be set before it is started.
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

// Stop lets no more requests leave.
func (q *Queue) Stop() {
	close(q.quit)
	q.run.Wait()
	q.ticker.Stop()
}

// Wait blocks until its caller may leave. It returns [ErrFull] at once if the line is
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

// releaseMended waits for a tick and lets the first request leave that is still
// there.
func (q *Queue) releaseMended() {
	for q.tick() {
		if head := q.firstAlive(); head != nil {
			close(head.leave)
		}
	}
}

// tick waits for the next tick. It returns false if the queue is to stop.
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
