package shaper

import (
	"cmp"
	"context"
)

// phase is how far a shaper is on its way to the end.
type phase uint8

const (
	open     phase = iota
	draining       // Shutdown: no newcomers; the line leaves at its rate
	closed
)

// Close refuses everyone who waits, with ErrClosed, and returns when the
// ticker goroutine has gone. It always returns nil, and may be called many
// times, at once, and from anywhere, hooks included.
func (s *Shaper) Close() error {
	s.mustBeMade()
	s.close()
	return nil
}

// Shutdown admits nobody any more, lets those in line leave at their rate, and
// then closes the shaper and returns nil. If ctx ends first it returns
// ctx.Err() while the line goes on leaving: another Shutdown waits for the
// rest, and only Close stops it. With an empty line it returns nil even if ctx
// is done, and so does one that is overtaken by Close.
//
// It waits for the end of a Hold, and for places that those in line need, so give it
// a context that ends; it does not wait for the end of requests that have left.
//
// http.Server.Shutdown neither wakes nor cancels requests in the line, so shut
// the shaper down first.
func (s *Shaper) Shutdown(ctx context.Context) error {
	s.mustBeMade()
	return s.shutdown(ctx)
}

// close is Close.
func (d *dispatcher) close() {
	now := d.lockAndAdvance()
	for len(d.due) > 0 {
		ln := d.due[0]
		for w := ln.head; w != nil; w = ln.head {
			ln.remove(w, refused)
			d.waiting--
			if d.dryRun {
				d.countRefusalLocked(ln.flow, w.admitted, refusedClosed)
				d.waiters.keep(w)
				continue
			}
			w.slot = now
			w.wake()
		}
		d.updateDepartureLocked(ln.flow)
	}
	d.phase = max(d.phase, draining)
	d.rearm = true
	ended := d.ticker.ended()
	d.unlockAndArm()
	if ended != nil {
		<-ended
	}
}

// shutdown is Shutdown. In a dry run there is nobody to wait for.
func (d *dispatcher) shutdown(ctx context.Context) error {
	d.lockAndAdvance()
	d.phase = max(d.phase, draining)
	d.rearm = true
	if d.waiting > 0 && d.drained == nil {
		d.drained = make(chan struct{})
	}
	drained := d.drained
	empty := d.waiting == 0 || d.dryRun
	d.unlockAndArm()
	if !empty {
		select {
		case <-drained:
		case <-ctx.Done():
			select {
			case <-drained: // Both at once: what was asked for has been done.
			default:
				return errorOf(ctx)
			}
		}
	}
	d.close()
	return nil
}

// errorOf is the error of a context that has said to be done. One that breaks
// its contract and gives none has ended all the same.
func errorOf(ctx context.Context) error { return cmp.Or(ctx.Err(), context.Canceled) }

// settle ends a drain when the last in line has gone.
func (d *dispatcher) endDrainLocked() {
	if d.phase != draining || d.waiting > 0 {
		return
	}
	d.phase = closed
	if d.drop != nil {
		d.drop()
	}
	if d.drained != nil {
		close(d.drained)
	}
}
