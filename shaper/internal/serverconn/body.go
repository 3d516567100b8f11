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

// aheadLength is the longest body that is read ahead: what a waiting request may
// cost beyond its goroutine.
const aheadLength = 64 << 10

// A Body is a request body that a goroutine of its own reads while the request waits:
// once the body has been read to its end, net/http watches the connection. The
// handler gets the Body in place of the original. It hands on what has come, and
// the rest as it comes.
//
// A read with a deadline would do without the goroutine, but when a deadline passes
// in a read net/http cancels the request.
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
	// take. If a deadline were set before, it would pass in our own read, and so
	// cancel a handler that does not read the body.
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

// fetchable reports whether the body may be read ahead: it must be small and of
// known length, and net/http's own. The code of any other would run beside the
// handler, and that of http.MaxBytesReader writes to the header.
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
	// A net.Pipe of which the other end is closed has no deadlines, but no read of it
	// blocks.
	if err := c.setConnReadDeadline(time.Time{}); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	// Memory is taken for what has come, not for what has only been announced.
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

// note stores what a read has brought.
func (b *Body) note(part []byte, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data, b.err = append(b.data, part...), err
	if err == io.EOF {
		// net/http has removed the deadline when its read came to the end, but
		// setDeadline may have been called since.
		_ = b.setLimit(time.Time{})
	}
	b.more.Broadcast()
}

// BodyError returns an error that is [ErrBody] if the context of the request has been
// cancelled because reading ahead has failed, while the client is there for a
// response. It is nil if the client has gone.
func (c *Conn) BodyError() error {
	b := c.body
	if b == nil {
		return nil
	}
	// net/http cancels the request whatever the error of a read is, and the error
	// is noted just after.
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

// ErrBody is the error of a body that could not be read although its client is there.
var ErrBody = errors.New("shaper: body of the request could not be read")

// coming reports whether more of the body may come.
func (b *Body) coming() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err == nil
}

// setDeadline sets the deadline for the rest of the body. After the end of the body
// it does nothing: the deadline would lie under net/http's own read, which watches
// the connection, and would cancel the request.
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

// stop ends the goroutine, within drainTime. That must be done before the request
// ends, as net/http reads the body itself then.
func (b *Body) stop() {
	_ = b.setDeadline(time.Now().Add(drainTime))
	<-b.ended
}

// Hijack calls hijack, which is that of the ResponseWriter, for a handler that may not
// have read all of the body. What was read ahead comes first from the reader that is
// returned, as it would from net/http alone.
//
// If the end of the body has not come, the read that is under way is broken off. That
// cancels the context of the request, as any failed read does in net/http.
func (b *Body) Hijack(hijack func() (net.Conn, *bufio.ReadWriter, error)) (net.Conn, *bufio.ReadWriter, error) {
	_ = b.setDeadline(time.Unix(1, 0))
	<-b.ended
	conn, buffered, err := hijack() // It removes all deadlines.
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
	// All that has come is put into one buffer: some hijackers take what is Buffered
	// and then read from the connection itself.
	known := len(rest) + buffered.Reader.Buffered()
	reader := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(rest), buffered.Reader), max(known, 4<<10))
	if _, err := reader.Peek(known); err != nil {
		return conn, buffered, err
	}
	return conn, bufio.NewReadWriter(reader, buffered.Writer), nil
}

// Read returns what has come, or waits for more.
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

// Close does nothing, as net/http closes the original itself.
func (b *Body) Close() error { return nil }
