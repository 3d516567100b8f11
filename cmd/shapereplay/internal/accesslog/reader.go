package accesslog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"
)

// A Reader returns the requests of logs in the order of their arrival. [Open] makes one;
// Next returns the requests, and [io.EOF] after the last. Close closes the files.
// Progress may be called from any goroutine at any time. The other methods are for one
// goroutine.
type Reader struct {
	o       Options
	sources []*source
	total   int64 // bytes of all files; 0 if not known
	read    atomic.Int64

	stamped *merger
	stats   Stats
	current entry // the one that was returned last

	// Where arrivals may differ from stamps, they are sorted once more.
	moves    bool
	arrived  sorter
	arrivals uint64 // counts the entries pushed, as the tie
	passed   int64  // nothing that is still to be pushed is earlier
	ended    bool   // nothing is still to be pushed
	last     int64  // the arrival that was returned last

	err error // the error that Next returns from now on
}

// Open opens log files. Their order does not matter. "-" is [Options.Stdin]. If a file
// can't be opened, or its format can't be recognised, Open returns an error and leaves
// none open. An empty file is no error.
func Open(o Options, names ...string) (*Reader, error) {
	o, err := o.checked()
	if err != nil {
		return nil, err
	}
	r := &Reader{o: o, stats: Stats{Heads: map[string]int{}, Broken: map[Reason]int{}}, moves: o.Spread}
	r.stamped = newMerger(&r.o, &r.stats)
	if err := r.open(names); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Reader) open(names []string) error {
	shared := newTexts()
	known := true
	var infos []os.FileInfo
	for _, name := range names {
		s, info, err := openSource(name, r.o.Stdin, &r.read)
		if err != nil {
			return err
		}
		r.sources = append(r.sources, s)
		for i, other := range infos {
			if name == "-" && names[i] == "-" || info != nil && other != nil && os.SameFile(info, other) {
				return fmt.Errorf("%s and %s are the same, so its requests would count twice", names[i], name)
			}
		}
		infos = append(infos, info)
		if info != nil && info.Mode().IsRegular() {
			r.total += info.Size()
		} else {
			known = false
		}
		if err := s.choose(r.o, shared); err != nil {
			return err
		}
		r.moves = r.moves || s.parser.subtracts()
	}
	if !known {
		r.total = 0
	}
	return r.stamped.add(r.sources)
}

// Next returns the next request. After the last one it returns [io.EOF]. Any other error
// is one of reading a file, and names it.
func (r *Reader) Next() (Record, error) {
	if r.err == nil {
		r.err = r.next(&r.current)
	}
	if r.err != nil {
		return Record{}, r.err
	}
	return r.current.Record, nil
}

func (r *Reader) next(e *entry) error {
	if !r.moves {
		t, err := r.stamped.next(e)
		if err == nil {
			r.arrive(e, t.at)
		}
		return err
	}
	for {
		first, ok := r.arrived.first()
		if ok && (r.ended || first <= r.passed || r.arrived.size > r.stamped.most) {
			r.arrive(e, r.arrived.pop(e).at)
			return nil
		}
		if r.ended {
			return io.EOF
		}
		t, err := r.stamped.next(e)
		if errors.Is(err, io.EOF) {
			r.ended = true
			continue
		}
		if err != nil {
			return err
		}
		at := t.at + r.stamped.offset(t, e)
		if e.isEnd {
			at -= int64(e.Duration)
		}
		r.passed = t.at - int64(r.o.Window) // A longer request is broken.
		r.arrived.push(at, r.arrivals, e)
		r.arrivals++
	}
}

// arrive sets when a request arrived. It is not before the request that was returned
// last: where a sorter was full, that may have been later.
func (r *Reader) arrive(e *entry, at int64) {
	r.last = max(r.last, at)
	e.At = time.Unix(0, r.last).UTC()
}

// Stats returns the counts so far.
func (r *Reader) Stats() Stats { return r.stats.clone() }

// Progress returns how many bytes of the files have been read, before decompression, and
// how many there are. The total is 0 if it is not known, as of a pipe.
func (r *Reader) Progress() (read, total int64) { return r.read.Load(), r.total }

// Close closes the files.
func (r *Reader) Close() error {
	var errs []error
	for _, s := range r.sources {
		errs = append(errs, s.close())
	}
	r.sources, r.err = nil, errors.Join(r.err, os.ErrClosed)
	return errors.Join(errs...)
}
