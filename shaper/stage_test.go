package shaper_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

const (
	ns = time.Nanosecond
	us = time.Microsecond
	ms = time.Millisecond
)

// A stage is a shaper in a bubble, the calls made on it, and what became of
// each, in the order in which they returned. Between two lines of a test
// everybody has come to rest, so calls arrive in the order of the lines.
type stage struct {
	*shaper.Shaper
	t       *testing.T
	start   time.Time
	cancels map[string]context.CancelFunc
	rounds  bool // what is noted says times in whole milliseconds

	mu       sync.Mutex
	log      []string
	releases map[string]func() // of those who came by acquire
}

// play runs a timeline in a bubble of its own.
func play(t *testing.T, limits string, timeline func(g *stage), opts ...shaper.Option) {
	t.Helper()
	l := must(shaper.ParseLimits(limits))
	playLimits(t, l, timeline, opts...)
}

func playLimits(t *testing.T, l shaper.Limits, timeline func(g *stage), opts ...shaper.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := must(shaper.New(l, opts...))
		timeline(&stage{
			Shaper: s, t: t, start: time.Now(),
			cancels: map[string]context.CancelFunc{}, releases: map[string]func(){},
		})
	})
}

// at lets time pass until d after the start.
func (g *stage) at(d time.Duration) {
	time.Sleep(d - time.Since(g.start))
	synctest.Wait()
}

// arrive is a call of WaitN(ctx, n) in a goroutine of its own, which cancel
// can end.
func (g *stage) arrive(name string, n int) {
	g.arriveWith(g.cancellable(name), name, n)
}

// arriveWithin is the same with a deadline d from now.
func (g *stage) arriveWithin(d time.Duration, name string, n int) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	g.cancels[name] = cancel
	g.arriveWith(ctx, name, n)
}

func (g *stage) arriveWith(ctx context.Context, name string, n int) {
	g.calls(name, func() error { return g.WaitN(ctx, n) })
}

// calls makes a call in a goroutine of its own, and notes how it ends.
func (g *stage) calls(name string, call func() error) {
	go func() { g.note(name + " " + outcome(call())) }()
	synctest.Wait()
}

// cancellable returns a context that cancel can end.
func (g *stage) cancellable(name string) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	g.cancels[name] = cancel
	return ctx
}

// arriveAll are calls of cost 1, one after the other.
func (g *stage) arriveAll(names ...string) {
	for _, name := range names {
		g.arrive(name, 1)
	}
}

// acquire is a call of Acquire(ctx, n) in a goroutine of its own, which cancel
// can end; release gives back the seat that it has got.
func (g *stage) acquire(name string, n int) {
	g.acquireWith(g.cancellable(name), name, n)
}

func (g *stage) acquireWith(ctx context.Context, name string, n int) {
	g.calls(name, func() error {
		release, err := g.Acquire(ctx, n)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.releases[name] = release
		return err
	})
}

// acquireAll are calls of cost 1, one after the other.
func (g *stage) acquireAll(names ...string) {
	for _, name := range names {
		g.acquire(name, 1)
	}
}

// release does so once for each name, with what Acquire returned, error or not.
func (g *stage) release(names ...string) {
	for _, name := range names {
		g.mu.Lock()
		release := g.releases[name]
		g.mu.Unlock()
		release()
		synctest.Wait()
	}
}

func (g *stage) cancel(names ...string) {
	for _, name := range names {
		g.cancels[name]()
	}
	synctest.Wait()
}

func (g *stage) set(limits string) {
	g.t.Helper()
	l := must(shaper.ParseLimits(limits))
	require.NoError(g.t, g.SetLimits(l))
	synctest.Wait()
}

func (g *stage) note(what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	line := fmt.Sprintf("%v %s", time.Since(g.start), what)
	if g.rounds {
		line = fractions.ReplaceAllStringFunc(line, func(text string) string {
			d, err := time.ParseDuration(text)
			require.NoError(g.t, err)
			return d.Round(ms).String()
		})
	}
	g.log = append(g.log, line)
}

// fractions matches the durations that are no whole numbers of a unit.
var fractions = regexp.MustCompile(`\d[\dhm]*\.\d+[mµn]?s\b`)

// saw asserts which calls have returned so far, and when, and forgets them.
// Which of several calls that end at one instant returns first is up to the
// scheduler, and not looked at.
func (g *stage) saw(lines ...string) {
	g.t.Helper()
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	require.Equal(g.t, byInstant(lines), byInstant(g.log))
	g.log = nil
}

// byInstant sorts what stands at one instant, and nothing else.
func byInstant(lines []string) []string {
	lines = slices.Clone(lines)
	slices.SortStableFunc(lines, func(a, b string) int {
		at, _, _ := strings.Cut(a, " ")
		bt, _, _ := strings.Cut(b, " ")
		if at == bt {
			return strings.Compare(a, b)
		}
		da, _ := time.ParseDuration(at)
		db, _ := time.ParseDuration(bt)
		return cmp.Compare(da, db)
	})
	return lines
}

// outcome puts the result of a call into a word.
func outcome(err error) string {
	if rejected, ok := errors.AsType[*shaper.RejectError](err); ok {
		word := map[error]string{
			shaper.ErrQueueFull: "full", shaper.ErrTooLate: "late",
			shaper.ErrTooCostly: "costly", shaper.ErrClosed: "closed",
		}[rejected.Reason]
		return fmt.Sprintf("%s, retry %v", word, rejected.RetryAfter)
	}
	switch err {
	case nil:
		return "left"
	case context.Canceled:
		return "cancelled"
	case context.DeadlineExceeded:
		return "expired"
	}
	return err.Error()
}

// lateCancel is a context that ends without waking anybody: its Done channel
// stays open and its Err turns to Canceled when end is called. It stands for a
// caller who goes in the moment in which the slot comes.
type lateCancel struct {
	context.Context
	mu  sync.Mutex
	err error
	// asked counts the questions.
	asked int
}

func newLateCancel() *lateCancel { return &lateCancel{Context: context.Background()} }

func (c *lateCancel) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = context.Canceled
}

func (c *lateCancel) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return c.err
}

// bubble runs a subtest in a bubble.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}
