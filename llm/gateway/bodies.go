package gateway

import (
	"container/list"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/shaper"
)

// The defaults of a [Config].
const (
	DefaultBodies      = 64 << 20
	DefaultBodyTimeout = 30 * time.Second
)

// longestRead bounds the bytes of a body that are read: 1 MiB, and a byte that shows that it is longer.
const longestRead = 1<<20 + 1

// slow is how long a body may take to come before it must make room for others.
const slow = time.Second

// bodies bounds the memory that all calls of a line hold for their bodies. A call takes room as its body comes. If there is none,
// it gets the room of bodies that were passed on and are kept only to be sent again, and then the room of bodies that come slowly,
// whose calls are refused. So neither clients that keep back a byte nor calls under way take the room of calls that come and wait.
//
// If there is still no room, the rest of a body stays in the connection, and is read when the body is passed on.
type bodies struct {
	mu     sync.Mutex
	most   int64 // bytes
	held   int64
	coming list.List // of *body: being read, and can be interrupted; in the order in which they began
	sent   list.List // of *body: passed on, and may be sent again; in that order
	again  int64     // bytes of sent
}

// A body is the account of one call's body. The lock of the bodies guards the fields from bytes on.
type body struct {
	of        *bodies
	begun     time.Time // of reading
	length    int64     // by the client, at most longestRead; 0: unknown
	interrupt func()    // ends a read; from any goroutine
	hadNoRoom bool

	bytes       int64      // that it takes
	in          *list.List // coming or sent; nil: neither
	place       *list.Element
	text        []byte        // to be sent again; nil: it can't be
	interrupted chan struct{} // is closed when interrupt has returned; nil: its room is its own
}

// room takes room for n bytes more of a body that is being read, and reports whether there is room for them and for the rest
// of the body, by the length that its client has told. So a body that does not fit is hardly read.
func (b *body) room(n int) bool {
	fits, slow := b.of.take(b, int64(n), time.Now())
	for _, other := range slow {
		other.interrupt() // It is code of others, so it runs without the lock.
		close(other.interrupted)
	}
	b.hadNoRoom = !fits
	return fits
}

func (a *bodies) take(b *body, n int64, now time.Time) (fits bool, interrupted []*body) {
	a.mu.Lock()
	defer a.mu.Unlock()
	isSlow := func(e *list.Element) bool {
		return e != nil && e.Value != b && now.Sub(e.Value.(*body).begun) >= slow
	}
	missing, found := a.held+max(n, b.length-b.bytes)-a.most, a.again
	for e := a.coming.Front(); found < missing && isSlow(e); e = e.Next() {
		found += e.Value.(*body).bytes
	}
	if found < missing || b.interrupted != nil {
		return false, nil
	}
	for a.held+n > a.most {
		if e := a.sent.Front(); e != nil {
			a.dropLocked(e.Value.(*body))
			continue
		}
		other := a.coming.Front().Value.(*body)
		a.dropLocked(other)
		other.interrupted = make(chan struct{})
		interrupted = append(interrupted, other)
	}
	a.held += n
	b.bytes += n
	return true, interrupted
}

// dropLocked ends the account of a body.
func (a *bodies) dropLocked(b *body) {
	a.moveLocked(b, nil)
	a.held -= b.bytes
	b.bytes, b.text = 0, nil
}

// moveLocked puts a body at the end of a list, or of none.
func (a *bodies) moveLocked(b *body, to *list.List) {
	if b.in == &a.sent {
		a.again -= b.bytes
	}
	if b.in != nil {
		b.in.Remove(b.place)
	}
	if b.in = to; to != nil {
		b.place = to.PushBack(b)
	}
	if to == &a.sent {
		a.again += b.bytes
	}
}

// read reads the beginning of the body of a request, which is put back, and reports whether that is all of it. The deadline of the
// server for the rest, if there is one, begins anew.
func (b *body) read(w http.ResponseWriter, r *http.Request, patience time.Duration) (head []byte, whole bool, err error) {
	control := http.NewResponseController(w)
	server, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
	forRest := time.Duration(0)
	if server != nil && server.ReadTimeout > 0 {
		forRest = server.ReadTimeout
		patience = min(patience, forRest)
	}
	b.begun, b.length = time.Now(), min(max(r.ContentLength, 0), longestRead)
	b.interrupt = func() { _ = control.SetReadDeadline(time.Unix(1, 0)) }
	// An error means that an outer ResponseWriter hides the deadline, and nothing can be done.
	isTimed := control.SetReadDeadline(b.begun.Add(patience)) == nil
	if isTimed {
		b.move(&b.of.coming)
	}
	head, whole, err = llm.Peek(r, b.room)
	if b.move(nil); b.interrupted != nil {
		<-b.interrupted // No deadline is set behind this.
		return nil, false, errNoRoom
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded): // net/http has ended the context, too.
		return nil, false, fmt.Errorf("%w: %w", shaper.ErrBody, err)
	case err != nil && r.Context().Err() != nil:
		return nil, false, r.Context().Err()
	case err != nil:
		return nil, false, fmt.Errorf("%w: %w", shaper.ErrBody, err)
	}
	if isTimed {
		until := time.Time{}
		if !whole && forRest > 0 {
			until = time.Now().Add(forRest)
		}
		_ = control.SetReadDeadline(until)
	}
	return head, whole, nil
}

func (b *body) move(to *list.List) {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	if b.interrupted == nil {
		b.of.moveLocked(b, to)
	}
}

// keep notes the text of a body that may be sent again.
func (b *body) keep(text []byte) {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.text = text
}

// passed says that the bytes in memory have been passed on. A body that may be sent again is kept while nobody needs the room.
func (b *body) passed() {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	if b.text == nil {
		b.of.dropLocked(b)
		return
	}
	b.of.moveLocked(b, &b.of.sent)
}

// take returns the text to be sent again, once, which is then not taken for the room of others; nil if it is not kept.
func (b *body) take() (text []byte) {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.of.moveLocked(b, nil)
	text, b.text = b.text, nil
	return text
}

// forget says that the body will not be sent again.
func (b *body) forget() {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	if b.text = nil; b.in == &b.of.sent {
		b.of.dropLocked(b)
	}
}

// release ends the account of the body of a call that has ended.
func (b *body) release() {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.of.dropLocked(b)
}

// A sending is a body on its way to the handler behind the gateway. It drops the memory once that has been read.
type sending struct {
	of   *body
	rest io.ReadCloser // that follows; nil: nothing does

	mu   sync.Mutex // net/http's client may close a body that it still reads
	text []byte     // in memory, not read yet
}

// HasCome reports whether the body is in memory. If so, [shaper.Middleware] does not wait for it.
func (s *sending) HasCome() bool { return s.rest == nil }

func (s *sending) Read(p []byte) (n int, err error) {
	if n = s.next(p); n > 0 {
		return n, nil
	}
	if s.rest == nil {
		return 0, io.EOF
	}
	return s.rest.Read(p)
}

// next reads what is in memory.
func (s *sending) next(p []byte) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n = copy(p, s.text); n > 0 {
		s.drop(n)
	}
	return n
}

// drop drops the first bytes of what is in memory. The lock is held.
func (s *sending) drop(n int) {
	if s.text = s.text[n:]; len(s.text) == 0 {
		s.text = nil
		s.of.passed()
	}
}

// Close drops what has not been read, so that others may have its room.
func (s *sending) Close() error {
	s.mu.Lock()
	if len(s.text) > 0 {
		s.drop(len(s.text))
	}
	s.mu.Unlock()
	if s.rest == nil {
		return nil
	}
	return s.rest.Close()
}

// told returns the bytes that are held of bodies, and their bound.
func (a *bodies) told() (held, most int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held, a.most
}

func (a *bodies) allow(most int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.most = most
}
