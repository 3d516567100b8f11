package config

import "time"

const (
	lookEvery = 500 * time.Millisecond // how often the files are read and compared
	quiet     = 100 * time.Millisecond // how long changed files must be left alone before they are read
	longest   = time.Second            // after a change they are read in any case
)

// watch reads the files again and again until Close, and puts changes in force.
//
// It is tempting to ask the operating system for notices of changes instead. But a notice
// is about one folder, so every symbolic link on the way to a file needs a watch of its own.
// Network file systems and single files mounted into containers send no notices, so the
// files must be read every few seconds all the same.
func (f *File) watch() {
	defer close(f.gone)
	for f.sleep(lookEvery) {
		seen, isNew := f.look()
		for since := time.Now(); isNew; {
			if !f.sleep(quiet) {
				return
			}
			seen, isNew = f.reloadIfQuiet(seen, time.Since(since) >= longest)
		}
	}
}

// sleep waits for d, and reports whether f is still open then.
func (f *File) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-f.done:
		return false
	case <-timer.C:
		return true
	}
}
