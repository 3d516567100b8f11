package shaper

import (
	"context"
	"sync"
)

// The shards of a [Group] have a groupDrain in common while they drain. A shard in
// which no request waits any more keeps its buckets until none waits in the others either, and
// until then a request that a [Transport] retries may enter its lines once more.
type groupDrain struct {
	begins  sync.Mutex     // held by a Shutdown while it begins, so that another one does not take it for a line
	ended   chan struct{}  // closed when no request is in line any more
	closing sync.WaitGroup // the goroutine that closes the shards after that

	mu     sync.Mutex // no other lock is taken while it is held
	awaits int        // how many shards drain and have requests in line, and one more while a Shutdown begins
	isOver bool       // ended is closed
}

// join makes the drain wait for one more, and reports whether it has not ended yet.
func (d *groupDrain) join() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.isOver {
		d.awaits++
	}
	return !d.isOver
}

// leave makes the drain wait for one less, and reports whether that has ended it.
func (d *groupDrain) leave() (last bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.awaits--
	if last = d.awaits == 0 && !d.isOver; last {
		d.endLocked()
	}
	return last
}

// end ends the drain.
func (d *groupDrain) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.isOver {
		d.endLocked()
	}
}

func (d *groupDrain) endLocked() {
	d.isOver = true
	close(d.ended)
}

// Shutdown is [Shaper.Shutdown] for the lines of all keys. As long as any has requests in line, a retry of a
// [Transport] may still enter the line of its key.
func (g *Group[K]) Shutdown(ctx context.Context) error {
	g.mustBeMade()
	if g.all.beginDrain(&g.drain) && !g.overflow.letsAllThrough() {
		if err := awaitDrain(ctx, g.drain.ended); err != nil {
			return err
		}
	}
	return g.Close()
}

// Close is [Shaper.Close] for the lines of all keys. It deletes all buckets; only
// [Group.Snapshot] still knows them.
func (g *Group[K]) Close() error {
	g.mustBeMade()
	g.all.close()
	g.drain.end()
	g.drain.closing.Wait()
	g.ticker.waitForEnd()
	if g.overflow.levels != nil {
		g.overflow.levels.close()
	}
	return nil
}

// beginDrain admits no more requests, and reports whether any wait.
func (all shards[K]) beginDrain(d *groupDrain) (waiting bool) {
	d.begins.Lock()
	defer d.begins.Unlock()
	if !d.join() { // So that the drain does not end before all shards have begun.
		return false
	}
	for _, s := range all {
		s.beginDrain()
	}
	return !d.leave()
}

// beginDrain admits no more requests.
func (s *keyShard[K]) beginDrain() {
	s.beginDrainLocked(s.lockAndAdvance())
	defer s.unlockAndArm()
	if s.waiting > 0 {
		s.drains(true)
	}
}

// drains is host.drains. When no request waits any more in the last shard, the drain
// ends, and all shards are closed: in a goroutine, because closing takes their locks.
func (s *keyShard[K]) drains(waits bool) bool {
	switch {
	case waits && !s.isAwaited:
		s.isAwaited = s.group.drain.join()
	case !waits && s.isAwaited:
		s.isAwaited = false
		if s.group.drain.leave() {
			s.group.drain.closing.Go(s.group.all.close)
		}
	}
	return s.isAwaited
}

// close refuses all requests that wait, and admits no more. The shard of the buckets that keys share is
// closed last: a key comes to it by a shard that is open, so none comes any more.
func (all shards[K]) close() {
	for _, s := range all {
		s.close()
	}
}

// close refuses all requests that wait, and admits no more.
func (s *keyShard[K]) close() {
	now := s.lockAndAdvance()
	defer s.unlockAndArm()
	s.refuseLinesLocked(now)
	s.beginDrainLocked(now)
	s.closeLocked()
}

// closeLocked closes a shard in which no request waits, and deletes its buckets. It keeps the
// table for Snapshot.
func (s *keyShard[K]) closeLocked() {
	s.rearm = true
	if s.isAwaited {
		s.isAwaited = false
		s.group.drain.leave()
	}
	if s.phase != closed {
		s.phase = closed
		s.dropClosedLocked()
	}
}

// Closed reports whether Shutdown or Close has been called.
func (g *Group[K]) Closed() bool {
	g.mustBeMade()
	s := g.shards[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase != open
}
