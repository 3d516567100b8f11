package shaper

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// journal is what a Middleware logs. A nil one logs nothing.
type journal struct {
	log    *slog.Logger
	thin   rate.Sometimes
	unsaid atomic.Int64 // refusals since the last line
}

func newJournal(log *slog.Logger) *journal {
	if log == nil {
		return nil
	}
	return &journal{log: log, thin: rate.Sometimes{Interval: time.Second}}
}

// refused notes a refusal. In an overload there are many, and one line a second
// says as much as all of them.
func (j *journal) refused(ctx context.Context, err error) {
	if j == nil {
		return
	}
	j.unsaid.Add(1)
	var count int64
	j.thin.Do(func() { count = j.unsaid.Swap(0) })
	if count == 0 {
		return
	}
	// The line is written out here, as thin lets one in at a time: a slow log
	// would hold up all refusals.
	attrs := []slog.Attr{
		slog.Int("status", answerTo(err).status),
		slog.String("error", reasonOf(err)),
		slog.Int64("refused", count),
	}
	if rejected, ok := errors.AsType[*RejectError](err); ok && rejected.RetryAfter > 0 {
		attrs = append(attrs, slog.Duration("retry_after", rejected.RetryAfter))
	}
	j.log.LogAttrs(ctx, slog.LevelWarn, "shaper: refused", attrs...)
}

// reasonOf is the text of an error without what may have come from the request:
// that of a body names the client's address, and what wraps a refusal may name
// a key.
func reasonOf(err error) string {
	if rejected, ok := errors.AsType[*RejectError](err); ok {
		return rejected.Reason.Error()
	}
	if errors.Is(err, errBody) {
		return errBody.Error()
	}
	return err.Error()
}

// gone notes a client that left while it waited.
func (j *journal) gone(ctx context.Context, waited time.Duration) {
	if j != nil {
		j.log.LogAttrs(ctx, slog.LevelDebug, "shaper: client gone", slog.Duration("waited", waited))
	}
}
