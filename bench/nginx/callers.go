package nginx

import (
	"bufio"
	"context"
	"fmt"
	"net"
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
