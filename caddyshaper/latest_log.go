package caddyshaper

import (
	"context"
	"log/slog"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap/exp/zapslog"
)

// latestLog writes to the log of the configuration that runs when something is written. What
// outlives a configuration must not keep its logger, whose files may be closed.
type latestLog struct {
	name string
	with func(slog.Handler) slog.Handler
}

func newLatestLog(name string) slog.Handler {
	return latestLog{name, func(h slog.Handler) slog.Handler { return h }}
}

func (l latestLog) now() slog.Handler {
	// Without stack traces, as Caddy's own handler.
	return l.with(zapslog.NewHandler(caddy.Log().Core(), zapslog.WithName(l.name), zapslog.AddStacktraceAt(slog.Level(127))))
}

func (l latestLog) Enabled(ctx context.Context, level slog.Level) bool {
	return l.now().Enabled(ctx, level)
}

func (l latestLog) Handle(ctx context.Context, r slog.Record) error { return l.now().Handle(ctx, r) }

func (l latestLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return latestLog{l.name, func(h slog.Handler) slog.Handler { return l.with(h).WithAttrs(attrs) }}
}

func (l latestLog) WithGroup(name string) slog.Handler {
	return latestLog{l.name, func(h slog.Handler) slog.Handler { return l.with(h).WithGroup(name) }}
}
