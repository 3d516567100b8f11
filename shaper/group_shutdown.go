package shaper

import (
	"context"
	"sync"
	"sync/atomic"
)

// A groupDrain is what the shards of a Group have in common while they drain. A shard in which
// nobody waits any more keeps its buckets until the others have come to that, too.
type groupDrain struct {
	shards atomic.Int32  // that drain and have requests in line; and calls of Shutdown which begin
	ended  chan struct{} // closed when all shards are closed
	once   sync.Once     // closes ended
}

// Shutdown is [Shaper.Shutdown] for the lines of all keys.
func (g *Group[K]) Shutdown(ctx context.Context) error {
	g.mustBeMade()
	g.drain.shards.Add(1) // So that it does not end before all shards have begun.
	for _, s := range g.all {
		s.beginDrain()
	}
	if g.drain.shards.Add(-1) > 0 && !g.over.isDryRun() {
		select {
		case <-g.drain.ended:
		case <-ctx.Done():
			select {
			case <-g.drain.ended: // Both have happened: the lines are empty, which counts.
			default:
				return errorOf(ctx)
			}
		}
	}
	g.close()
	return nil
}

// Close is [Shaper.Close] for the lines of all keys. It deletes all buckets; only
// [Group.Snapshot] still knows them.
func (g *Group[K]) Close() error {
	g.mustBeMade()
	g.close()
	return nil
}

// close is Close. The shard of the buckets that keys share is closed last: a key comes to it
// by a shard that is open, so none comes any more.
func (g *Group[K]) close() {
	for _, s := range g.all {
		s.close()
	}
	g.endDrain()
	g.ticker.waitForEnd()
	if g.over.shared != nil {
		g.over.closeShared()
	}
}

// beginDrain admits no more requests.
func (s *keyShard[K]) beginDrain() {
	s.beginDrainLocked(s.lockAndAdvance())
	defer s.unlockAndArm()
	if s.waiting > 0 && !s.drains {
		s.drains = true
		s.group.drain.shards.Add(1)
	}
}

// emptiedLocked notes that nobody waits in a shard that drains. If it is the last one, all
// are closed: in a goroutine, as their locks are needed for that.
func (s *keyShard[K]) emptiedLocked() {
	if s.drains {
		s.drains = false
		if s.group.drain.shards.Add(-1) == 0 {
			go s.group.endDrain()
		}
	}
}

// endDrain closes the shards in which nobody waits any more: all of them.
func (g *Group[K]) endDrain() {
	for _, s := range g.all {
		s.closeDrained()
	}
	g.drain.once.Do(func() { close(g.drain.ended) })
}

// closeDrained ends the drain of a shard.
func (s *keyShard[K]) closeDrained() {
	s.lockAndAdvance()
	defer s.unlockAndArm()
	s.closeLocked()
}

// close refuses all requests that wait, and admits no more.
func (s *keyShard[K]) close() {
	now := s.lockAndAdvance()
	defer s.unlockAndArm()
	s.refuseLinesLocked(now)
	s.beginDrainLocked(now)
	s.closeLocked()
}

// closeLocked closes a shard in which nobody waits, and deletes its buckets. It keeps the
// table for Snapshot.
func (s *keyShard[K]) closeLocked() {
	s.rearm = true
	if s.drains {
		s.drains = false
		s.group.drain.shards.Add(-1)
	}
	if s.phase != closed {
		s.phase = closed
		s.dropClosedLocked()
	}
}
