package serverconn

import (
	"bufio"
	"context"
	"io"
	"reflect"
	"sync"
	"time"
)

// A Watcher looks at connections that net/http does not watch: connections of requests that wait
// with an unread body. One goroutine looks at all of them, one after the other, so that it takes
// one processor at most: each look takes 11 to 22 µs, and with more than some 10,000 connections
// it comes to each of them less often than watchEvery says. It looks only while there are such
// requests. (A timer for each took 170 bytes, and when many came at the same time there was a
// goroutine for each as well.)
//
// The zero Watcher is ready for use.
type Watcher struct {
	mu sync.Mutex
	// The list is in the order of lookAt: each connection is looked at after the same time.
	head, tail *Conn
	// timer runs look. It is nil if the list is empty, and then a new one is made: in a
	// synctest bubble, one that was made outside can't be used.
	timer   *time.Timer
	looking bool // look runs
}

// add puts a connection into the list.
func (w *Watcher) add(c *Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pushLocked(c)
	if w.timer == nil && !w.looking {
		w.armLocked(watchEvery)
	}
}

// remove takes a connection out of the list, if it is there.
func (w *Watcher) remove(c *Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.wait.lookAt == 0 {
		return
	}
	w.unlinkLocked(c)
	w.restLocked()
}

// look looks at all connections whose time has come.
func (w *Watcher) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.looking {
		return // The timer was stopped too late.
	}
	w.looking = true
	for c := w.head; c != nil; c = w.head {
		if d := c.wait.lookAt - sinceStart(); d > 0 {
			w.armLocked(d)
			break
		}
		w.unlinkLocked(c)
		w.pushLocked(c)
		w.mu.Unlock()
		gone := (*peerContext)(c).Err() != nil
		w.mu.Lock()
		if gone && c.wait.lookAt != 0 {
			w.unlinkLocked(c)
		}
	}
	w.looking = false
	w.restLocked()
}

// restLocked stops the timer if the list is empty.
func (w *Watcher) restLocked() {
	if w.head == nil && w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// armLocked sets the timer.
func (w *Watcher) armLocked(d time.Duration) {
	if w.timer == nil {
		w.timer = time.AfterFunc(d, w.look)
		return
	}
	w.timer.Reset(d)
}

// pushLocked puts a connection that is not in the list at its end.
func (w *Watcher) pushLocked(c *Conn) {
	c.wait.lookAt = sinceStart() + watchEvery
	if c.wait.prev = w.tail; w.tail == nil {
		w.head = c
	} else {
		w.tail.wait.next = c
	}
	w.tail = c
}

// unlinkLocked takes a connection out of the list.
func (w *Watcher) unlinkLocked(c *Conn) {
	prev, next := c.wait.prev, c.wait.next
	if prev == nil {
		w.head = next
	} else {
		prev.wait.next = next
	}
	if next == nil {
		w.tail = prev
	} else {
		next.wait.prev = prev
	}
	c.wait.prev, c.wait.next, c.wait.lookAt = nil, nil, 0
}

// hasCome reports whether all that is left of a body is in net/http's buffer, so that no read
// of it waits. To find that out from the body alone would take a read, which could block. So
// hasCome looks at unexported fields; if a Go release renames them, no body has come.
//
// A small body mostly comes together with the header. To set a deadline for reading it would
// make its refusal take half as long again. No other goroutine may read the body meanwhile.
func hasCome(body io.Reader) bool {
	if !buffered.known || kindOf(body) != plainBody {
		return false
	}
	source := reflect.ValueOf(body).Elem().Field(buffered.source).Elem()
	if source.Type() != limitedReaderType {
		return false // It is chunked.
	}
	from := source.Elem().Field(buffered.from).Elem()
	if from.Type() != bufioReaderType {
		return false
	}
	from = from.Elem()
	come := from.Field(buffered.end).Int() - from.Field(buffered.begin).Int()
	return source.Elem().Field(buffered.left).Int() <= come
}

var (
	limitedReaderType = reflect.TypeFor[*io.LimitedReader]()
	bufioReaderType   = reflect.TypeFor[*bufio.Reader]()
	buffered          = findFields(plainType)
)

// fields are the indexes of the fields by which hasCome finds how much is in the buffer.
type fields struct {
	source     int // of a body
	from, left int // of an io.LimitedReader: what it reads from, and how many bytes
	begin, end int // of a bufio.Reader: where in its buffer what is to be read is
	known      bool
}

// findFields returns the fields of a body of that type, and those beneath it.
func findFields(body reflect.Type) (f fields) {
	f.known = body != nil
	find := func(of reflect.Type, name string, kind reflect.Kind) int {
		if !f.known || of.Kind() != reflect.Pointer || of.Elem().Kind() != reflect.Struct {
			f.known = false
			return 0
		}
		field, ok := of.Elem().FieldByName(name)
		if !ok || field.Type.Kind() != kind || len(field.Index) != 1 {
			f.known = false
			return 0
		}
		return field.Index[0]
	}
	f.source = find(body, "src", reflect.Interface)
	f.from, f.left = find(limitedReaderType, "R", reflect.Interface), find(limitedReaderType, "N", reflect.Int64)
	f.begin, f.end = find(bufioReaderType, "r", reflect.Int), find(bufioReaderType, "w", reflect.Int)
	return f
}

// A Waiting is a request with a context of [Conn.PeerContext] that waits in a line.
// [BeginWait] makes one.
type Waiting peerContext

// BeginWait begins a wait in a line, for news or for the end of ctx, whichever comes first.
// If ctx is one of [Conn.PeerContext], it returns a Waiting, and the caller must then call
// [Waiting.Await] with news and with done, which is the Done channel of the request's own
// context. Otherwise w is nil, and done is ctx.Done().
//
// A channel of ctx's own, closed when the context of the request ends, would take 500 bytes
// more for each request that waits.
//
// There must be room for one value in news, and no goroutine may wait for room in it.
func BeginWait(ctx context.Context, news chan<- struct{}) (w *Waiting, done <-chan struct{}) {
	p, ok := ctx.(*peerContext)
	if !ok || !p.wait.byDone {
		return nil, ctx.Done()
	}
	done = p.request.Context().Done()
	if !p.beginFor(news) {
		return nil, p.Done()
	}
	return (*Waiting)(p), done
}

// beginFor begins a wait for news, and reports whether the context is free for it. It is not if it
// has ended, or if a hook of the caller's waits with it in another goroutine.
func (p *peerContext) beginFor(news chan<- struct{}) bool {
	p.wait.mu.Lock()
	defer p.wait.mu.Unlock()
	if p.wait.news != nil || p.wait.stopped || p.wait.ended {
		return false
	}
	p.beginLocked()
	p.wait.news = news
	return true
}

// Await waits until there is news or the context has ended, and reports whether there is news
// and the context has not ended. A client that is found to be gone wakes it by a value in news.
// So if the context has ended, a value may be left there.
func (w *Waiting) Await(news, done <-chan struct{}) bool {
	came := true
	select {
	case <-news:
	case <-done:
		came = w.awaitBrief(news)
	}
	// After this nothing is sent any more. So if the context has not ended, the only value
	// in news was the one that came, and the channel may be used for another wait.
	w.wait.mu.Lock()
	defer w.wait.mu.Unlock()
	w.wait.news = nil
	return came && !w.wait.ended
}

// awaitBrief waits on for a request whose context has ended, until that counts. It reports
// whether there is news before.
//
// It is not inlined, so that Await needs no stack for it.
//
//go:noinline
func (w *Waiting) awaitBrief(news <-chan struct{}) bool {
	if w.request.Context().Err() != context.Canceled {
		return false
	}
	timer := time.NewTimer(w.wait.from - sinceStart())
	defer timer.Stop()
	select {
	case <-news:
		return true
	case <-timer.C:
		return false
	}
}
