package serverconn

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// aheadLength is the longest body that is read ahead. It bounds the memory of a
// waiting request.
const aheadLength = 64 << 10

// A Body is a request body that a goroutine of its own reads while the request waits:
// once the body has been read to its end, net/http watches the connection. The
// handler gets the Body in place of the original, and reads from it the bytes that
// have come already and then the rest as it comes.
//
// A read with a deadline would need no goroutine, but net/http cancels the request
// when a deadline passes during a read.
type Body struct {
	body     io.Reader
	setLimit func(time.Time) error // sets the deadline for reads of body
	ended    chan struct{}         // closed when all has been read, or nothing more can be

	mu       sync.Mutex
	more     sync.Cond
	data     []byte
	err      error // why data does not grow any more; nil: it may
	read     int   // how much of data the handler has read
	hijacked bool
	// firstReadTimeout is how long the handler's first read that has to wait may
	// take. The deadline is set only then: if it were set before, it could pass
	// during the goroutine's read, and cancel a handler that does not read the body.
	firstReadTimeout time.Duration
}

// Body returns the body to hand on in place of the request's own if it is read
// ahead, else nil. It is nil, too, if the request has such a Body already.
func (c *Conn) Body() *Body {
	if c.outer {
		return nil
	}
	return c.body
}

// fetchable reports whether the body may be read ahead: it must be small, of known
// length, and net/http's own. The code of any other body would run at the same time
// as the handler, and the body of [http.MaxBytesReader] writes to the header.
func (c *Conn) fetchable() bool {
	if c.body != nil {
		return false
	}
	n := c.request.ContentLength
	return 0 < n && n <= aheadLength && c.unread() && kindOf(c.request.Body) == plainBody
}

// readAhead begins to read a body that is fetchable. It returns nil if there is no
// way to stop reading.
func (c *Conn) readAhead() *Body {
	// A net.Pipe whose other end is closed has no deadlines, but none is needed, as no
	// read of it blocks.
	if err := c.setConnReadDeadline(time.Time{}); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	// data grows with the bytes that have come: an announced length takes no more than 4 KiB.
	b := &Body{body: c.request.Body, setLimit: c.setConnReadDeadline, ended: make(chan struct{})}
	b.more.L = &b.mu
	go b.fetch(make([]byte, min(c.request.ContentLength, 4<<10)))
	return b
}

// fetch reads the body, part by part, until its end or until a deadline ends it.
func (b *Body) fetch(part []byte) {
	defer close(b.ended)
	for {
		n, err := b.body.Read(part)
		if b.note(part[:n], err); err != nil {
			return
		}
	}
}

// note stores the result of a read.
func (b *Body) note(part []byte, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data, b.err = append(b.data, part...), err
	if err == io.EOF {
		// net/http removed the deadline when its read came to the end, but
		// setDeadline may have been called since then.
		_ = b.setLimit(time.Time{})
	}
	b.more.Broadcast()
}

// BodyError returns an error that is [ErrBody] if reading ahead has failed, and so
// cancelled the context of the request, while the client still waits for a response.
// It returns nil if the client has gone.
func (c *Conn) BodyError() error {
	b := c.body
	if b == nil {
		return nil
	}
	// net/http cancels the request after any error of a read. The goroutine notes the
	// error just after that.
	select {
	case <-b.ended:
	case <-time.After(drainTime):
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil || b.err == io.EOF || errors.Is(b.err, io.ErrUnexpectedEOF) {
		return nil
	}
	if broken, ok := errors.AsType[net.Error](b.err); ok && !broken.Timeout() {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrBody, b.err)
}

// ErrBody is the error of a body that could not be read although its client still
// waits for a response.
var ErrBody = errors.New("shaper: body of the request could not be read")

// coming reports whether more of the body may come.
func (b *Body) coming() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err == nil
}

// setDeadline sets the deadline for the rest of the body. After the end of the body
// it does nothing: net/http then reads from the connection to watch it, and a deadline
// that passes during that read cancels the request.
func (b *Body) setDeadline(t time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == io.EOF || b.hijacked {
		return nil
	}
	return b.setLimit(t)
}

// restartTimeout gives the handler time d for the rest of the body, from its first
// read that has to wait.
func (b *Body) restartTimeout(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.firstReadTimeout = d
}

// stop ends the goroutine, within drainTime. It must be called before the request ends,
// because net/http itself then reads the body.
func (b *Body) stop() {
	_ = b.setDeadline(time.Now().Add(drainTime))
	<-b.ended
}

// Hijack calls hijack, the Hijack of the ResponseWriter, for a handler that may not have
// read all of the body. The reader that it returns begins with the bytes read ahead, as
// net/http alone would give them.
//
// If the end of the body has not come, Hijack ends the read that is under way. That
// cancels the context of the request, as any failed read does in net/http.
func (b *Body) Hijack(hijack func() (net.Conn, *bufio.ReadWriter, error)) (net.Conn, *bufio.ReadWriter, error) {
	_ = b.setDeadline(time.Unix(1, 0))
	<-b.ended
	conn, buffered, err := hijack() // This removes all deadlines.
	if err != nil {
		_ = b.setDeadline(time.Time{})
		return conn, buffered, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hijacked = true
	rest := b.data[b.read:]
	b.read = len(b.data)
	if b.err != io.EOF {
		b.err = http.ErrHijacked
	}
	if len(rest) == 0 {
		return conn, buffered, nil
	}
	// All bytes that have come are put into one buffer: some hijackers take the Buffered bytes and
	// then read from the connection itself.
	known := len(rest) + buffered.Reader.Buffered()
	reader := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(rest), buffered.Reader), max(known, 4<<10))
	if _, err := reader.Peek(known); err != nil {
		return conn, buffered, err
	}
	return conn, bufio.NewReadWriter(reader, buffered.Writer), nil
}

// Read returns bytes that have come, or waits for more.
func (b *Body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(p) > 0 && b.read == len(b.data) && b.err == nil {
		if b.firstReadTimeout > 0 {
			_ = b.setLimit(time.Now().Add(b.firstReadTimeout))
			b.firstReadTimeout = 0
		}
		b.more.Wait()
	}
	if b.read == len(b.data) {
		return 0, b.err
	}
	n := copy(p, b.data[b.read:])
	b.read += n
	return n, nil
}

// Close does nothing, because net/http closes the original body.
func (b *Body) Close() error { return nil }
