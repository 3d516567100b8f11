package accesslog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"
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
	arrivals uint64 // counts what was pushed, as the tie
	passed   int64  // nothing that is still to be pushed is earlier
	ended    bool   // nothing is still to be pushed
	last     int64  // the arrival that was returned last

	err error // what Next returns from now on
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

// Stats returns what has been read so far.
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

const (
	readAhead   = 64 << 10
	longestLine = 1 << 20
)

// lines reads lines, and holds no more of a line than may be used.
type lines struct {
	from *bufio.Reader
	long []byte // a line that does not fit into the buffer of from
}

func newLines(r io.Reader) *lines { return &lines{from: bufio.NewReaderSize(r, readAhead)} }

// next returns the next line without its end. It is good until the next call, and may be
// changed. A line that is too long is returned in part. The last line may lack its end.
// The error is [io.EOF] after it.
func (l *lines) next() (line []byte, tooLong bool, err error) {
	line, err = l.from.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		l.long = l.long[:0]
		for errors.Is(err, bufio.ErrBufferFull) {
			if tooLong = tooLong || len(l.long)+len(line) > longestLine; !tooLong {
				l.long = append(l.long, line...)
			}
			line, err = l.from.ReadSlice('\n')
		}
		if tooLong = tooLong || len(l.long)+len(line) > longestLine+len("\r\n"); !tooLong {
			l.long = append(l.long, line...)
		}
		line = l.long
	}
	if errors.Is(err, io.EOF) && (len(line) > 0 || tooLong) {
		err = nil
	}
	line = bytes.TrimSuffix(line, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	return line, tooLong || len(line) > longestLine, err
}

// A source is one file.
type source struct {
	name   string
	rank   uint64 // its place among the sources, by their first requests; orders requests of one instant
	lines  *lines
	parser parser
	line   int
	close  func() error

	heads     headChain // that its lines have
	headNames string

	newest int64 // the latest stamp that it has had
}

const longestMagic = 6 // bytes that tell how a file is compressed

// openSource opens a file, counts in read what is read of it, and recognises how it is
// compressed. It returns what the system knows of the file, nil if that is nothing.
func openSource(name string, stdin io.Reader, read *atomic.Int64) (s *source, info os.FileInfo, err error) {
	s = &source{name: name, close: func() error { return nil }}
	from := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, nil, fmt.Errorf("%w", err) // It names the file.
		}
		from, s.close = f, f.Close
	} else if from == nil {
		from = os.Stdin
	}
	if f, ok := from.(*os.File); ok {
		if info, err = f.Stat(); err != nil {
			return nil, nil, errors.Join(s.failed(err), s.close())
		}
	}
	packed := bufio.NewReaderSize(counter{from, read}, readAhead)
	magic, err := packed.Peek(longestMagic)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, errors.Join(s.failed(err), s.close())
	}
	if err := compressionOf(name, magic); err != nil {
		return nil, nil, errors.Join(err, s.close())
	}
	if !bytes.HasPrefix(magic, []byte{0x1f, 0x8b}) {
		s.lines = &lines{from: packed}
		return s, info, nil
	}
	text, err := gzip.NewReader(packed)
	if err != nil {
		return nil, nil, errors.Join(s.failed(err), s.close())
	}
	s.lines = newLines(text)
	return s, info, nil
}

// failed says of an error which file it is of.
func (s *source) failed(err error) error {
	if named := (*fs.PathError)(nil); errors.As(err, &named) {
		return fmt.Errorf("%w", err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("ends in the middle: %w", err)
	}
	return fmt.Errorf("%s: %w", s.name, err)
}

// next reads lines until one has a request that is usable, which it writes to e. It counts
// the others as broken, and keeps that many examples of each reason. The error is
// [io.EOF] after the last line.
func (s *source) next(e *entry, st *Stats, examples int, usable func(*entry) Reason) error {
	for {
		line, tooLong, err := s.lines.next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return io.EOF
			}
			return s.failed(err)
		}
		s.line++
		if s.line == 1 {
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf")) // a byte order mark
		}
		reason := Reason("")
		if tooLong {
			reason = TooLong
		} else if rest, ok := s.heads.cut(line); ok {
			line = rest
		} else if len(line) > 0 {
			reason = NoHead
		}
		if len(line) == 0 {
			continue
		}
		st.Lines++
		*e = entry{}
		if reason == "" {
			reason = s.parser.parse(line, e)
		}
		if reason == "" {
			reason = usable(e)
		}
		if reason == "" {
			if len(s.heads) > 0 {
				st.Heads[s.headNames]++
			}
			return nil
		}
		st.add(Broken{File: s.name, Line: s.line, Reason: reason}, examples, line)
	}
}

// A counter counts what is read through it.
type counter struct {
	from io.Reader
	read *atomic.Int64
}

func (c counter) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// A FormatError is a log in a format that is not read.
type FormatError struct {
	File   string // as it was given to Open
	Is     string // its name and a way to use it; "" if it is unknown
	Begins string // the first 120 characters of its first line; "" if they tell nothing
}

func (e *FormatError) Error() string {
	if e.Is != "" {
		return e.File + ": " + e.Is
	}
	return fmt.Sprintf("%s: the format is none of combined, json, caddy and traefik; it begins with %s", e.File, e.Begins)
}

// An OptionError is a mistake in one of the [Options].
type OptionError struct {
	Option string // its name
	Reason string // the value, and what it must be
}

func (e *OptionError) Error() string { return e.Option + ": " + e.Reason }

// compressions are recognised by their first bytes. gzip alone is read.
var compressions = []struct{ magic, name, unpack string }{
	{"\xfd7zXZ\x00", "xz", "xz -dc"},
	{"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"},
	{"BZh", "bzip2", "bzip2 -dc"},
	{"\x04\x22\x4d\x18", "lz4", "lz4 -dc"},
	{"PK\x03\x04", "zip", "unzip -p"},
}

// compressionOf returns an error that says how a file is compressed, or nil.
func compressionOf(name string, begins []byte) error {
	for _, c := range compressions {
		if !bytes.HasPrefix(begins, []byte(c.magic)) {
			continue
		}
		shown := name
		if name == "-" {
			shown = "FILE"
		}
		return &FormatError{File: name, Is: fmt.Sprintf("it is compressed with %s, and only gzip is unpacked here: %s %s | shapereplay …", c.name, c.unpack, shown)}
	}
	return nil
}

// unread are formats that are known and not read, by their lines.
var unread = []struct {
	line *regexp.Regexp
	is   string
}{
	{regexp.MustCompile(`^\s*\[\s*(?:\{|$)`), `it is a JSON array, and JSON is read with one object on each line: jq -c '.[]' FILE makes such lines`},
	{regexp.MustCompile(`^\{"log":".*"stream":"std`), `it is the file of Docker's driver json-file, which is not read: docker logs NAME prints its lines`},
	{regexp.MustCompile(`^\{.*"__REALTIME_TIMESTAMP"`), `it is journald's JSON, which is not read: journalctl -o cat prints the lines`},
	{regexp.MustCompile(`^\s*\{\s*$`), `its JSON objects take several lines, and each must stand on one: jq -c . FILE makes such lines`},
	{regexp.MustCompile(` ?\S+:\d+ \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d\.\d{3}\] \S+ \S+ `), `it is HAProxy's log, which is not read: with "option httplog clf" HAProxy writes the format combined`},
	{regexp.MustCompile(`^(?:https?|h2|grpcs?|wss?) ` + rfc3339 + ` \S+ \S+ \S+ -?[\d.]+ -?[\d.]+ -?[\d.]+ `), `it is the log of an AWS load balancer (ALB), which is not read: make lines of the format combined or json of it`},
	{regexp.MustCompile(`^` + rfc3339 + ` \S+ \S+:\d+ \S+ -?[\d.]+ -?[\d.]+ -?[\d.]+ `), `it is the log of an AWS load balancer (ELB), which is not read: make lines of the format combined or json of it`},
	{regexp.MustCompile(`^\[` + rfc3339 + `\] "`), `it is Envoy's log, which is not read: with its json_format Envoy writes lines of the format json`},
	{regexp.MustCompile(`^#(?:Version|Software|Fields|Date): `), `it is a log in W3C's format (IIS, CloudFront), which is not read: make lines of the format combined or json of it`},
}

// unreadFormat names the format of the first lines of a file if it is one that is known and
// not read, or returns "". There is at least one line.
func unreadFormat(lines [][]byte) string {
	for _, u := range unread {
		matches := 0
		for _, line := range lines {
			if u.line.Match(line) {
				matches++
			}
		}
		if 2*matches > len(lines) || u.line.Match(lines[0]) {
			return u.is
		}
	}
	return ""
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
)

// A Broken is a line that can't be used.
type Broken struct {
	File    string // as it was given to Open
	Line    int    // counted from 1
	Reason  Reason
	Excerpt string // the first 120 characters; what is not printable is escaped
}

// Stats count what a [Reader] has read so far.
type Stats struct {
	Lines    int // without empty ones
	Records  int // requests, returned or still being sorted
	Coarse   int // requests among them whose time is told in whole seconds
	Undated  int // requests among them that are dated by their end, as the log does not tell the duration
	Lists    int // requests among them whose client is told by a list of addresses
	Redacted int // values of wanted header fields that the server has replaced by "REDACTED"; they count as not told

	Heads    map[string]int // requests whose lines have heads of collectors, by what these are
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
	if e.stamp.coarse {
		s.Coarse++
	}
	if e.isEnd && !e.timed {
		s.Undated++
	}
}

// add counts a broken line, and keeps it if it is one of the first of its reason.
func (s *Stats) add(b Broken, examples int, line []byte) {
	s.Broken[b.Reason]++
	if s.Broken[b.Reason] <= examples {
		b.Excerpt = excerpt(line)
		s.Examples = append(s.Examples, b)
	}
}

// clone returns a copy that does not change.
func (s *Stats) clone() Stats {
	c := *s
	c.Heads, c.Broken, c.Examples = maps.Clone(s.Heads), maps.Clone(s.Broken), slices.Clone(s.Examples)
	return c
}

const excerptWidth = 120 // characters

// excerpt returns the beginning of a line as it may be shown on a terminal: a client
// writes part of the log, so it may try to write to the terminal of whoever reads it.
func excerpt(line []byte) string {
	var b strings.Builder
	for width := 0; len(line) > 0; {
		r, size := utf8.DecodeRune(line)
		shown := string(r)
		switch {
		case r == utf8.RuneError && size == 1:
			shown = fmt.Sprintf(`\x%02x`, line[0])
		case !unicode.IsPrint(r):
			shown = strings.Trim(fmt.Sprintf("%+q", r), "'")
		}
		if width += utf8.RuneCountInString(shown); width > excerptWidth-1 {
			return b.String() + "…"
		}
		b.WriteString(shown)
		line = line[size:]
	}
	return b.String()
}
