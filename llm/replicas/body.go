package replicas

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
)

// longestBody bounds the bytes of a body that are kept: those that a gateway reads before the call enters the line.
const longestBody = 1<<20 + 1

var errLost = errors.New("replicas: the body of the call is no longer known")

// A body is the body of a call, which is kept as it is read, so that the call can go another way. Each way has a reader. net/http's
// client may still read for one way when the next has begun; what it reads then is not lost.
type body struct {
	r    *Replica
	from io.ReadCloser

	reading sync.Mutex // held while from is read, which may take long

	mu    sync.Mutex
	text  []byte // that has been read, unless isLost
	total int    // bytes that have been read
	err   error  // with which that has ended
	last  *bodyReader

	isLost bool // the text is not all that has been read
	isOver bool // the call will not go another way: the text is for its last reader alone
}

// keep returns the body of a request.
func (r *Replica) keep(req *http.Request) *body {
	b := &body{r: r, from: req.Body}
	if b.from == nil {
		b.from = http.NoBody
	}
	return b
}

// readable reports whether the body can be read once more, and whether its caller has failed to send it.
func (b *body) readable() (again, isBroken bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.isLost, b.err != nil && b.err != io.EOF
}

// isUntouched reports whether there is a body that no way has begun to read.
func (b *body) isUntouched() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last == nil && b.from != http.NoBody
}

// over says that the call will not go another way.
func (b *body) over() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isOver = true; b.last == nil || b.last.next == b.total {
		b.dropLocked()
	}
}

// dropLocked drops the text.
func (b *body) dropLocked() {
	b.r.room(-cap(b.text))
	b.text, b.isLost = nil, b.total > 0
}

// room takes room for the bytes of a body, and reports whether there is any.
func (r *Replica) room(n int) bool {
	if n == 0 {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > 0 && r.bodies+int64(n) > r.config.Bodies {
		return false
	}
	r.bodies += int64(n)
	return true
}

// reader returns the reader of one way. What the readers before it have not read yet they do not get.
func (b *body) reader() io.ReadCloser {
	if b.from == http.NoBody {
		return http.NoBody
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = &bodyReader{body: b}
	return b.last
}

type bodyReader struct {
	*body
	next int // byte to be read
}

func (r *bodyReader) Read(p []byte) (n int, err error) {
	if n, err = r.again(p); n > 0 || err != nil || len(p) == 0 {
		return n, err
	}
	r.reading.Lock()
	defer r.reading.Unlock()
	if n, err = r.again(p); n > 0 || err != nil { // Another reader has read meanwhile.
		return n, err
	}
	n, err = r.from.Read(p)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteLocked(p[:n], err)
	r.next += n
	return n, err
}

// again reads what has been read before.
func (r *bodyReader) again(p []byte) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.last != r:
		return 0, errLost
	case r.next == r.total:
		return 0, r.err
	case r.isLost:
		return 0, errLost
	}
	n = copy(p, r.text[r.next:])
	if r.next += n; r.isOver && r.next == r.total {
		r.dropLocked()
	}
	return n, nil
}

// noteLocked notes what has been read.
func (b *body) noteLocked(p []byte, err error) {
	b.err = err
	if b.total += len(p); len(p) == 0 || b.isLost {
		return
	}
	size := cap(b.text)
	if len(b.text)+len(p) > size {
		size = cap(slices.Grow(b.text, len(p)))
	}
	if b.isOver || b.total > longestBody || !b.r.room(size-cap(b.text)) {
		b.dropLocked()
		return
	}
	b.text = append(slices.Grow(b.text, len(p)), p...)
}

// Close does nothing: the body is closed with its request.
func (r *bodyReader) Close() error { return nil }
