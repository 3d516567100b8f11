package shaper

import (
	"context"
	"sync"
	"time"
)

const (
	// watchEvery is how often the connection of a request that waits with an
	// unread body is asked whether its client is still there.
	watchEvery = 250 * time.Millisecond

	// brief is the longest wait that counts as none: after it the server's
	// timeouts are not restarted, and the client is not asked for.
	brief = time.Millisecond

	// briefSteps steps of briefStep take its place for a Limiter of which only the
	// time tells whether the request waits. In a starved process the request's
	// goroutine may not run for longer than that. But then the goroutine of each
	// step comes late too, which one look at the clock would not notice.
	briefSteps = 4
	briefStep  = 5 * time.Millisecond
)

// A peerContext is the context with which a request of an HTTP server waits. It
// ends when that of the request does and when the connection says that the
// client has gone, but neither before the request has waited: net/http cancels a
// request as soon as its client closes the sending half of the connection, and
// many clients do that right after the request.
//
// The end of a deadline is no sign of the client, and counts at once.
//
// Err asks the connection. So every Limiter that looks at the context after the
// wait, as a Shaper does, spends no slot on a client that has gone.
type peerContext struct {
	context.Context // of the request
	of              *connection
	tells           bool // the Limiter asks for Done only when the request waits

	mu      sync.Mutex
	from    time.Time     // from when on the request counts as waiting, if it tells; zero: not yet
	steps   int           // to go until it counts as waiting, if it does not tell
	done    chan struct{} // nil: not asked for
	err     error         // why done is closed
	waits   bool          // what a wait needs has begun
	stopped bool          // the call is over
	timers  []*time.Timer
	ticks   *time.Timer // of step and watch
}

// attend returns the context with which the request waits, and the function to
// call when the call of the Limiter is over. tells reports whether the Limiter
// asks for the Done channel of a context only if the request waits; of others
// the time tells.
func (c *connection) attend(tells bool) (ctx context.Context, stop func()) {
	ctx = c.request.Context()
	if c.server == nil && c.conn == nil {
		return ctx, func() {} // Whatever ends the context, it is not the client.
	}
	p := &peerContext{Context: ctx, of: c, tells: tells}
	if !tells {
		p.steps = briefSteps
		p.mu.Lock() // step must not run before it can see the timer.
		defer p.mu.Unlock()
		p.ticks = p.after(briefStep, p.step)
	}
	return p, p.stop
}

// Done returns a channel that is closed when the context ends.
func (p *peerContext) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		p.done = make(chan struct{})
		if p.tells {
			p.from = time.Now().Add(brief)
			p.beginLocked()
		}
		context.AfterFunc(p.Context, p.requestEnded)
	}
	return p.done
}

// Err returns the error of the request's context, or context.Canceled if the
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
	if !p.hasWaitedLocked() {
		return nil
	}
	if err == nil && !peerGone(p.of.conn) {
		return nil
	}
	p.endLocked(context.Canceled)
	return p.err
}

// hasWaitedLocked reports whether the request has waited long enough to be found gone.
func (p *peerContext) hasWaitedLocked() bool {
	if p.tells {
		return !p.from.IsZero() && !time.Now().Before(p.from)
	}
	return p.steps == 0
}

// step comes nearer to the moment at which the request counts as waiting.
func (p *peerContext) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	if p.steps--; p.steps > 0 {
		p.ticks.Reset(briefStep)
		return
	}
	if err := p.Context.Err(); err != nil {
		p.endLocked(err)
		return
	}
	p.beginLocked()
}

// beginLocked does what is to be done while a request waits.
func (p *peerContext) beginLocked() {
	if p.waits || p.stopped {
		return
	}
	p.waits = true
	// Without an unread body net/http watches the connection, but it stops when
	// a byte of a next request has come (golang/go#37145). So Err asks anyway.
	switch {
	case p.of.canAsk():
		if p.of.unread() {
			p.ticks = p.after(watchEvery, p.watch)
		}
	case p.of.fetchable():
		p.of.ahead = p.of.readAhead()
	}
}

// after is time.AfterFunc until the call is over.
func (p *peerContext) after(d time.Duration, f func()) *time.Timer {
	t := time.AfterFunc(d, f)
	p.timers = append(p.timers, t)
	return t
}

// watch ends the context if the client has gone, and else looks again later.
func (p *peerContext) watch() {
	if p.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		p.ticks.Reset(watchEvery)
	}
}

// requestEnded is called when the context of the request has ended.
func (p *peerContext) requestEnded() {
	err := p.Context.Err()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == context.Canceled && !p.stopped && !p.hasWaitedLocked() {
		if p.tells {
			p.after(time.Until(p.from), p.requestEnded)
		}
		return // Else the last step sees it.
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

// stop ends the watching. The context goes on and ends with that of the request,
// as some Limiters keep it.
func (p *peerContext) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	for _, t := range p.timers {
		t.Stop()
	}
}
