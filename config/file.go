package config

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/leakybucket/shaper"
)

// A File is one or several files of rules that are read again whenever they change.
//
// [Open] makes one, and [OpenFair] for files that say fair. [File.Limits] and [File.Candidate] are the
// functions that [shaper.NewGroup] wants, [File.OnChange] is for [shaper.Group.Reload], and
// [File.Reload] for SIGHUP. When a changed file has mistakes, or cannot be read, the
// rules in force stay, and [File.Status] has the mistakes.
//
// A File is safe for concurrent use. It has a goroutine until [File.Close].
type File struct {
	names []string      // as given to Open
	paths []string      // the same, absolute: the working directory may change
	done  chan struct{} // closed by Close
	gone  chan struct{} // closed when the goroutine has ended
	rules atomic.Pointer[Rules]
	fair  bool // the files must say fair; else they must not

	// loading is held from the reading of the files until all functions have been told of
	// the change. So changes take effect, and are told, one after the other.
	loading sync.Mutex
	inForce contents         // what the rules are from
	tried   contents         // what was last read to be put in force
	lines   []*shaper.Shaper // of NewShaper

	// mu is held for moments only, never while the caller's code runs.
	mu     sync.Mutex
	closed bool
	status Status
	tell   []*func(*Rules)
}

// Status is what became of a [File]'s changes.
type Status struct {
	Loaded   time.Time // when the rules in force were put in force
	Reloads  uint64    // changes that took effect, without the first reading by Open
	Failures uint64    // changes that did not, and failed calls of Reload
	Err      error     // of the last failure, mostly Errors; nil after a success
	FailedAt time.Time // when the last failure was; it is kept after a success
}

// Open reads the files, each a layer over those before it, and watches them until
// [File.Close]. A rule of a later file replaces the earlier one whole; ~ as a
// rule takes it away.
//
// All files must be there and right: an empty, missing or unreadable one is an error,
// and so is calling Open without files. The error holds the mistakes of all files
// ([Errors]).
//
// The files are read and compared every 500 ms, whatever way leads to them: they may be
// replaced, be behind symbolic links, or be on a file system that announces no changes. A
// change is put in force when the files have been quiet for 100 ms, as an editor may write a
// file in several steps. Files that are never quiet are put in force once per second.
func Open(files ...string) (*File, error) { return open(false, "Open", files) }

// open is Open, or OpenFair if the files must say fair. name is the name of the function in errors.
func open(fair bool, name string, files []string) (*File, error) {
	f := &File{
		names: slices.Clone(files),
		done:  make(chan struct{}),
		gone:  make(chan struct{}),
		fair:  fair,
	}
	if err := f.start(name); err != nil {
		return nil, err
	}
	go f.watch()
	return f, nil
}

// start reads the files for the first time, for a function of such a name.
func (f *File) start(function string) error {
	if len(f.names) == 0 {
		return fmt.Errorf("config: %s: there are no files, must be at least one", function)
	}
	for _, name := range f.names {
		path, err := filepath.Abs(name)
		if err != nil {
			return fmt.Errorf("config: %s: %w", function, err)
		}
		f.paths = append(f.paths, path)
	}
	read := f.read()
	rules, err := f.parse(read)
	if err != nil {
		return err
	}
	f.inForce, f.tried = read.contents, read.contents
	f.rules.Store(rules)
	f.status.Loaded = time.Now()
	return nil
}

// Rules returns the rules in force now. They never change: a changed file makes new
// ones.
func (f *File) Rules() *Rules { return f.rules.Load() }

// Limits is [Rules.Limits] of the rules in force now. It takes no lock and allocates
// nothing. It is the function that [shaper.NewGroup] wants.
func (f *File) Limits(key string) (shaper.Limits, error) { return f.Rules().Limits(key) }

// Candidate is [Rules.Candidate] of the rules in force now, for a Group with
// [shaper.WithDryRun].
func (f *File) Candidate(key string) (shaper.Limits, error) { return f.Rules().Candidate(key) }

// Where is [Rules.Where] of the rules in force now: inspect.WithExplain(f.Where) shows with
// each bucket where its limits come from.
func (f *File) Where(key string) (rule, file string, line int) { return f.Rules().Where(key) }

// Status returns what became of changes so far.
func (f *File) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Close ends the watching, and returns when all goroutines have ended, which may be
// waiting for a function given to [File.OnChange]. The rules in force stay in force. It
// can be called several times and always returns nil. It must not be called by such a
// function.
func (f *File) Close() error {
	f.mu.Lock()
	first := !f.closed
	f.closed = true
	f.mu.Unlock()
	if first {
		close(f.done)
	}
	<-f.gone
	f.loading.Lock() // A Reload may be under way.
	defer f.loading.Unlock()
	return nil
}

// isClosed reports whether Close has been called.
func (f *File) isClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

// errClosed is the error of Reload after Close.
var errClosed = fmt.Errorf("config: the File is closed: %w", fs.ErrClosed)

// MarshalText returns the rules as one file, in the order of their keys, which [Parse]
// reads as the same rules: several layers become one, without the rules that were taken away.
// Comments are lost. It is an error if the file would be larger than Parse accepts.
func (r *Rules) MarshalText() ([]byte, error) {
	var text bytes.Buffer
	rest := r.rules
	if len(rest) > 0 && rest[0].Key == "" {
		text.WriteString("default: " + rest[0].yaml() + "\n")
		rest = rest[1:]
	}
	if r.fair != nil {
		text.WriteString(r.fair.marshal())
	}
	if r.adapt != nil {
		text.WriteString(r.adapt.marshal())
	}
	switch {
	case len(rest) > 0:
		text.WriteString("limits:\n")
	case text.Len() == 0:
		text.WriteString("limits: {}\n") // An empty file would be a mistake.
	}
	for _, rule := range rest {
		writeEntry(&text, "  ", rule.Key, rule.yaml())
	}
	if len(rest) > maxRules || text.Len() > maxBytes {
		return nil, fmt.Errorf("config: %d rules in %d bytes are too much for one file", len(r.rules), text.Len())
	}
	return text.Bytes(), nil
}

// writeEntry writes a key and its value. All keys are in quotes, because YAML reads some plain words, such
// as null and <<, as something else. A key of more than 1024 characters needs the question mark.
func writeEntry(to io.StringWriter, indent, key, value string) {
	const maxPlain = 1000
	entry := indent + strconv.Quote(key) + ": " + value + "\n"
	if len(strconv.Quote(key)) > maxPlain {
		entry = indent + "? " + strconv.Quote(key) + "\n" + indent + ": " + value + "\n"
	}
	_, _ = to.WriteString(entry) // It goes into memory, so there is no error.
}

// yaml returns the right side of a rule, on one line.
func (r *Rule) yaml() string {
	limits := wordsOf(r.Limits, r.Window)
	if r.Candidate == nil {
		return strings.Join(limits, " ")
	}
	fields := []string{"rate: " + limits[0]}
	for i := 1; i < len(limits); i += 2 {
		fields = append(fields, limits[i]+": "+limits[i+1])
	}
	fields = append(fields, "candidate: "+strings.Join(wordsOf(*r.Candidate, r.CandidateWindow), " "))
	return "{" + strings.Join(fields, ", ") + "}"
}

// wordsOf returns the text form of valid limits: the rate, or the window as which it is written, and then names
// with their values.
func wordsOf(l shaper.Limits, window string) []string {
	words := strings.Fields(l.String())
	if words[1] == "per" {
		words = append([]string{strings.Join(words[:3], " ")}, words[3:]...)
	}
	words[0] = cmp.Or(window, words[0])
	return words
}
