package rivals

import (
	"context"
	"errors"
	"sync"
	"time"
)

// naiveQueue is the shaper that one writes first: a channel with room for the
// waiters, and a goroutine that lets the head go at each tick of a [time.Ticker].
// startNaiveQueue makes one; stop ends it. It is safe for concurrent use.
type naiveQueue struct {
	line   chan chan struct{} // of waiters, each a channel that is closed when it may leave
	ticker *time.Ticker
	quit   chan struct{}
	run    sync.WaitGroup
}

// ErrNaiveFull is what a full naive queue returns.
var ErrNaiveFull = errors.New("the naive queue is full")

func startNaiveQueue(perSecond float64, depth int) *naiveQueue {
	q := &naiveQueue{
		line:   make(chan chan struct{}, depth),
		ticker: time.NewTicker(time.Duration(float64(time.Second) / perSecond)),
		quit:   make(chan struct{}),
	}
	q.run.Go(q.release)
	return q
}

func (q *naiveQueue) stop() {
	close(q.quit)
	q.run.Wait()
	q.ticker.Stop()
}

// release takes the head of the line, waits for a tick and lets it leave.
func (q *naiveQueue) release() {
	for {
		var head chan struct{}
		select {
		case head = <-q.line:
		case <-q.quit:
			return
		}
		select {
		case <-q.ticker.C:
		case <-q.quit:
			return
		}
		close(head)
	}
}

// Wait blocks until its caller may leave. It returns an error at once if the
// line is full, and ctx.Err() if the context ends first.
func (q *naiveQueue) Wait(ctx context.Context) error {
	leave := make(chan struct{})
	select {
	case q.line <- leave:
	default:
		return ErrNaiveFull
	}
	select {
	case <-leave:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
