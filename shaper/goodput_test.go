package shaper_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/naive"
	"example.com/leakybucket/shaper"
)

// Goodput is the share of the capacity that goes to callers that are still there. It
// is measured at 100/s over 60 seconds of virtual time, with more requests offered
// than can be served, and callers that give up after half a second.
const (
	goodputRate     = 100
	goodputSpan     = 60 * time.Second
	goodputPatience = 500 * time.Millisecond
)

// A patience makes a context that ends after goodputPatience.
type patience struct {
	name    string
	context func() (context.Context, context.CancelFunc)
}

var (
	// byCancel gives up as a closed connection does: without notice.
	byCancel = patience{"cancel", func() (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(context.Background())
		timer := time.AfterFunc(goodputPatience, cancel)
		return ctx, func() { timer.Stop(); cancel() }
	}}
	// byDeadline says at entry how long it will wait.
	byDeadline = patience{"deadline", func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.Background(), goodputPatience)
	}}

	patiences = []patience{byCancel, byDeadline}
	offers    = []int{111, 125, 200} // requests per second
)

// A rival starts a limiter of goodputRate and returns its Wait and a function
// that stops it.
type rival struct {
	name  string
	start func() (wait func(context.Context) error, stop func())
}

func shaperOfDepth(depth int) rival {
	return rival{"shaper", func() (func(context.Context) error, func()) {
		s, err := shaper.New(shaper.Limits{Rate: goodputRate, Depth: depth})
		if err != nil {
			panic(err) // A *testing.T may not fail in a bubble of a benchmark.
		}
		return s.Wait, func() { _ = s.Close() }
	}}
}

func naiveOfDepth(name string, depth int, mended bool) rival {
	return rival{name, func() (func(context.Context) error, func()) {
		q := naive.New(goodputRate, depth)
		q.Mended = mended
		q.Start()
		return q.Wait, q.Stop
	}}
}

// xTime is x/time/rate in its best documented use, Wait with the caller's
// context. It loses most of the capacity where callers cancel (docs/decisions.md has
// the figures), and nothing where the deadline is in the context: then it
// refuses at entry.
var xTime = rival{"x-time", func() (func(context.Context) error, func()) {
	return rate.NewLimiter(goodputRate, 1).Wait, func() {}
}}

// goodput offers requests at an even pace and returns the share of the capacity
// that was served within the span, in percent. It must run in a bubble.
func goodput(r rival, offered int, p patience) float64 {
	wait, stop := r.start()
	defer stop()
	start := time.Now()
	var callers sync.WaitGroup
	var served atomic.Int64
	for i := range offered * int(goodputSpan/time.Second) {
		arrival := time.Duration(i) * time.Second / time.Duration(offered)
		time.Sleep(arrival - time.Since(start))
		callers.Go(func() {
			ctx, cancel := p.context()
			defer cancel()
			if wait(ctx) == nil && time.Since(start) < goodputSpan {
				served.Add(1)
			}
		})
	}
	callers.Wait()
	return 100 * float64(served.Load()) / (goodputRate * goodputSpan.Seconds())
}

// One line is as deep as callers are patient, the other twenty times as deep: callers
// that give up must not waste a slot in either.
func TestGoodputHoldsWhereCallersGiveUp(t *testing.T) {
	t.Parallel()
	for _, depth := range []int{50, 1000} {
		for _, p := range patiences {
			for _, offered := range offers {
				name := fmt.Sprintf("depth=%d/by=%s/offered=%d", depth, p.name, offered)
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						served := goodput(shaperOfDepth(depth), offered, p)
						require.GreaterOrEqual(t, served, 99.0)
						require.LessOrEqual(t, served, 100.0, "never above the rate")
					})
				})
			}
		}
	}
}

// BenchmarkGoodput prints the table; only the column served_% means anything.
// A line of 1,000 is deeper than callers are patient, for us as for the naive.
func BenchmarkGoodput(b *testing.B) {
	rivals := []rival{
		shaperOfDepth(1000),
		xTime,
		naiveOfDepth("naive", 1000, false),
		naiveOfDepth("naive-mended", 1000, true),
	}
	for _, p := range patiences {
		for _, offered := range offers {
			for _, r := range rivals {
				name := fmt.Sprintf("by=%s/offered=%d/limiter=%s", p.name, offered, r.name)
				b.Run(name, func(b *testing.B) {
					var served float64
					for b.Loop() {
						// A bubble wants a *testing.T. A new one serves, as
						// long as nothing in the bubble makes use of it.
						synctest.Test(new(testing.T), func(*testing.T) {
							served = goodput(r, offered, p)
						})
					}
					b.ReportMetric(served, "served_%")
				})
			}
		}
	}
}
