package caddyshaper

import (
	"time"

	"example.com/leakybucket/shaper"
)

// snapshot returns the levels of all lines. Strings are keys that a snapshot can hold, so
// there are no errors.
func (l *limiters) snapshot() levels {
	now := levels{At: time.Now()}
	now.Keys, _ = l.live.Snapshot()
	if site := l.site.Load(); site != nil {
		now.Site, _ = site.Snapshot()
	}
	return now
}

// restore puts levels back.
func (l *limiters) restore(saved levels) {
	log := l.says.Load().log
	if err := l.live.Restore(saved.Keys); err != nil {
		log.Warn("some levels could not be restored", "error", err)
	}
	if site := l.site.Load(); site != nil && saved.Site != nil {
		if err := site.Restore(saved.Site); err != nil {
			log.Warn("the level of the site could not be restored", "error", err)
		}
	}
}

// copyLevel gives a new line the level of the one that it replaces.
func copyLevel(from, to *shaper.Shaper) {
	if saved, err := from.Snapshot(); err == nil {
		_ = to.Restore(saved) // It is the snapshot of a Shaper, and to is not closed.
	}
}

// setStateLocked makes the levels be saved in another file; in none if the path is "". It
// puts back what the first file says.
func (l *limiters) setStateLocked(path string) error {
	if l.levels != nil {
		if l.levels.path == path {
			return nil
		}
		l.levels.release(l)
		l.levels = nil
	}
	if path == "" {
		return nil
	}
	f, err := acquireState(path, l.says.Load().log)
	if err != nil {
		return err
	}
	l.levels = f
	saved, ok := f.use(l)
	if ok && !l.restored {
		l.restore(saved)
	}
	l.restored = true
	return nil
}

// save writes the levels, if there is a file for them and the lines are the latest of their
// name.
func (l *limiters) save() {
	l.mu.Lock()
	f := l.levels
	l.mu.Unlock()
	if f != nil && known.isLatest(l) {
		f.save(map[string]levels{l.name: l.snapshot()})
	}
}
