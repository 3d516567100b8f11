package config

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	quiet     = 100 * time.Millisecond // how long the files must be left alone before they are read
	longest   = time.Second            // after a change they are read in any case
	pollEvery = 5 * time.Second        // how often they are read and compared, whatever the watcher says
)

// watch reads the files when they change, until Close.
func (f *File) watch() {
	defer close(f.gone)
	defer f.watcher.close()
	poll := time.NewTicker(f.poll)
	defer poll.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	timer.Stop() // It runs only while a change is waited for to end.

	var (
		since    time.Time // of the first change that has not been read; zero if there is none
		expected *contents // what the poll has read; nil if the watcher has noticed the change
	)
	wait := func() {
		now := time.Now()
		if since.IsZero() {
			since = now
		}
		timer.Reset(min(quiet, max(0, since.Add(longest).Sub(now))))
	}
	for {
		select {
		case <-f.done:
			return
		case <-f.watcher.notices():
			expected = nil
			wait()
		case <-poll.C:
			if !since.IsZero() {
				continue // They are going to be read.
			}
			// What the poll sees may be half a file. It counts if it is still the same
			// after the time of quiet.
			if now, isNew := f.look(); isNew {
				expected = &now
				wait()
			}
		case <-timer.C:
			if time.Since(since) >= longest {
				expected = nil
			}
			now, settled := f.reloadIfNew(expected)
			if settled {
				since, expected = time.Time{}, nil
				continue
			}
			expected = &now
			wait()
		}
	}
}

// A watcher notices that files may have changed.
type watcher interface {
	// notices returns the channel that gets a value after changes. It has room for
	// one, so that no change is missed while nothing receives; nil says that nothing
	// will be noticed.
	notices() <-chan struct{}

	// follow makes the watcher notice changes of these files, and only of them. It is
	// called before each reading, as links and folders may have been replaced, and by
	// one goroutine at a time.
	follow(paths []string)

	// close returns when all goroutines of the watcher have ended.
	close()
}

// newWatcher returns a watcher that asks the operating system, or one that notices
// nothing if that has no means left: then the poll is all there is.
func newWatcher() watcher {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return blindWatcher{}
	}
	return newSystemWatcher(w)
}

// A systemWatcher watches folders, because the watch of a file ends when the file is
// replaced, as most editors do.
type systemWatcher struct {
	w       *fsnotify.Watcher
	notice  chan struct{}
	pumping sync.WaitGroup
	names   atomic.Pointer[[]string] // events of these paths count

	watched map[string]fs.FileInfo // folders; guarded by the rule that one goroutine calls follow
}

func newSystemWatcher(w *fsnotify.Watcher) *systemWatcher {
	s := &systemWatcher{w: w, notice: make(chan struct{}, 1), watched: map[string]fs.FileInfo{}}
	s.pumping.Go(s.pump)
	return s
}

func (s *systemWatcher) notices() <-chan struct{} { return s.notice }

func (s *systemWatcher) close() {
	_ = s.w.Close() // It closes both channels.
	s.pumping.Wait()
}

// pump turns events into notices. It is a goroutine of its own, because fsnotify may
// send an error while it holds the lock that Add needs: whoever calls follow cannot also
// be the one that receives.
func (s *systemWatcher) pump() {
	for {
		select {
		case event, ok := <-s.w.Events:
			if !ok {
				return
			}
			if names := s.names.Load(); names != nil && !slices.Contains(*names, filepath.Clean(event.Name)) { // In the root folder it begins with "//".
				continue // of another file in that folder
			}
		case _, ok := <-s.w.Errors:
			if !ok {
				return
			}
			// Events may have been lost, so look.
		}
		select {
		case s.notice <- struct{}{}:
		default: // One is waiting already.
		}
	}
}

func (s *systemWatcher) follow(paths []string) {
	names, folders := around(paths)
	s.names.Store(&names)

	// fsnotify drops a folder that is deleted or moved. One whose parent is moved it
	// keeps, so each is compared with what has its path now.
	listed := s.w.WatchList()
	for _, folder := range listed {
		info, err := os.Stat(folder)
		if err != nil || !slices.Contains(folders, folder) || !os.SameFile(info, s.watched[folder]) {
			_ = s.w.Remove(folder) // It may be gone by itself.
		}
	}
	listed = s.w.WatchList()
	maps.DeleteFunc(s.watched, func(folder string, _ fs.FileInfo) bool { return !slices.Contains(listed, folder) })
	for _, folder := range folders {
		if slices.Contains(listed, folder) {
			continue
		}
		info, err := os.Stat(folder)
		if err == nil && s.w.Add(folder) == nil { // Otherwise the poll comes back to it.
			s.watched[folder] = info
		}
	}
}

// around returns the folders to watch for changes of files, and the paths whose events
// count.
func around(paths []string) (names, folders []string) {
	for _, path := range paths {
		for _, name := range steps(path) {
			names = append(names, name, filepath.Dir(name))
			folders = append(folders, filepath.Dir(name))
		}
	}
	return names, folders
}

// blindWatcher is a watcher that notices nothing.
type blindWatcher struct{}

func (blindWatcher) notices() <-chan struct{} { return nil }
func (blindWatcher) follow([]string)          {}
func (blindWatcher) close()                   {}
