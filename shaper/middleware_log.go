package shaper

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper/internal/serverconn"
)

// A refusalLog is the log of a [Middleware]. A nil refusalLog logs nothing.
type refusalLog struct {
	log        *slog.Logger
	sometimes  rate.Sometimes
	suppressed atomic.Int64 // refusals since the last line that were not logged
}

func newRefusalLog(log *slog.Logger) *refusalLog {
	if log == nil {
		return nil
	}
	return &refusalLog{log: log, sometimes: rate.Sometimes{Interval: time.Second}}
}

// logRefusal logs a refusal, at most one a second: an overload brings many refusals, and
// one line a second says as much as a line for each.
func (l *refusalLog) logRefusal(ctx context.Context, err error) {
	if l == nil {
		return
	}
	l.suppressed.Add(1)
	var count int64
	l.sometimes.Do(func() { count = l.suppressed.Swap(0) })
	if count == 0 {
		return
	}
	// The line is written after Do has returned, because Do runs one call at a time:
	// within it, a slow log would delay all refusals.
	attrs := []slog.Attr{
		slog.Int("status", responseTo(err).status),
		slog.String("error", reasonOf(err)),
		slog.Int64("refused", count),
	}
	if rejected, ok := errors.AsType[*RejectError](err); ok && rejected.RetryAfter > 0 {
		attrs = append(attrs, slog.Duration("retry_after", rejected.RetryAfter))
	}
	l.log.LogAttrs(ctx, slog.LevelWarn, "shaper: refused", attrs...)
}

// reasonOf returns the text of an error, without what may have come from the request:
// the error of a body names the client's address, and an error that wraps a refusal
// may name a key.
func reasonOf(err error) string {
	if rejected, ok := errors.AsType[*RejectError](err); ok {
		return rejected.why()
	}
	if errors.Is(err, serverconn.ErrBody) {
		return serverconn.ErrBody.Error()
	}
	return err.Error()
}

// logGone logs that a client has gone while its request waited.
func (l *refusalLog) logGone(ctx context.Context, waited time.Duration) {
	if l != nil {
		l.log.LogAttrs(ctx, slog.LevelDebug, "shaper: client gone", slog.Duration("waited", waited))
	}
}
