package config

import "time"

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
