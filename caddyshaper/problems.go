package caddyshaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap/exp/zapslog"

	"example.com/leakybucket/inspect"
)

// problems are the mistakes in the rules of entries. All pages show them.
var problems = problemList{of: map[*entry]error{}, shownBy: map[*inspect.Inspector]bool{}}

type problemList struct {
	mu      sync.Mutex
	of      map[*entry]error
	shownBy map[*inspect.Inspector]bool
}

// set notes the mistakes in the rules of an entry; nil if there are none.
func (p *problemList) set(e *entry, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if was := p.of[e]; was == nil && err == nil || was != nil && err != nil && was.Error() == err.Error() {
		return
	}
	p.of[e] = err
	if err == nil {
		delete(p.of, e)
	}
	now := p.joinedLocked()
	for i := range p.shownBy {
		i.Report(now)
	}
}

// show lets a page show the problems, from now on and until stop is called.
func (p *problemList) show(i *inspect.Inspector) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shownBy[i] = true
	if now := p.joinedLocked(); now != nil {
		i.Report(now)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.shownBy, i)
	}
}

// joinedLocked returns all problems as one error, or nil if there are none.
func (p *problemList) joinedLocked() error {
	var all []string
	for e, err := range p.of {
		all = append(all, fmt.Sprintf("%s: the rules in force stay, because the changed ones have mistakes: %v", e.lines.name, err))
	}
	if all == nil {
		return nil
	}
	slices.Sort(all)
	return errors.New(strings.Join(slices.Compact(all), "\n"))
}

// latestLog writes to the log of the configuration that runs at the time. It is for code that
// outlives a configuration, and must not keep its logger, whose files may be closed.
type latestLog struct {
	name string
	with func(slog.Handler) slog.Handler
}

func newLatestLog(name string) slog.Handler {
	return latestLog{name, func(h slog.Handler) slog.Handler { return h }}
}

func (l latestLog) now() slog.Handler {
	core := caddy.Log().Core()
	if apps := inForce.list(); len(apps) > 0 { // Other logs than the default may be for it.
		core = apps[len(apps)-1].ctx.Logger().Core()
	}
	// Without stack traces, as Caddy's own handler.
	return l.with(zapslog.NewHandler(core, zapslog.WithName(l.name), zapslog.AddStacktraceAt(slog.Level(127))))
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

// A seldom tells of many events at most once a second: of the first at once, and at the end of each
// second of all events in it. A second without an event ends the row, so that no count is carried
// over to much later events.
type seldom[T any] struct {
	tell func(count int, latest T) // one call at a time, except beside that for the first event of a row

	mu     sync.Mutex
	timer  *time.Timer // nil: none has come in the last second
	count  int         // that have not been told of
	latest T
	closed bool
}

// note counts an event.
func (s *seldom[T]) note(event T) {
	s.mu.Lock()
	if s.closed || s.timer != nil {
		s.count, s.latest = s.count+1, event
		s.mu.Unlock()
		return
	}
	s.timer = time.AfterFunc(time.Second, s.tick)
	s.mu.Unlock()
	s.tell(1, event) // It may be slow, so it must not be within the lock.
}

// tick tells of the events of the last second.
func (s *seldom[T]) tick() {
	s.mu.Lock()
	count, latest := s.count, s.latest
	s.count = 0
	if s.timer = nil; count > 0 && !s.closed {
		s.timer = time.AfterFunc(time.Second, s.tick)
	}
	s.mu.Unlock()
	if count > 0 {
		s.tell(count, latest)
	}
}

// close tells of the lines that have not been told. Later ones are not told.
func (s *seldom[T]) close() {
	s.mu.Lock()
	s.closed = true
	if s.timer != nil && !s.timer.Stop() { // Its tick tells, and is on its way.
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.tick()
}
