package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// This file holds how a seat ends that no caller gives back by hand: Do, and
// panics.

func TestDoHoldsASeatWhileItsFunctionRuns(t *testing.T) {
	play(t, "10/s depth 9 inflight 1", func(g *stage) {
		type key struct{}
		ctx := context.WithValue(context.Background(), key{}, "its value")
		failed := errors.New("upstream is down")
		go func() {
			g.note("a " + outcome(g.Do(ctx, 1, func(inside context.Context) error {
				g.note(fmt.Sprint("a runs with ", inside.Value(key{}), ", in flight ", g.Stats().InFlight))
				time.Sleep(time.Second)
				return failed
			})))
		}()
		synctest.Wait()
		g.acquireAll("b")
		g.at(2 * time.Second)
		g.saw("0s a runs with its value, in flight 1", "1s a upstream is down", "1s b left")
	})
}

func TestDoThatIsRefusedRunsNothing(t *testing.T) {
	run := func(context.Context) error { panic("it ran") }
	for _, limits := range []string{"10/s inflight 1", "10/s"} {
		play(t, limits, func(g *stage) {
			g.acquireAll("a")
			require.ErrorIs(t, g.Do(context.Background(), 1, run), shaper.ErrQueueFull)
			require.True(t, g.Do(closedContext(), 1, run) == context.Canceled)
			require.True(t, g.Do(context.Background(), -1, run) == shaper.ErrNegativeCost)
			g.release("a")
			require.Zero(t, g.Stats().InFlight)
		})
	}
}

func TestDoWorksWithoutACap(t *testing.T) {
	play(t, "10/s depth 9", func(g *stage) {
		var left []time.Duration
		for range 3 {
			require.NoError(t, g.Do(context.Background(), 1, func(context.Context) error {
				left = append(left, time.Since(g.start))
				return nil
			}))
		}
		require.Equal(t, []time.Duration{0, 100 * ms, 200 * ms}, left)
	})
}

// However a function ends, its seat is free once.
func TestASeatIsFreeWhenTheFunctionHasPanicked(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("f") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			play(t, "inf depth 9 inflight 2", func(g *stage) {
				g.acquireAll("a")
				go func() {
					defer func() { _ = recover() }()
					_ = g.Do(context.Background(), 1, func(context.Context) error {
						time.Sleep(time.Second)
						end()
						return nil
					})
				}()
				synctest.Wait()
				g.acquireAll("b", "c")
				g.at(2 * time.Second)
				g.saw("0s a left", "1s b left")
				require.Equal(t, 2, g.Stats().InFlight)
				require.NoError(t, g.Close())
			})
		})
	}
}

// A caller whose hook panics, or ends its goroutine, gets no release. Nobody
// else could give the seat back.
func TestAPanicOfTheDepartedHookGivesTheSeatBack(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("hook") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			trace := &shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
				if e.Cost == 2 {
					end()
				}
			}}
			play(t, "inf depth 9 inflight 1", func(g *stage) {
				breaks := func() {
					defer func() { _ = recover() }()
					_, _ = g.Acquire(context.Background(), 2)
				}
				go breaks() // It leaves at once.
				synctest.Wait()
				require.Zero(t, g.Stats().InFlight)
				g.acquireAll("a")
				go breaks() // It leaves from the line.
				synctest.Wait()
				g.acquireAll("b", "c")
				g.at(time.Second)
				g.release("a")
				g.saw("0s a left", "1s b left")
				require.Equal(t, 1, g.Stats().InFlight)
				require.NoError(t, g.Close())
			}, shaper.WithTrace(trace))
		})
	}
}

// The question whether the context has ended is put to the caller's code too.
func TestAPanicOfTheContextGivesTheSeatBack(t *testing.T) {
	play(t, "inf depth 9 inflight 1", func(g *stage) {
		g.acquireAll("a")
		go func() {
			defer func() { _ = recover() }()
			ctx := &meddling{Context: context.Background(), meddle: func() { panic("context") }}
			_, _ = g.Acquire(ctx, 1)
		}()
		synctest.Wait()
		g.acquireAll("b", "c")
		g.release("a")
		g.saw("0s a left", "0s b left")
		require.Equal(t, 1, g.Stats().InFlight)
		require.NoError(t, g.Close())
	})
}
