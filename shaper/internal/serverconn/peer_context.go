package serverconn

import (
	"context"
	"sync"
	"time"
)

const (
	// watchEvery is the time between two looks at the connection of a request that
	// waits with an unread body.
	watchEvery = 250 * time.Millisecond

	// brief is the longest wait that counts as none: after such a wait ReadTimeout
	// is not restarted, and the connection is not asked.
	brief = time.Millisecond

	// briefSteps times briefStep takes the place of brief for a limiter of which
	// only the time shows whether the request waits. On a starved machine the
	// goroutine of a request that does not wait may be kept from running for longer
	// than that, but then the timers of the steps are late as well. A single look at
	// the clock would take such a request for one that waits.
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
type peerContext struct {
	context.Context // of the request
	of              *Conn
	byDone          bool // a request waits once its limiter asks for Done

	mu      sync.Mutex
	steps   int8          // if not byDone: how many steps are left until the request has waited
	begun   bool          // beginLocked has run
	stopped bool          // the call has returned
	from    time.Time     // if byDone: from when on the request has waited; zero: it does not wait
	done    chan struct{} // nil: not asked for yet
	err     error         // why done is closed; nil: it is not
	timers  []*time.Timer // all timers, for stop
	next    *time.Timer   // the timer of step and watch
}

// PeerContext returns the context to call a limiter with. Call [Conn.EndWait] when that
// call has returned. The context ends with that of the request, or when the
// client has gone. But what ends because of the client counts only once the request
// has waited.
//
// If onlyWaitersAskDone is true, a request waits from when its limiter asks for the
// Done channel, and has waited a millisecond later. If it is false, every request
// counts as waiting, and has waited, 20 ms after the beginning.
//
// While a request waits, a small body is read ahead if the connection cannot be asked:
// see [Conn.Body].
//
// PeerContext is for one call: a Conn has one such context.
func (c *Conn) PeerContext(onlyWaitersAskDone bool) context.Context {
	ctx := c.request.Context()
	if c.server == nil && c.conn == nil {
		return ctx // The request is not from a server, so no client ends this context.
	}
	p := &c.peer
	p.Context, p.of, p.byDone = ctx, c, onlyWaitersAskDone
	if !onlyWaitersAskDone {
		p.steps = briefSteps
		p.mu.Lock() // step must not run before it can see the timer.
		defer p.mu.Unlock()
		p.next = p.after(briefStep, p.step)
	}
	return p
}

// Done returns a channel that is closed when the context ends.
func (p *peerContext) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		p.done = make(chan struct{})
		if p.byDone {
			p.from = time.Now().Add(brief)
			p.beginLocked()
		}
		context.AfterFunc(p.Context, p.requestEnded)
	}
	return p.done
}

// DoneBeforeLine returns a channel that is closed when ctx ends, for a caller that has
// something else to wait for before it enters a line. If ctx is one of [Conn.PeerContext]
// the request does not count as waiting by that, so an end because of the client does not
// close the channel. A deadline does. Call stop when the
// channel is no longer needed.
func DoneBeforeLine(ctx context.Context) (done <-chan struct{}, stop func()) {
	p, ok := ctx.(*peerContext)
	if !ok {
		return ctx.Done(), func() {}
	}
	ended := make(chan struct{})
	cancel := context.AfterFunc(p.Context, func() {
		if p.Context.Err() != context.Canceled {
			close(ended)
		}
	})
	return ended, func() { cancel() }
}

// Err returns the error of the request's context, or [context.Canceled] if the
// client has gone.
func (p *peerContext) Err() error {
	err := p.Context.Err()
	if err != nil && err != context.Canceled {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	if p.stopped {
		if err != nil {
			p.endLocked(err)
		}
		return err
	}
	if !p.hasWaitedLocked() {
		return nil
	}
	if err == nil && !peerGone(p.of.conn) {
		return nil
	}
	p.endLocked(context.Canceled)
	return p.err
}

// hasWaitedLocked reports whether the request has waited, so that its client may be
// found gone.
func (p *peerContext) hasWaitedLocked() bool {
	if p.byDone {
		return !p.from.IsZero() && !time.Now().Before(p.from)
	}
	return p.steps == 0
}

// step counts down to the moment at which the request has waited.
func (p *peerContext) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	if p.steps--; p.steps > 0 {
		p.next.Reset(briefStep)
		return
	}
	if err := p.Context.Err(); err != nil {
		p.endLocked(err)
		return
	}
	p.beginLocked()
}

// beginLocked begins to watch the connection, or to read the body ahead, of a request
// that waits.
func (p *peerContext) beginLocked() {
	if p.begun || p.stopped {
		return
	}
	p.begun = true
	// Once the body has been read, net/http watches the connection, until a byte of
	// the next request comes (golang/go#37145). So Err asks the connection in any case.
	switch {
	case p.of.canAsk():
		if p.of.unread() {
			p.next = p.after(watchEvery, p.watch)
		}
	case p.of.fetchable():
		p.of.body = p.of.readAhead()
	}
}

// after is [time.AfterFunc], but stop stops the timer.
func (p *peerContext) after(d time.Duration, f func()) *time.Timer {
	t := time.AfterFunc(d, f)
	p.timers = append(p.timers, t)
	return t
}

// watch ends the context if the client has gone; if not, it looks again later.
func (p *peerContext) watch() {
	if p.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		p.next.Reset(watchEvery)
	}
}

// requestEnded is called when the context of the request has ended.
func (p *peerContext) requestEnded() {
	err := p.Context.Err()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == context.Canceled && !p.stopped && !p.hasWaitedLocked() {
		if p.byDone {
			p.after(time.Until(p.from), p.requestEnded)
		}
		return // If not byDone, the last step finds that the context has ended.
	}
	p.endLocked(err)
}

func (p *peerContext) endLocked(err error) {
	if p.err != nil {
		return
	}
	p.err = err
	if p.done == nil {
		p.done = make(chan struct{})
	}
	close(p.done)
}

// EndWait ends the watching. From now on the context of [Conn.PeerContext] is ended as soon
// as that of the request is, whether the request has waited or not: some limiters keep the
// context of a call until then. Calling it again does nothing.
func (c *Conn) EndWait() {
	p := &c.peer
	if p.of == nil || p.stopped {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	for _, t := range p.timers {
		t.Stop()
	}
	if err := p.Context.Err(); err != nil {
		p.endLocked(err)
	}
}

// WaitErr returns the error of the context of [Conn.PeerContext].
func (c *Conn) WaitErr() error {
	if c.peer.of == nil {
		return c.request.Context().Err()
	}
	return c.peer.Err()
}
