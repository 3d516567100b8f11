package accesslog

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

const (
	readAhead   = 64 << 10
	longestLine = 1 << 20
)

// lines reads lines, and holds no more of a line than may be used.
type lines struct {
	from *bufio.Reader
	long []byte // a line that does not fit into the buffer of from
	nuls *int64 // counts those that are skipped
}

func newLines(r io.Reader, nuls *int64) *lines {
	return &lines{from: bufio.NewReaderSize(r, readAhead), nuls: nuls}
}

// skipNULs skips the NULs before a line. When a log is copied and truncated, and its writer does not append,
// the next line goes to the old offset, and everything before it reads as NULs: as many bytes as the log had. So
// they are never held in memory. The next reading returns an error again.
func (l *lines) skipNULs() {
	for {
		if next, err := l.from.Peek(1); err != nil || next[0] != 0 {
			return
		}
		read, _ := l.from.Peek(l.from.Buffered())
		n, _ := l.from.Discard(len(read) - len(bytes.TrimLeft(read, "\x00")))
		*l.nuls += int64(n)
	}
}

// next returns the next line without its end. It is good until the next call, and may be
// changed. A line that is too long is returned in part. The last line may lack its end.
// The error is [io.EOF] after it.
func (l *lines) next() (line []byte, tooLong bool, err error) {
	l.skipNULs()
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
	begins    []byte // of the line behind its heads, as a parser may change the line

	newest int64 // the latest stamp that it has had
}

const longestMagic = 6 // bytes that tell how a file is compressed

// openSource opens a file, counts in read the bytes read of it and in nuls those that are skipped, and recognises how it is
// compressed. It returns the system's description of the file, nil if there is none.
func openSource(name string, stdin io.Reader, read *atomic.Int64, nuls *int64) (s *source, info os.FileInfo, err error) {
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
	from, err = unpacked(packed, name, magic)
	if err != nil {
		return nil, nil, errors.Join(s.failed(err), s.close())
	}
	s.lines = newLines(from, nuls)
	return s, info, nil
}

// compressions are recognised by their first bytes. Those without a reader are not read.
var compressions = []struct {
	magic, name, unpack string
	read                func(io.Reader) (io.Reader, error)
}{
	{"\x1f\x8b", "gzip", "", func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }},
	{"\x28\xb5\x2f\xfd", "zstd", "", newZstd},
	{"\xfd7zXZ\x00", "xz", "", func(r io.Reader) (io.Reader, error) { return xz.NewReader(r) }},
	{"BZh", "bzip2", "", func(r io.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil }},
	{"\x04\x22\x4d\x18", "lz4", "lz4 -dc", nil},
	{"PK\x03\x04", "zip", "unzip -p", nil},
}

// newZstd returns a reader of zstd that uses one core, and a window no larger than zstd -d
// has by default.
func newZstd(r io.Reader) (io.Reader, error) {
	const largest = 128 << 20
	d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(largest))
	if err != nil {
		return nil, err
	}
	return d, nil
}

// unpacked returns the contents of a file, which begins with some bytes. The error is a
// [FormatError] if the file is compressed in a way that is not read.
func unpacked(from io.Reader, name string, begins []byte) (io.Reader, error) {
	for _, c := range compressions {
		switch {
		case !bytes.HasPrefix(begins, []byte(c.magic)):
		case c.read != nil:
			return c.read(from)
		default:
			shown := name
			if name == "-" {
				shown = "FILE"
			}
			return nil, &FormatError{File: name, Is: fmt.Sprintf("it is compressed with %s, which is not unpacked here: %s %s | shapereplay …", c.name, c.unpack, shown)}
		}
	}
	return from, nil
}

// failed adds the name of the file to an error.
func (s *source) failed(err error) error {
	if named, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%w", named)
	}
	if named, ok := errors.AsType[*FormatError](err); ok {
		return named
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("ends in the middle: %w", err)
	}
	return fmt.Errorf("%s: %w", s.name, err)
}

// next reads lines until one has a request that is usable, which it writes to e. It counts
// the others as broken. The error is [io.EOF] after the last line.
func (s *source) next(e *entry, st *Stats, usable func(*entry) Reason) error {
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
		s.begins = append(s.begins[:0], line[:min(len(line), beginningBytes)]...)
		*e = entry{}
		if reason == "" {
			reason = s.parser.parse(line, e)
		}
		if reason == noRequestMeant {
			continue
		}
		st.Lines++
		if reason == "" {
			reason = usable(e)
		}
		if reason == "" {
			if len(s.heads) > 0 {
				st.Heads[s.headNames]++
			}
			return nil
		}
		st.add(Broken{File: s.name, Line: s.line, Reason: reason}, s.begins)
	}
}

// A counter counts the bytes read through it.
type counter struct {
	from io.Reader
	read *atomic.Int64
}

func (c counter) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.read.Add(int64(n))
	return n, err
}
