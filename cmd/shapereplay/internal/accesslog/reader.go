// Package accesslog reads the access logs of web servers, and returns the requests in
// the order in which they arrived.
//
// [Open] takes files in any order, and merges them by time: access.log,
// access.log.1 and access.log.2.gz, or the logs of several servers. A [Reader] returns
// one [Record] for each request.
//
// # Formats
//
// The format of each file is recognised from its first lines, unless [Options.Format]
// names it. How a file is compressed is recognised by its first bytes, whatever its name:
// gzip, zstd, xz and bzip2 are unpacked. The formats of text are patterns in a table, which
// one parser reads; the formats of JSON are tables of names, which another one reads.
//
// # Heads
//
// Collectors of logs write a head before each line: syslog (RFC 3164 and 5424), journald,
// docker compose, Kubernetes (CRI), kubectl logs --prefix, and the times of docker logs -t
// and kubectl logs --timestamps. Loggers of programs do, too: Go's log and Python's
// logging. If most of the first lines of a file have a head, or several, with a request
// behind it, it is skipped in all lines of the file, and [Stats.Heads] names it. A line
// without it is broken.
//
// # NULs
//
// NULs before a line are skipped without holding them: a rotation by copying and truncating may leave
// gigabytes at the head of a log. [Stats.NULs] counts them.
//
// # When a request arrived
//
// A shaper sees a request when it arrives, but some servers log the time of its end. The comment
// of each [Format] says which.
//
// From an end the duration is subtracted, if the line tells it. Otherwise the end stands for
// the arrival: the requests are as many, but each is late by its duration. The combined
// format has no duration by itself; [Options.Trailing] can name one, and then
// [Options.Stamp] must give the meaning of the time.
//
// # Whole seconds
//
// The text formats tell the time in whole seconds, which is coarse for a shaper. By
// default such requests arrive at the start of their second, in the order of the file. A
// replay then meets bursts that did not happen: it finds more waiting and more refusals than
// there were, and a limit found with it is on the safe side. With [Options.Spread] the
// requests of one second are spread evenly over it. A replay then misses bursts that did
// happen, and finds less. The truth lies between: a result that both agree on does not depend
// on the fractions of seconds.
// [Stats.Coarse] counts the requests concerned.
//
// # Order, and memory
//
// Lines whose times go back by less than a minute are sorted, or by less than an hour in the
// format Usage, whose calls may take long. For the sorting, the requests of such a window are
// held back, but never more than 256 MiB of them. If they were more, the earliest are returned
// although the window has not passed, so that only a smaller step back can be sorted. Where
// durations are subtracted from the times, a second buffer of the same size sorts the arrivals.
// A line that is further back is broken.
//
// # Broken lines
//
// A line that can't be used never ends the reading. It is counted by [Reason], and the
// first few of each reason are kept for [Stats]. A line that is longer than 1 MiB is
// broken too, and is not held in memory.
package accesslog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
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
	passed   int64  // no later entry is earlier
	ended    bool   // no entry follows
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
		s, info, err := openSource(name, r.o.Stdin, &r.read, &r.stats.NULs)
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
		r.passed = t.at - int64(r.stamped.window) // A longer request is broken.
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

// Stats returns the counts so far. They are good until the next call of Next.
func (r *Reader) Stats() Stats { return r.stats }

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

// Options say how logs are read. The zero value recognises the format of every file.
type Options struct {
	Format Format // "" is Auto; with Fields it is JSON, and with Trailing Combined
	Fields Fields // of the format JSON
	Stamp  Stamp  // the meaning of the times; "": as the comment of the format says

	// Trailing names the fields after the user agent in lines of the format Combined, a word
	// for each:
	//
	//	-               a field that is skipped
	//	time            the time, more exactly than before, as nginx's $msec
	//	duration:UNIT   the duration; UNIT is s, ms, us or ns
	//	host            the host that the request is for
	//	client          the client's address, instead of the first field; of a list the last that is not private
	//	header:NAME     the header field NAME, instead of the one that the format has
	//
	// Of a field that is written as name=value the value counts. The rest of the line behind the last
	// of them is ignored.
	Trailing []string

	// Header names the header fields that are wanted.
	Header []string

	// Spread spreads the requests of one second evenly over it, where times are told in
	// whole seconds.
	Spread bool

	Stdin io.Reader // the meaning of the file name "-"; nil is os.Stdin
}

// A Stamp is the meaning of the time of a line: the request's arrival, or its end.
type Stamp string

// The stamps.
const (
	Arrival Stamp = "arrival"
	End     Stamp = "end"
)

// An OptionError is a mistake in one of the [Options].
type OptionError struct {
	Option string // its name
	Reason string // the value, and what it must be
}

func (e *OptionError) Error() string { return e.Option + ": " + e.Reason }

// checked returns the options with their defaults, or an error that names the first wrong
// one.
func (o Options) checked() (Options, error) {
	if o.Format == "" {
		o.Format = Auto
	}
	// Fields and Trailing must not be ignored because another format fits the log.
	switch fields, trailing := len(o.Fields) > 0, len(o.Trailing) > 0; {
	case fields && trailing:
		return o, &OptionError{"Fields", "of the format json, and trailing is of combined: use one of them"}
	case fields && o.Format != Auto && o.Format != JSON:
		return o, &OptionError{"Fields", fmt.Sprintf("of the format json, and the format is %s", o.Format)}
	case trailing && o.Format != Auto && o.Format != Combined:
		return o, &OptionError{"Trailing", fmt.Sprintf("of the format combined, and the format is %s", o.Format)}
	case fields:
		o.Format = JSON
	case trailing:
		o.Format = Combined
	}
	if _, err := o.Format.parsers(o, newTexts()); err != nil {
		if wrong, ok := errors.AsType[*OptionError](err); ok {
			return o, wrong
		}
		return o, &OptionError{"Format", fmt.Sprintf("%q: %v", o.Format, err)}
	}
	if !slices.Contains([]Stamp{"", Arrival, End}, o.Stamp) {
		return o, &OptionError{"Stamp", fmt.Sprintf("%q, must be arrival or end", o.Stamp)}
	}
	return o, nil
}

// A Reason is why a line can't be used.
type Reason string

// The reasons.
const (
	TooLong    Reason = "longer than 1 MiB"
	NoHead     Reason = "without the head that the first lines of the file have"
	NotFormat  Reason = "not in the format of the file"
	NoTime     Reason = "no time that can be read"
	NoRequest  Reason = "no request" // as of a client that has connected and sent nothing, or another event in a JSON log
	BadStatus  Reason = "a status that is not a number of three digits"
	OutOfOrder Reason = "too much earlier than a line before it"
	TookLong   Reason = "took so long that its arrival can't be sorted in"
	NoEstimate Reason = "no estimate of tokens that can be read"
	BadActual  Reason = "an actual that is no number of tokens"
	BadSpan    Reason = "waited or duration is no number of seconds"
	NoFields   Reason = "no line #Fields before it that names the time, cs-method and cs-uri-stem"

	noRequestMeant Reason = "not a line of a request" // It is not broken.
)

// A Broken is a line that can't be used. Its names in JSON stay as they are.
type Broken struct {
	File    string `json:"file"` // as it was given to Open
	Line    int    `json:"line"` // counted from 1
	Reason  Reason `json:"reason"`
	Excerpt string `json:"text"` // the first 120 characters, escaped where they are not printable
}

// Stats are the counts of a [Reader] so far.
type Stats struct {
	Lines    int   // without empty ones
	Records  int   // requests, returned or still being sorted
	Coarse   int   // requests among them whose time is told in whole seconds
	Undated  int   // requests among them that are dated by their end, as the log does not tell the duration
	Lists    int   // requests among them whose client is told by a list of addresses
	Pairs    int   // requests among them whose lines begin with several addresses, none of which is said to be the client
	NULs     int64 // bytes before lines that are skipped, as a rotation by copying and truncating leaves them
	Redacted int   // values of wanted header fields that the server has replaced by "REDACTED"; they count as not told

	Heads    map[string]int // requests whose lines have heads of collectors, by their names
	Broken   map[Reason]int
	Examples []Broken // the first of each reason, in the order in which they were read
}

// count counts a request.
func (s *Stats) count(e *entry) {
	s.Records++
	s.Redacted += e.redacted
	if e.list {
		s.Lists++
	}
	if e.pair {
		s.Pairs++
	}
	if e.stamp.coarse {
		s.Coarse++
	}
	if e.isEnd && !e.timed {
		s.Undated++
	}
}

// add counts a broken line, and keeps it if it is one of the first of its reason.
func (s *Stats) add(b Broken, line []byte) {
	const kept = 3
	s.Broken[b.Reason]++
	if s.Broken[b.Reason] <= kept {
		b.Excerpt = beginning(line)
		s.Examples = append(s.Examples, b)
	}
}
