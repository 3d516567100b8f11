package llm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
)

// A Meter finds the usage of a call in its response. [NewMeter] makes one. Write the bytes of the body to it as they are,
// compressed or not, and then call End. [Transport] has Meters of its own; others are for programs that pass
// responses on. A Meter is for one goroutine at a time.
type Meter struct {
	provider     Provider
	status       int
	countsItself bool // the response has rate-limit headers

	events   splitter  // nil: no usage can be found in the body
	inflate  *inflater // nil: the body is not compressed
	isStream bool      // the body has, or may have, several events

	asked *Usage // what the call has reserved; nil: unknown

	got         Usage
	known       bool // got has been reported
	inHeader    bool // before the body
	outputKnown bool
	whole       bool // the last event, or the end of the body, has come
	lost        bool // a part could not be read

	seen      *textCounter // nil: no event has come
	complaint *complaint   // the first error that the body has
	model     []byte       // an event that another one wraps
}

// NewMeter returns a Meter for a response with a status and a header.
func NewMeter(p Provider, status int, h http.Header) *Meter {
	m := &Meter{provider: p, status: status, countsItself: p.Left != nil && len(p.Left(h)) > 0}
	if p.Usage == nil || status < 200 || status > 299 {
		return m
	}
	if m.got, m.inHeader = usageInHeader(h); m.inHeader {
		m.known, m.outputKnown = true, true
	}
	switch coding := codingOf(h); {
	case slices.Contains(codings, coding):
		m.inflate = &inflater{m: m, coding: coding, room: maxInflated}
	case coding != "":
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

// Asked says what the call has reserved, as [Provider].Estimate has it, before its Usage is asked for. If that is nothing, the
// request makes no model run: it reads, lists or cancels, and what its response reports is the usage of another call. Of a call
// that has failed, the input stands where the provider counts it.
func (m *Meter) Asked(estimate Usage) { m.asked = &estimate }

// charge returns what stays of what the call has reserved.
func (m *Meter) charge() charge {
	switch by := chargeOf(m.status); {
	case by != chargeUsage:
		return by
	case m.asked != nil && *m.asked == Usage{}:
		return chargeRequest
	case m.complaint != nil && m.textSeen() == 0 && (m.complaint.isLimit() || !m.known):
		return chargeNothing
	}
	return chargeUsage
}

// ranNothing reports whether no model has run.
func (m *Meter) ranNothing() bool { return m.charge() != chargeUsage }

// isFree reports whether the call costs nothing: the provider has refused it, or has responded with an error and the status 200.
func (m *Meter) isFree() bool { return m.charge() == chargeNothing }

// Refused reports whether the provider has refused the call by its limits in a response whose status is not that of a refusal:
// in an event of its stream, for example. hold is for how long the refusal asks; 0: it does not say, or that does not help.
// For other refusals see [Provider].HoldFor.
func (m *Meter) Refused() (hold time.Duration, ok bool) {
	if m.complaint == nil || !m.complaint.isLimit() {
		return 0, false
	}
	return m.complaint.asks(), true
}

// Seen returns the bytes of text that the stream of an answer has had so far, in UTF-8, and the usage that it has reported so
// far: Anthropic reports the input at the start. ok is false if it has reported none. Of an answer that is no stream the text is
// not counted.
func (m *Meter) Seen() (text int, u Usage, ok bool) { return m.textSeen(), m.got, m.known }

func (m *Meter) textSeen() int {
	if m.seen == nil {
		return 0
	}
	return m.seen.bytes
}

// Usage returns the usage that the response reports, if all of it has come. Every call has input: where it is 0, its event is
// missing. An output of 0 is true if it has been reported: a filter has blocked the prompt or the answer.
func (m *Meter) Usage() (u Usage, ok bool) {
	switch m.charge() {
	case chargeNothing, chargeRequest:
		return Usage{}, true
	case chargeInput:
		if m.asked == nil {
			return Usage{}, false
		}
		if !m.countsFailed() {
			return Usage{}, true
		}
		return Usage{Input: m.asked.Input, CacheRead: m.asked.CacheRead, CacheWrite: m.asked.CacheWrite}, true
	}
	input := sum(m.got.Input, m.got.CacheRead, m.got.CacheWrite)
	if !m.known || !m.inHeader && (!m.whole || m.lost) || input == 0 || m.isStream && m.got.Output == 0 && !m.outputKnown {
		return Usage{}, false
	}
	return m.got, true
}

// countsFailed reports whether the provider may count the input of a call for which no model ran. Gemini does
// (google-gemini/gemini-cli#15184, 2026), and OpenAI says that "unsuccessful requests contribute to your per-minute limit"
// (platform.openai.com/docs/guides/rate-limits, as quoted in 2026-11). Bedrock counts what was used when a call has ended, and a
// compatible server has no limits of its own.
func (m *Meter) countsFailed() bool {
	switch m.provider.Counts {
	case Returned:
		return false
	case AtStart:
		return m.countsItself
	}
	return true
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
// provider has refused costs nothing.
func (m *Meter) Cost(q Quota) int {
	if m.isFree() {
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
	if _, isAmazon := m.events.(*amazonEvents); isAmazon {
		data, m.model = unwrapped(data, m.model)
	}
	if isLast(name, data) {
		m.whole = true
	}
	array, _ := m.events.(*jsonValues)
	if m.isStream || array != nil && array.inArray {
		if m.seen == nil {
			m.seen = newTextCounter()
		}
		m.seen.event(data)
	}
	if m.complaint == nil && (isError(name) || bytes.Contains(data, []byte(`"error"`))) {
		if m.complaint = complaintIn(data, isError(name)); m.complaint != nil && m.complaint.Type == "" {
			m.complaint.Type = word(name) // Of Bedrock's events, where the data has only the message.
		}
	}
	u, ok := m.provider.Usage(data)
	if !ok && strings.HasPrefix(name, "message_") && bytes.HasPrefix(data, []byte("{")) {
		// Libraries go by the field event, and some servers leave the type out of the data.
		u, ok = m.provider.Usage(fmt.Appendf(nil, `{"type":%q,%s`, name, data[1:]))
	}
	if !ok || isNegative(u) {
		return
	}
	m.known = true
	m.outputKnown = m.outputKnown || name != "message_start" && !bytes.Contains(data, []byte(`"message_start"`))
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

// isError reports whether the name of an event says that it is an error: error of Anthropic and OpenAI, or an exception of Bedrock,
// such as throttlingException.
func isError(name string) bool { return name == "error" || strings.HasSuffix(name, "xception") }

func isNegative(u Usage) bool {
	return u.Input < 0 || u.Output < 0 || u.CacheRead < 0 || u.CacheWrite < 0
}

// A metered is the body of a response that is also written to a Meter. Its bytes are unchanged.
type metered struct {
	io.ReadCloser

	mu    sync.Mutex // A body may be closed while it is read. [Provider.Usage] runs under it: the lock is this body's alone.
	meter *Meter
	call  *Call          // nil: it is only metered
	line  *shaper.Shaper // that the call has left
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
		if b.call != nil {
			b.call.Charge(b.line)
		}
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
		if b.call != nil {
			b.call.Abandon()
		}
		b.endLocked(false)
	}
	return err
}

func (b *metered) endLocked(ok bool) {
	b.ended = true
	b.meter.End(ok)
	if b.call == nil {
		return
	}
	b.call.Learn()
	if asked, refused := b.meter.Refused(); refused {
		if hold := Bearable(b.line, asked); hold > 0 {
			b.line.Hold(min(hold, max(usualMaxHold, b.line.Limits().MaxWait)))
		}
	}
}

// actual returns what the call settles with.
func (b *metered) actual() []int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.call.Actual(b.line)
}

// maxInflated bounds the decompressed bytes of a body that are parsed. A body of a megabyte may hold a gigabyte, which
// would take seconds of the call that reads it.
const maxInflated = 16 << 20

// An inflater decompresses the bytes that are written to it. A reader of compressed bytes pulls its input, so it runs as a coroutine,
// which goes on when bytes come and stops when it wants more. No two goroutines run at once.
type inflater struct {
	m      *Meter
	coding string
	more   func() (struct{}, bool) // nil: no bytes have come, and there is no coroutine: a response without a body need not be closed
	stop   func()
	given  []byte // bytes that have come and have not been read
	ended  bool   // no bytes will come
	room   int    // bytes that may still be parsed
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
	z, err := unpacked(source, f.coding)
	if err == nil {
		_, err = io.Copy(writeFunc(f.inflated), z)
		_ = z.Close() // What it says is known.
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
