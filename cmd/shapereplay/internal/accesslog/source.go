package accesslog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"
)

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
