package shaper

import (
	"cmp"
	"context"
)

// Close refuses all requests that wait, with [ErrClosed], and returns nil when the ticker goroutine has ended. With
// a [shared.Bucket] it first tries to give back the leased slots. It may be called several times, at once, and from
// hooks.
func (s *Shaper) Close() error {
	s.mustBeMade()
	s.closeLines()
	s.ticker.waitForEnd()
	if s.levels != nil {
		s.levels.close()
	}
	return nil
}

// Shutdown admits no more requests, lets the line leave at its rate, and then closes the Shaper and returns nil. If
// ctx ends first, it returns ctx.Err() while the line goes on leaving: another Shutdown waits for the rest, and only
// [Shaper.Close] stops it. It returns nil if the line is empty, even if ctx is done, and if Close is called while it
// waits. It waits for the end of a [Shaper.Hold] and for the seats that the line needs, but not for requests that
// have left.
//
// In front of an HTTP server call [net/http.Server.Shutdown] instead, and Close after it: otherwise each newcomer is
// refused while the line leaves. Of several Shapers that a request goes through, close the outermost first.
func (s *Shaper) Shutdown(ctx context.Context) error {
	s.mustBeMade()
	s.beginDrainLocked(s.lockAndAdvance())
	if s.waiting > 0 && s.shutDown == nil {
		s.shutDown = make(chan struct{})
	}
	drained := s.shutDown
	empty := s.waiting == 0 || s.letsAllThrough() // Then no call waits, so there is nothing to wait for.
	s.unlockAndArm()
	if !empty {
		if err := awaitDrain(ctx, drained); err != nil {
			return err
		}
	}
	return s.Close()
}

// awaitDrain waits for the end of a drain, or returns the error of a context that ends before it.
func awaitDrain(ctx context.Context, drained <-chan struct{}) error {
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-drained: // Both have happened: the lines are empty, which counts.
		return nil
	default:
		return errorOf(ctx)
	}
}

// closeLines refuses all requests that wait, and those to come.
func (d *dispatcher) closeLines() {
	now := d.lockAndAdvance()
	defer d.unlockAndArm()
	d.refuseLinesLocked(now)
	d.beginDrainLocked(now)
}

// refuseLinesLocked refuses all requests that wait.
func (d *dispatcher) refuseLinesLocked(now int64) {
	for len(d.due) > 0 {
		ln := d.due[0]
		for w := ln.head; w != nil; w = ln.head {
			ln.refuseLocked(d, w, now, refused)
		}
		d.updateDepartureLocked(ln.flow)
	}
}

// beginDrainLocked admits no more requests.
func (d *dispatcher) beginDrainLocked(now int64) {
	d.phase = max(d.phase, draining)
	d.rearm = true
	d.ticker.hurry(now)
}

// errorOf returns the error of a context whose Done channel is closed. A context that
// breaks its contract, and has no error then, has ended all the same.
func errorOf(ctx context.Context) error { return cmp.Or(ctx.Err(), context.Canceled) }

// endDrainLocked ends a drain, as no request is in line any more.
func (d *dispatcher) endDrainLocked() {
	if d.host != nil {
		d.host.drains(false)
		return
	}
	d.phase = closed
	if d.shutDown != nil {
		close(d.shutDown)
	}
}
