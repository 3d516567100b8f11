package caddyshaper

import (
	"context"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// timeouts are those of Caddy that run from the beginning of a request. Package shaper
// restarts the deadlines of net/http after the wait; these are Caddy's own, and would go on
// while a request waits in line.
type timeouts struct {
	reader *caddyhttp.IdleTimeoutReader
	writer *caddyhttp.IdleTimeoutWriter
	from   time.Time

	readBy, writeBy time.Time // the deadlines that were removed; zero: there was none
}

// holdTimeouts removes the deadlines of a request that may wait. Nothing else uses them: the
// handlers behind the line do not run yet.
func holdTimeouts(ctx context.Context) timeouts {
	t := timeouts{from: time.Now()}
	t.reader, t.writer = caddyhttp.IdleTimeoutsFromContext(ctx)
	if t.reader != nil {
		t.readBy = hold(&t.reader.Deadline)
	}
	if t.writer != nil {
		t.writeBy = hold(&t.writer.Deadline)
	}
	return t
}

func hold(d *caddyhttp.IdleDeadline) (was time.Time) {
	was, d.HardDeadline = d.HardDeadline, time.Time{}
	return was
}

// resume puts the deadlines back, later by the time of the wait.
func (t *timeouts) resume() {
	waited := time.Since(t.from)
	if t.reader != nil {
		release(&t.reader.Deadline, t.readBy, waited)
	}
	if t.writer != nil {
		release(&t.writer.Deadline, t.writeBy, waited)
	}
	*t = timeouts{}
}

func release(d *caddyhttp.IdleDeadline, was time.Time, waited time.Duration) {
	d.Start = d.Start.Add(waited)
	if !was.IsZero() {
		d.HardDeadline = was.Add(waited)
	}
}
