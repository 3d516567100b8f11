package llm

import (
	"compress/gzip"
	"errors"
	"io"
	"iter"
	"mime"
	"net/http"
	"strings"
	"sync"
)

// A Meter finds the usage of a call in its response. [NewMeter] makes one. Write the bytes of the body to it as they are,
// compressed by gzip or not, and then call End. [Transport] has Meters of its own; others are for programs that pass
// responses on. A Meter is for one goroutine at a time.
type Meter struct {
	provider     Provider
	status       int
	countsItself bool // the response has rate-limit headers

	events   splitter  // nil: no usage can be found in the body
	inflate  *inflater // nil: the body is not compressed
	isStream bool      // the body has, or may have, several events

	got   Usage
	known bool // got has been reported
	whole bool // the last event, or the end of the body, has come
	lost  bool // a part could not be read
}

// NewMeter returns a Meter for a response with a status and a header.
func NewMeter(p Provider, status int, h http.Header) *Meter {
	m := &Meter{provider: p, status: status, countsItself: p.Left != nil && len(p.Left(h)) > 0}
	if p.Usage == nil || status < 200 || status > 299 {
		return m
	}
	switch encoding := h.Get("Content-Encoding"); {
	case encoding == "", strings.EqualFold(encoding, "identity"):
	case isGzip(h):
		m.inflate = &inflater{m: m, room: maxInflated}
	default:
		return m
	}
	contentType, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	m.isStream = contentType != "application/json"
	switch contentType {
	case "text/event-stream":
		m.events = &serverSentEvents{on: m.event}
	case "application/vnd.amazon.eventstream":
		m.events = &amazonEvents{on: m.event}
	case "application/json":
		// A decoder stops reading at the end of the object, so bytes behind it must not matter.
		m.events = &jsonValues{on: m.event, whole: func() { m.whole = true }}
	default: // Perhaps lines of JSON.
		m.events = &jsonValues{on: m.event, whole: func() {}}
	}
	return m
}

// Write takes the next bytes of the body. It never fails.
func (m *Meter) Write(p []byte) (n int, err error) {
	switch {
	case m.inflate != nil:
		m.inflate.write(p)
	case m.events != nil:
		m.events.write(p)
	}
	return len(p), nil
}

// End says that no more bytes come. whole says that the body has ended, and was neither broken off nor closed before its
// end.
func (m *Meter) End(whole bool) {
	if m.inflate != nil {
		m.inflate.end(whole)
	}
	if whole && !m.lost && m.events != nil {
		m.events.end()
		m.whole = true
	}
}

// ranNothing reports whether no model has run, by the status of the response: the key or the model is unknown. Such a call
// costs a request's share.
func (m *Meter) ranNothing() bool {
	switch m.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		return true
	}
	return false
}

// Usage returns the usage that the response reports, if all of it has come. Every call has input, and every stream output:
// where one is 0, its event is missing.
func (m *Meter) Usage() (u Usage, ok bool) {
	if m.ranNothing() {
		return Usage{}, true
	}
	input := sum(m.got.Input, m.got.CacheRead, m.got.CacheWrite)
	if !m.known || !m.whole || m.lost || input == 0 || m.isStream && m.got.Output == 0 {
		return Usage{}, false
	}
	return m.got, true
}

// Counted returns the usage that counts towards the provider's limits. ok is false if the estimate stands: no usage is
// known, or the provider charges a call at its start and refunds nothing.
func (m *Meter) Counted() (u Usage, ok bool) {
	if u, ok = m.Usage(); !ok {
		return Usage{}, false
	}
	switch {
	case m.ranNothing(), m.provider.Counts == AtStart && !m.countsItself:
		return u, true
	case m.provider.Counts == AtStart:
		return Usage{}, false
	}
	return m.provider.counted(u), true
}

// Cost returns the actual cost of the call in a bucket of q, or a negative number if the estimate stands. A call that the
// provider refused with 429 costs nothing.
func (m *Meter) Cost(q Quota) int {
	if m.status == http.StatusTooManyRequests {
		return 0
	}
	u, ok := m.Counted()
	if !ok {
		return -1
	}
	return q.Cost(u)
}

// event takes one event.
func (m *Meter) event(name string, data []byte) {
	if isLast(name, data) {
		m.whole = true
	}
	u, ok := m.provider.Usage(data)
	if !ok || isNegative(u) {
		return
	}
	m.known = true
	for _, field := range [...]struct {
		got *int
		now int
	}{{&m.got.Input, u.Input}, {&m.got.Output, u.Output}, {&m.got.CacheRead, u.CacheRead}, {&m.got.CacheWrite, u.CacheWrite}} {
		if field.now != 0 {
			*field.got = field.now
		}
	}
}

// isLast reports whether an event ends a stream: no later one has usage. Many clients close the
// body then, and do not read on to its end.
func isLast(name string, data []byte) bool {
	switch name {
	case "message_stop", // Anthropic
		"response.completed", "response.incomplete", "response.failed", // OpenAI, Responses
		"metadata": // Bedrock, ConverseStream
		return true
	}
	return string(data) == "[DONE]" // OpenAI, Chat Completions
}

func isNegative(u Usage) bool {
	return u.Input < 0 || u.Output < 0 || u.CacheRead < 0 || u.CacheWrite < 0
}

// A metered is the body of a response that is also written to a Meter. Its bytes are unchanged.
type metered struct {
	io.ReadCloser

	mu    sync.Mutex // A body may be closed while it is read. [Provider.Usage] runs under it: the lock is this body's alone.
	meter *Meter
	ended bool
}

// Read writes its result to the meter.
func (b *metered) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return n, err
	}
	if n > 0 {
		_, _ = b.meter.Write(p[:n]) // It never fails.
	}
	if err != nil {
		b.endLocked(err == io.EOF)
	}
	return n, err
}

// Close ends the metering.
func (b *metered) Close() error {
	err := b.ReadCloser.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ended {
		b.endLocked(false)
	}
	return err
}

func (b *metered) endLocked(ok bool) {
	b.ended = true
	b.meter.End(ok)
}

// cost returns the actual cost of the call.
func (b *metered) cost(q Quota) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.meter.Cost(q)
}

// maxInflated bounds the decompressed bytes of a body that are parsed. A body of a megabyte may hold a gigabyte, which
// would take seconds of the call that reads it.
const maxInflated = 16 << 20

// An inflater decompresses the bytes that are written to it. A gzip.Reader pulls its input, so it runs as a coroutine,
// which goes on when bytes come and stops when it wants more. No two goroutines run at once.
type inflater struct {
	m     *Meter
	more  func() (struct{}, bool) // nil: no bytes have come, and there is no coroutine: a response without a body need not be closed
	stop  func()
	given []byte // bytes that have come and have not been read
	ended bool   // no bytes will come
	room  int    // bytes that may still be parsed
}

// write decompresses as much as p allows.
func (f *inflater) write(p []byte) {
	f.given = p
	f.resume()
	f.given = nil // The caller's.
}

// resume lets the coroutine go on until it wants more bytes.
func (f *inflater) resume() {
	if f.more == nil {
		f.more, f.stop = iter.Pull(f.run)
	}
	f.more()
}

// end ends the coroutine. ok reports whether the body has ended, so that the compressed data must have ended too.
func (f *inflater) end(ok bool) {
	if ok {
		f.ended = true
		f.resume()
	}
	if f.stop != nil {
		f.stop()
	}
}

// errStopped ends the coroutine when the body was closed. The part before counts.
var errStopped = errors.New("llm: the body was closed")

// errTooLong ends the coroutine when a body is longer than maxInflated.
var errTooLong = errors.New("llm: the body is too long")

// run is the coroutine.
func (f *inflater) run(yield func(struct{}) bool) {
	source := readFunc(func(p []byte) (int, error) {
		for len(f.given) == 0 {
			if f.ended {
				return 0, io.EOF
			}
			if !yield(struct{}{}) {
				return 0, errStopped
			}
		}
		n := copy(p, f.given)
		f.given = f.given[n:]
		return n, nil
	})
	z, err := gzip.NewReader(source)
	if err == nil {
		_, err = io.Copy(writeFunc(f.inflated), z)
	}
	f.m.lost = err != nil && !errors.Is(err, errStopped)
}

// inflated takes the next bytes that were decompressed.
func (f *inflater) inflated(p []byte) error {
	if f.room -= len(p); f.room < 0 {
		return errTooLong
	}
	f.m.events.write(p)
	return nil
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

type writeFunc func([]byte) error

func (f writeFunc) Write(p []byte) (int, error) {
	if err := f(p); err != nil {
		return 0, err
	}
	return len(p), nil
}
