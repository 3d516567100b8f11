package caddyshaper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"

	"example.com/leakybucket/shaper"
)

// stateFiles has the state files in use, by their paths.
var stateFiles = caddy.NewUsagePool()

const (
	saveEvery = time.Minute

	// keepFor is how long a file keeps the levels of a name that is no longer used.
	keepFor = 7 * 24 * time.Hour

	stateVersion = 1

	broken = ".broken" // ends the name of a file that was set aside
)

// A stateFile keeps the levels of all limiters that name it, and the changes of operators, while the process does not run.
type stateFile struct {
	path string
	log  *slog.Logger
	done chan struct{} // closed by Destruct

	mu     sync.Mutex
	broken bool // the file was malformed, and has not been set aside yet
	users  map[*limiters]bool
	levels map[string]levels // by name, as they were read or saved last
}

// levels are the levels of limiters at one moment.
type levels struct {
	At   time.Time       `json:"at"`
	Keys json.RawMessage `json:"keys,omitempty"` // of [shaper.Group.Snapshot]
	Site json.RawMessage `json:"site,omitempty"` // of [shaper.Shaper.Snapshot]
	Fair json.RawMessage `json:"fair,omitempty"` // of the line of fair queueing, likewise

	// Quota is the provider of the quota of Fair, and which limits it has; "": there is none. Levels in other units are not put back:
	// see sameUnit.
	Quota string `json:"quota,omitempty"`

	Changes []keptChange `json:"changes,omitempty"` // of limits, for a time
}

// savedState is the content of a file.
type savedState struct {
	Version int               `json:"version"`
	Shapers map[string]levels `json:"shapers"`
}

// openState reads a file.
func openState(path string, log *slog.Logger) (*stateFile, error) {
	f := &stateFile{path: path, log: log, done: make(chan struct{}), users: map[*limiters]bool{}, levels: map[string]levels{}}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("state: %w", err)
	default:
		if f.levels, err = parseState(text); err != nil {
			log.Error("the state file makes no sense; all levels begin at 0, and it is set aside when they are saved",
				"error", err, "aside", f.path+broken)
			f.levels, f.broken = map[string]levels{}, true
		}
	}
	go f.saveNowAndThen()
	return f, nil
}

func parseState(text []byte) (map[string]levels, error) {
	var saved savedState
	if err := json.Unmarshal(text, &saved); err != nil {
		return nil, err
	}
	if saved.Version != stateVersion || saved.Shapers == nil {
		return nil, fmt.Errorf("it has version %d, must have %d", saved.Version, stateVersion)
	}
	return saved.Shapers, nil
}

// saveNowAndThen saves the levels of all users.
func (f *stateFile) saveNowAndThen() {
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		select {
		case <-f.done:
			return
		case <-tick.C:
		}
		f.mu.Lock()
		users := maps.Clone(f.users)
		f.mu.Unlock()
		now := map[string]levels{}
		for l := range users {
			if known.isLatest(l) {
				now[l.name] = l.snapshot()
			}
		}
		f.save(now)
	}
}

// save writes the levels of some names, and the known levels of others.
func (f *stateFile) save(now map[string]levels) {
	if len(now) == 0 {
		return // No configuration with the file has been started yet.
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken {
		if err := os.Rename(f.path, f.path+broken); err != nil {
			f.log.Error("the broken state file could not be set aside, and is replaced", "error", err)
		}
		f.broken = false
	}
	maps.Copy(f.levels, now)
	maps.DeleteFunc(f.levels, func(_ string, l levels) bool { return time.Since(l.At) > keepFor })
	if err := f.writeLocked(); err != nil {
		f.log.Error("the levels could not be saved", "error", err)
	}
}

// writeLocked replaces the file in one step, so that it is whole at any moment.
func (f *stateFile) writeLocked() (err error) {
	text, err := json.Marshal(savedState{stateVersion, f.levels})
	if err != nil {
		return err
	}
	part, err := os.CreateTemp(filepath.Dir(f.path), "."+filepath.Base(f.path)+"-*") // It has mode 0600.
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(part.Name())
		}
	}()
	_, err = part.Write(text)
	if err == nil {
		err = part.Sync()
	}
	if err = errors.Join(err, part.Close()); err != nil {
		return err
	}
	return os.Rename(part.Name(), f.path)
}

// Destruct implements [caddy.Destructor].
func (f *stateFile) Destruct() error {
	close(f.done)
	return nil
}

// use notes that limiters are saved here, and returns their levels; ok reports whether there
// are any.
func (f *stateFile) use(l *limiters) (saved levels, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users[l] = true
	saved, ok = f.levels[l.name]
	return saved, ok
}

// release ends the use of the file by limiters.
func (f *stateFile) release(l *limiters) {
	f.mu.Lock()
	delete(f.users, l)
	f.mu.Unlock()
	_, _ = stateFiles.Delete(f.path)
}

// snapshot returns the levels of all lines. Strings are keys that a snapshot can hold, so
// there are no errors.
func (l *limiters) snapshot() levels {
	now := levels{At: time.Now(), Quota: l.key.fixed.quota, Changes: l.changes()}
	if l.live != nil {
		now.Keys, _ = l.live.Snapshot()
	}
	if site := l.site.Load(); site != nil {
		now.Site, _ = site.Snapshot()
	}
	if line := l.fair.Load(); line != nil {
		now.Fair, _ = line.Snapshot()
	}
	return now
}

// restore puts levels back.
func (l *limiters) restore(saved levels) {
	log := l.says.Load().log
	if l.live != nil && saved.Keys != nil {
		if err := l.live.Restore(saved.Keys); err != nil {
			log.Warn("some levels could not be restored", "error", err)
		}
	}
	if site := l.site.Load(); site != nil && saved.Site != nil {
		if err := site.Restore(saved.Site); err != nil {
			log.Warn("the level of the site could not be restored", "error", err)
		}
	}
	if line := l.fair.Load(); line != nil && saved.Fair != nil && sameUnit(saved.Quota, l.key.fixed.quota) {
		if err := line.Restore(saved.Fair); err != nil {
			log.Warn("the level of the line of fair queueing could not be restored", "error", err)
		}
	}
}

// copyLevel gives a new line the level of the one that it replaces.
func copyLevel(from, to *shaper.Shaper) {
	if saved, err := from.Snapshot(); err == nil {
		_ = to.Restore(saved) // It is the snapshot of a Shaper, and to is not closed.
	}
}

// setStateLocked lets another file keep the levels; none if the path is "". It puts back the levels
// of the first file.
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
	f, err := loadOrNew(stateFiles, path, func() (*stateFile, error) { return openState(path, l.says.Load().log) })
	if err != nil {
		return err
	}
	l.levels = f
	saved, ok := f.use(l)
	if ok && !l.restored {
		l.restore(saved)
		l.saved = saved.Changes
	}
	l.restored = true
	return nil
}

// save writes the levels, if there is a file for them and the lines are the newest of their
// name.
func (l *limiters) save() {
	l.mu.Lock()
	f := l.levels
	l.mu.Unlock()
	if f != nil && known.isLatest(l) {
		f.save(map[string]levels{l.name: l.snapshot()})
	}
}
