package accesslog

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

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
