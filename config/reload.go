package config

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"
)

// OnChange has do called with the new rules after each change that took effect. Give it
// the Reload of each Group that takes its limits from f, so that the keys that have a
// bucket get the new limits too:
//
//	stop := f.OnChange(func(*config.Rules) { group.Reload() })
//
// When do is called, the rules are in force already. Calls come one at a time, in the
// order of the changes, and the functions of one change in the order in which they were
// given to OnChange. They run on a goroutine of f, or on the caller's of [File.Reload], and
// no lock is held that other methods need. But do must not call Reload or [File.Close],
// nor wait for a goroutine that does: both wait for do.
//
// A function is not told of changes that took effect before OnChange was called.
// [File.Rules] returns the result of those. After stop, which can be called from
// anywhere and several times, no change that comes later is told. A call of do that is
// about to begin or under way goes on: stop does not wait for it.
func (f *File) OnChange(do func(*Rules)) (stop func()) {
	if do == nil {
		panic("config: File.OnChange: the function is nil")
	}
	entry := &do
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tell = append(f.tell, entry)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		// A new slice, because a change that is being told goes through the old one.
		f.tell = slices.DeleteFunc(slices.Clone(f.tell), func(e *func(*Rules)) bool { return e == entry })
	}
}

// Reload reads the files now, whatever the watching has noticed. If it returns nil, what
// they said is in force, and all functions given to [File.OnChange] have returned. If
// the files are as they were, nothing changes and those functions are not called.
// Otherwise the error holds all mistakes ([Errors]), and the rules in force stay. After
// [File.Close] it is an error that is [fs.ErrClosed].
func (f *File) Reload() error {
	f.loading.Lock()
	defer f.loading.Unlock()
	if f.isClosed() {
		return errClosed
	}
	return f.putInForce(f.read())
}

// reloadIfQuiet puts the files in force, unless their contents have been tried already. If
// these are no longer the contents that were seen, the files are still being written: unless
// it must, it then does nothing, and isNew is true. now are the contents of the files.
func (f *File) reloadIfQuiet(seen contents, must bool) (now contents, isNew bool) {
	f.loading.Lock()
	defer f.loading.Unlock()
	read := f.read()
	if read.contents != seen && !must {
		return read.contents, true
	}
	if read.contents != f.tried {
		_ = f.putInForce(read) // Status has the error.
	}
	return read.contents, false
}

// look returns the contents of the files, and reports whether they have not been tried yet.
func (f *File) look() (now contents, isNew bool) {
	f.loading.Lock()
	defer f.loading.Unlock()
	now = f.read().contents
	return now, now != f.tried
}

// putInForce puts a reading in force, in one step, and calls all functions that want to
// be told. The caller holds loading.
func (f *File) putInForce(read reading) error {
	f.tried = read.contents
	if read.contents == f.inForce {
		// Perhaps a mistake has been undone.
		f.mu.Lock()
		defer f.mu.Unlock()
		f.status.Err = nil
		return nil
	}
	rules, err := f.parse(read)

	f.mu.Lock()
	if f.status.Err = err; err != nil {
		f.status.Failures++
		f.status.FailedAt = time.Now()
		f.mu.Unlock()
		return err
	}
	f.inForce = read.contents
	f.rules.Store(rules)
	f.status.Reloads++
	f.status.Loaded = time.Now()
	tell := f.tell
	f.mu.Unlock()

	for _, entry := range tell {
		if f.isTold(entry) {
			(*entry)(rules)
		}
	}
	return nil
}

// isTold reports whether the function has not been stopped.
func (f *File) isTold(entry *func(*Rules)) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.tell, entry)
}

// contents are a hash of the files at one moment, or of the reasons why they could not be
// read. Equal contents are equal files.
type contents [sha256.Size]byte

// A reading is the texts of the files at one moment.
type reading struct {
	texts    [][]byte
	errs     []error // of each file; nil if it was read
	contents contents
}

// read reads all files. It does not fail: an error is a part of the result.
func (f *File) read() (r reading) {
	hash := sha256.New()
	for _, path := range f.paths {
		text, err := readFile(path)
		r.texts, r.errs = append(r.texts, text), append(r.errs, err)
		// The hashes of the files are hashed, so that no text can be taken for the end
		// of one file and the beginning of the next.
		one := sha256.Sum256(text)
		if err != nil {
			one = sha256.Sum256([]byte(err.Error()))
		}
		fmt.Fprintf(hash, "%x %t\n", one, err == nil)
	}
	r.contents = contents(hash.Sum(nil))
	return r
}

// readFile returns the text of a file, or its beginning if it is too large.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		// Opening a pipe would wait until somebody writes to it.
		return nil, fmt.Errorf("it is not a regular file (%v)", info.Mode().Type())
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	// The size is only a hint, but with it reading a file again and again leaves no garbage
	// but the text.
	text := bytes.NewBuffer(make([]byte, 0, min(info.Size(), maxBytes)+bytes.MinRead))
	_, err = text.ReadFrom(io.LimitReader(file, maxBytes+1))
	return text.Bytes(), err
}

// parse returns the rules of a reading, if f accepts them. The caller holds loading, or f is new.
func (f *File) parse(r reading) (*Rules, error) {
	rules, err := r.parse(f.names)
	if err == nil {
		err = f.accept(rules)
	}
	if err != nil {
		return nil, err
	}
	return rules, nil
}

// parse returns the rules of all layers, or the mistakes of all. Mistakes name the files
// as names does.
func (r reading) parse(names []string) (*Rules, error) {
	var layers []layer
	var mistakes Errors
	for i, name := range names {
		if err := r.errs[i]; err != nil {
			mistakes = append(mistakes, &Error{File: name, Message: "cannot be read: " + reasonOf(err), err: err})
			continue
		}
		l, errs := parseLayer(name, r.texts[i])
		layers, mistakes = append(layers, l), append(mistakes, errs...)
	}
	if mistakes != nil {
		return nil, mistakes
	}
	return merged(layers)
}

// reasonOf returns an error of the operating system without the path, which the caller
// shows as the user wrote it.
func reasonOf(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err.Error()
	}
	return err.Error()
}

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
