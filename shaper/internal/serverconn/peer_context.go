package serverconn

import (
	"context"
	"sync"
	"time"
)

const (
	// watchEvery is the least time between two looks at the connection of a request that
	// waits with an unread body.
	watchEvery = 250 * time.Millisecond

	// brief is the longest wait that counts as none: after such a wait ReadTimeout
	// is not restarted, and the connection is not asked.
	brief = time.Millisecond

	// briefSteps times briefStep takes the place of brief for a limiter where only
	// the time shows whether the request waits. On a starved machine the goroutine
	// of a request that does not wait may be kept from running for longer than that,
	// but then the timers of the steps are late as well. A single look at the clock
	// would take such a request for one that waits.
	briefSteps = 4
	briefStep  = 5 * time.Millisecond
)

// A peerContext is the context of a request that may have to wait. It ends with the
// request's own context, or when the connection shows that the client has gone. But
// neither counts before the request has waited: net/http cancels a request as soon
// as its client closes the sending half of the connection, and many clients do so
// right after the request and still read the response.
//
// A deadline says nothing about the client, so it counts at once when it passes.
//
// Err asks the connection. So a limiter that looks at the context after the wait, as
// a Shaper does, spends no slot on a client that has gone.
//
// It is the Conn of the request, seen as a context.
type peerContext Conn

// A wait is the state that a Conn keeps of the wait of its request.
type wait struct {
	mu      sync.Mutex
	called  bool          // PeerContext has been called
	byDone  bool          // a request waits once its limiter asks for Done
	begun   bool          // beginLocked has run
	stopped bool          // the call has returned
	ended   bool          // the context has ended
	watched bool          // the watcher has been told of the Conn
	steps   int8          // if not byDone: how many steps are left until the request has waited
	from    time.Duration // if byDone and begun: from when on the request has waited, on the clock of sinceStart
	done    chan struct{} // nil: not asked for yet
	timer   *time.Timer   // of step, or of requestEnded; nil: there is none

	// news is the channel on which the goroutine of a Waiting waits; nil: there is none.
	news chan<- struct{}

	watcher    *Watcher
	prev, next *Conn         // in the list of the watcher, which guards these three
	lookAt     time.Duration // when the connection is looked at next; 0: the Conn is not in the list
}

// start is where the clock of sinceStart begins. An instant of it takes 8 bytes, and a
// [time.Time] 24.
var start = time.Now()

func sinceStart() time.Duration { return time.Since(start) }

// PeerContext returns the context to call a limiter with. Call [Conn.EndWait] when that
// call has returned. The context ends with the request's context, or when the
// client has gone. But an end because of the client counts only once the request has
// waited.
//
// If onlyWaitersAskDone is true, a request waits from when its limiter asks for the
// Done channel or calls [BeginWait], and has waited a millisecond later. If it is false,
// every request counts as waiting, and has waited, 20 ms after the beginning.
//
// While a request waits, w looks at the connection if net/http does not. If the connection
// cannot be asked, a small body is read ahead: see [Conn.Body].
//
// PeerContext is for one call: a Conn has one such context.
func (c *Conn) PeerContext(onlyWaitersAskDone bool, w *Watcher) context.Context {
	if c.server == nil && c.conn == nil {
		return c.request.Context() // The request is not from a server, so no client ends this context.
	}
	p := (*peerContext)(c)
	p.wait.called, p.wait.byDone, p.wait.watcher = true, onlyWaitersAskDone, w
	if !onlyWaitersAskDone {
		p.wait.steps = briefSteps
		p.wait.mu.Lock() // step must not run before it can see the timer.
		defer p.wait.mu.Unlock()
		p.wait.timer = time.AfterFunc(briefStep, p.step)
	}
	return p
}

// Deadline returns the deadline of the request's context.
func (p *peerContext) Deadline() (deadline time.Time, ok bool) { return p.request.Context().Deadline() }

// Value returns a value of the request's context.
func (p *peerContext) Value(key any) any { return p.request.Context().Value(key) }

// Done returns a channel that is closed when the context ends.
func (p *peerContext) Done() <-chan struct{} {
	p.wait.mu.Lock()
	defer p.wait.mu.Unlock()
	if p.wait.done != nil {
		return p.wait.done
	}
	p.wait.done = make(chan struct{})
	if p.wait.ended {
		close(p.wait.done)
		return p.wait.done
	}
	if p.wait.byDone {
		p.beginLocked()
	}
	context.AfterFunc(p.request.Context(), p.requestEnded)
	return p.wait.done
}

// DoneBeforeLine returns a channel that is closed when ctx ends, for a caller that has
// something else to wait for before it enters a line. If ctx is one of [Conn.PeerContext]
// the request does not count as waiting through this call, so an end because of the
// client does not close the channel. A deadline does. Call stop when the channel is no
// longer needed.
func DoneBeforeLine(ctx context.Context) (done <-chan struct{}, stop func()) {
	p, ok := ctx.(*peerContext)
	if !ok {
		return ctx.Done(), func() {}
	}
	request := p.request.Context()
	ended := make(chan struct{})
	cancel := context.AfterFunc(request, func() {
		if request.Err() != context.Canceled {
			close(ended)
		}
	})
	return ended, func() { cancel() }
}

// Err returns the error of the request's context, or [context.Canceled] if the
// client has gone.
func (p *peerContext) Err() error {
	err := p.request.Context().Err()
	if err != nil && err != context.Canceled {
		return err
	}
	p.wait.mu.Lock()
	defer p.wait.mu.Unlock()
	switch {
	case p.wait.ended:
		return context.Canceled
	case p.wait.stopped:
		if err != nil {
			p.endLocked()
		}
		return err
	case !p.hasWaitedLocked(), err == nil && !peerGone(p.conn):
		return nil
	}
	p.endLocked()
	return context.Canceled
}

// hasWaitedLocked reports whether the request has waited, so that its client may be
// found gone.
func (p *peerContext) hasWaitedLocked() bool {
	if p.wait.byDone {
		return p.wait.begun && sinceStart() >= p.wait.from
	}
	return p.wait.steps == 0
}

// step counts down to the moment at which the request has waited.
func (p *peerContext) step() {
	p.wait.mu.Lock()
	defer p.wait.mu.Unlock()
	if p.wait.stopped {
		return
	}
	if p.wait.steps--; p.wait.steps > 0 {
		p.wait.timer.Reset(briefStep)
		return
	}
	if p.request.Context().Err() != nil {
		p.endLocked()
		return
	}
	p.beginLocked()
}

// beginLocked begins to watch the connection, or to read the body ahead, of a request
// that waits.
func (p *peerContext) beginLocked() {
	if p.wait.begun || p.wait.stopped {
		return
	}
	p.wait.begun, p.wait.from = true, sinceStart()+brief
	c := (*Conn)(p)
	// Once the body has been read, net/http watches the connection, until a byte of
	// the next request comes (golang/go#37145). So Err asks the connection in any case.
	switch {
	case c.canAsk():
		if c.unread() {
			p.wait.watched = true
			p.wait.watcher.add(c)
		}
	case c.fetchable():
		c.body = c.readAhead()
	}
}

// requestEnded is called when the context of the request has ended.
func (p *peerContext) requestEnded() {
	p.wait.mu.Lock()
	defer p.wait.mu.Unlock()
	// Once the call has returned, handlers may give the request another context meanwhile.
	if !p.wait.stopped && p.request.Context().Err() == context.Canceled && !p.hasWaitedLocked() {
		if p.wait.byDone {
			p.wait.timer = time.AfterFunc(p.wait.from-sinceStart(), p.requestEnded)
		}
		return // If not byDone, the last step finds that the context has ended.
	}
	p.endLocked()
}

// endLocked ends the context. Its error is the error of the request's context, or
// [context.Canceled] if that has not ended.
func (p *peerContext) endLocked() {
	if p.wait.ended {
		return
	}
	p.wait.ended = true
	if p.wait.done != nil {
		close(p.wait.done)
	}
	if p.wait.news != nil {
		select {
		case p.wait.news <- struct{}{}:
		default: // The goroutine is about to wake already.
		}
	}
}

// EndWait ends the watching. From now on the context of [Conn.PeerContext] is ended as soon
// as the request's context is, whether the request has waited or not: some limiters keep the
// context of a call until then. Calling it again does nothing.
func (c *Conn) EndWait() {
	w := &c.wait
	if !w.called || w.stopped {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
	if w.watched {
		w.watcher.remove(c)
	}
	if c.request.Context().Err() != nil {
		(*peerContext)(c).endLocked()
	}
}

// WaitErr returns the error of the context of [Conn.PeerContext].
func (c *Conn) WaitErr() error {
	if !c.wait.called {
		return c.request.Context().Err()
	}
	return (*peerContext)(c).Err()
}
