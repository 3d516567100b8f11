package proxies

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"time"
)

// callers are open connections that are closed when a context ends.
type callers struct {
	all  []caller
	stop func() bool
}

// openCallers opens n connections to address. They must be closed.
func openCallers(ctx context.Context, address string, n int) (*callers, error) {
	c := &callers{}
	var dialer net.Dialer
	for range n {
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			c.hangUp()
			return nil, fmt.Errorf("connection %d of %d: %w", len(c.all)+1, n, err)
		}
		c.all = append(c.all, caller{conn: conn, r: bufio.NewReaderSize(conn, 1024)})
	}
	c.stop = context.AfterFunc(ctx, c.hangUp)
	return c, nil
}

func (c *callers) close() {
	c.stop()
	c.hangUp()
}

func (c *callers) hangUp() {
	for _, one := range c.all {
		// Nothing is sent any more, so that there is nothing to lose.
		_ = one.conn.Close()
	}
}

// waiters are callers each of which waits for a response to one request. Their numbers
// are those of the requests, in the order of sending, from 1.
type waiters struct {
	*callers
	began     time.Time
	responses chan response // It has room for all, so that none blocks.
}

// A response is what a caller has received.
type response struct {
	number, status int
	err            error
}

// settling is how long connections are open before something is sent, so that
// the proxy has accepted them all.
const settling = 100 * time.Millisecond

// gather opens n connections and sends a request on each, with some time between them.
// The waiters must be closed.
func gather(ctx context.Context, address string, n int, every time.Duration) (*waiters, error) {
	callers, err := openCallers(ctx, address, n)
	if err != nil {
		return nil, err
	}
	w := &waiters{callers: callers, responses: make(chan response, n)}
	for i, one := range callers.all {
		go func() {
			status, err := one.receive()
			w.responses <- response{i + 1, status, err}
		}()
	}
	pause(settling)
	if err := w.send(every); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// send sends one request after another, from one thread, as Go's own timers
// would send three at a time.
func (w *waiters) send(every time.Duration) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w.began = time.Now()
	for i, one := range w.all {
		pause(time.Until(w.began.Add(time.Duration(i) * every)))
		if err := one.send(fmt.Sprintf("/%d", i+1)); err != nil {
			return err
		}
	}
	return nil
}

// answered returns when each request that is not excepted has been answered, with success.
func (w *waiters) answered(ctx context.Context, except func(number int) bool) error {
	for range w.all {
		switch r := <-w.responses; {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case except(r.number):
		case r.err != nil:
			return fmt.Errorf("response %d: %w", r.number, r.err)
		case r.status != http.StatusOK:
			return fmt.Errorf("response %d has status %d", r.number, r.status)
		}
	}
	return nil
}

// patience bounds how long so many requests at a rate may take.
func patience(ctx context.Context, n, rate int) (context.Context, context.CancelFunc) {
	limit := time.Duration(n)*time.Second/time.Duration(rate) + time.Minute
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w within %v", errUnanswered, limit))
}

// errUnanswered is for a proxy that leaves requests in line for good.
var errUnanswered = errors.New("not all requests were answered")
