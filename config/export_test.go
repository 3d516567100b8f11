package config

import (
	"time"

	"github.com/fsnotify/fsnotify"
)

// Steps is the way to a file, for tests.
var Steps = steps

// OpenNoticing opens files that are watched by nobody but the test, which sends to the
// channel what a watcher would.
func OpenNoticing(notices <-chan struct{}, files ...string) (*File, error) {
	return open(testWatcher{ch: notices}, pollEvery, files)
}

// OpenUnpolled opens files of which only the watcher notices changes, so that a test of
// it cannot succeed by the poll.
func OpenUnpolled(files ...string) (*File, error) {
	return open(newWatcher(), 1000*time.Hour, files)
}

// Watch follows a file as a File does. look is what the poll does for the watcher.
func Watch(path string) (notices <-chan struct{}, look, stop func()) {
	w := newWatcher()
	w.follow([]string{path})
	return w.notices(), func() { w.follow([]string{path}) }, w.close
}

type testWatcher struct {
	blindWatcher
	ch <-chan struct{}
}

func (w testWatcher) notices() <-chan struct{} { return w.ch }

// WatchEvents is Watch with the events that the test sends.
func WatchEvents(path string, events chan fsnotify.Event, errs chan error) (notices <-chan struct{}, stop func()) {
	s := newSystemWatcher(&fsnotify.Watcher{Events: events, Errors: errs})
	names, _ := around([]string{path})
	s.names.Store(&names)
	return s.notices(), s.pumping.Wait
}
