package shaper

import (
	"context"
	"net"
	"sync"
	"time"
)

// watchEvery is how often the connection of a request that waits with an unread
// body is asked whether its client is still there.
const watchEvery = 250 * time.Millisecond

// attended is the context of a request whose connection can be asked. Its Err
// asks it, so that any Limiter that looks at the context after the wait, as a
// Shaper does, spends no slot on a client who has gone.
type attended struct {
	context.Context
	conn   net.Conn
	from   time.Time          // since when asking is worth it
	cancel context.CancelFunc // nil: nobody watches

	mu    sync.Mutex
	gone  bool
	timer *time.Timer // nil: nobody watches, or no longer
}

// attend returns the context with which a request waits. While its body is
// unread the connection is watched until the stop that is returned is called.
// Otherwise net/http watches it, but stops when a byte of a next request has
// come (golang/go#37145), so it is asked when the slot comes.
func attend(ctx context.Context, conn net.Conn, unread bool) (c *attended, stop func()) {
	if !unread {
		// That the client was there a moment ago is known.
		return &attended{Context: ctx, conn: conn, from: time.Now().Add(brief)}, func() {}
	}
	c = &attended{conn: conn}
	c.Context, c.cancel = context.WithCancel(ctx)
	c.mu.Lock() // watch must not run before it can see the timer.
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(watchEvery, c.watch)
	return c, c.stop
}

// Err returns the error of the context, or context.Canceled if the client has
// gone.
func (c *attended) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	if time.Now().Before(c.from) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone && peerGone(c.conn) {
		c.gone = true
		if c.cancel != nil {
			c.cancel()
		}
	}
	if c.gone {
		return context.Canceled
	}
	return nil
}

// watch ends the context when the client has gone, and else looks again later.
func (c *attended) watch() {
	if c.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Reset(watchEvery)
	}
}

// stop ends the watching, not the asking.
func (c *attended) stop() {
	c.mu.Lock()
	c.timer.Stop()
	c.timer = nil
	c.mu.Unlock()
	c.cancel()
}
