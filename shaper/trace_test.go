package shaper_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

type traceKey struct{}

// diary is a trace that writes down what it is told.
func diary(start func() time.Time, lines *[]string) *shaper.Trace {
	var mu sync.Mutex
	hook := func(what string) func(context.Context, shaper.Event) {
		return func(ctx context.Context, e shaper.Event) {
			mu.Lock()
			defer mu.Unlock()
			*lines = append(*lines, fmt.Sprintf("%v %s: %s %v cost %d waiting %d ahead %d waited %v: %v",
				e.At.Sub(start()), e.Name, what, ctx.Value(traceKey{}), e.Cost, e.Waiting, e.Ahead, e.Waited, e.Err))
		}
	}
	return &shaper.Trace{Enqueued: hook("enqueued"), Departed: hook("departed"), Refused: hook("refused"), Abandoned: hook("abandoned")}
}

func TestHooksTellOfEachCall(t *testing.T) {
	var lines []string
	var start time.Time
	trace := diary(func() time.Time { return start }, &lines)
	options := []shaper.Option{shaper.WithName("api"), shaper.WithTrace(trace), nil, shaper.WithTrace(nil)}
	play(t, "1/s depth 2", func(g *stage) {
		*trace = shaper.Trace{} // New has copied it.
		start = g.start
		arrive := func(name string, n int) {
			ctx, cancel := context.WithCancel(context.WithValue(context.Background(), traceKey{}, name))
			g.cancels[name] = cancel
			g.arriveWith(ctx, name, n)
		}
		arrive("a", 1)
		arrive("b", 1)
		arrive("c", 2)
		arrive("d", 1)
		require.False(t, g.Allow())
		g.at(500 * ms)
		g.cancel("c")
		g.at(2 * time.Second)
		require.True(t, g.Allow())
		arrive("e", 1)
		require.NoError(t, g.Close())
		g.at(3 * time.Second)
		require.Equal(t, []string{ // All hooks have run; the bubble rests.
			"0s api: departed a cost 1 waiting 0 ahead 0 waited 0s: <nil>",
			"0s api: enqueued b cost 1 waiting 1 ahead 0 waited 0s: <nil>",
			"0s api: enqueued c cost 2 waiting 2 ahead 1 waited 0s: <nil>",
			"0s api: refused d cost 1 waiting 2 ahead 0 waited 0s: shaper: queue is full (retry after 1s)",
			// AllowN is judged as with a depth of 0: it would have to wait until the line has gone.
			"0s api: refused <nil> cost 1 waiting 2 ahead 0 waited 0s: shaper: queue is full (retry after 4s)",
			"500ms api: abandoned c cost 2 waiting 1 ahead 1 waited 500ms: context canceled",
			"1s api: departed b cost 1 waiting 0 ahead 0 waited 1s: <nil>",
			"2s api: departed <nil> cost 1 waiting 0 ahead 0 waited 0s: <nil>",
			"2s api: enqueued e cost 1 waiting 1 ahead 0 waited 0s: <nil>",
			"2s api: refused e cost 1 waiting 0 ahead 0 waited 0s: shaper: closed",
		}, lines)
	}, options...)
}

// A slow hook delays its own call, and nobody else's.
func TestASlowHookDelaysItsOwnCallOnly(t *testing.T) {
	slow := func(_ context.Context, e shaper.Event) {
		if e.Cost == 2 {
			time.Sleep(10 * time.Second)
		}
	}
	play(t, "1/s burst 2 depth 9", func(g *stage) {
		g.arrive("slow", 2)
		g.arriveAll("a", "b")
		g.arrive("slow too", 2)
		g.arriveAll("c")
		g.at(time.Minute)
		g.saw("1s a left", "2s b left", "5s c left", "10s slow left", "14s slow too left")
	}, shaper.WithTrace(&shaper.Trace{Departed: slow}))
}

func TestAHookMayCallTheShaper(t *testing.T) {
	var s *shaper.Shaper
	var mu sync.Mutex
	var waiting []int
	ask := func(context.Context, shaper.Event) {
		mu.Lock()
		waiting = append(waiting, s.Stats().Waiting)
		mu.Unlock()
		_, _ = s.Forecast(1)
		_ = s.SetLimits(s.Limits())
	}
	play(t, "1/s depth 1", func(g *stage) {
		s = g.Shaper
		g.arriveAll("a", "b", "c")
		g.cancel("b")
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, []int{0, 1, 1, 0}, waiting)
	}, shaper.WithTrace(&shaper.Trace{Enqueued: ask, Departed: ask, Refused: ask, Abandoned: ask}))
}

// An abandonment comes before the departures that it makes way for.
func TestAnAbandonmentIsToldBeforeThoseItLetsGo(t *testing.T) {
	var lines []string
	var start time.Time
	trace := diary(func() time.Time { return start }, &lines)
	play(t, "1/s burst 5 depth 9", func(g *stage) {
		start = g.start
		g.arrive("a", 4)
		g.arrive("dear", 5)
		g.arrive("x", 1)
		g.arrive("y", 4)
		g.at(500 * ms)
		lines = nil
		g.cancel("dear")
		require.ElementsMatch(t, []string{
			"500ms : abandoned <nil> cost 5 waiting 2 ahead 0 waited 500ms: context canceled",
			"500ms : departed <nil> cost 1 waiting 1 ahead 1 waited 500ms: <nil>",
		}, lines)
		require.NoError(t, g.Close())
	}, shaper.WithTrace(trace))
}
