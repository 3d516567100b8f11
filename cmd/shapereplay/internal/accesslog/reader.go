package accesslog

import (
	"errors"
)

// A Reader returns the requests of logs in the order of their arrival. [Open] makes one;
// Next returns the requests, and [io.EOF] after the last. Close closes the files.
// Progress may be called from any goroutine at any time. The other methods are for one
// goroutine.
type Reader struct {
}

// Open opens log files. Their order does not matter. "-" is [Options.Stdin]. If a file
// can't be opened, or its format can't be recognised, Open returns an error and leaves
// none open. An empty file is no error.
func Open(o Options, names ...string) (*Reader, error) { return nil, errors.ErrUnsupported }

// Next returns the next request. After the last one it returns [io.EOF]. Any other error
// is one of reading a file, and names it.
func (r *Reader) Next() (Record, error) { return Record{}, errors.ErrUnsupported }

// Stats returns what has been read so far.
func (r *Reader) Stats() Stats { return Stats{} }

// Progress returns how many bytes of the files have been read, before decompression, and
// how many there are. The total is 0 if it is not known, as of a pipe.
func (r *Reader) Progress() (read, total int64) { return 0, 0 }

// Close closes the files.
func (r *Reader) Close() error { return nil }
