package shaper_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// This file holds guarantees 8 (rest) and 9 (end). That a bubble ends at all
// shows that no goroutine is left in it.

func TestNothingRunsWhenNobodyWaits(t *testing.T) {
	play(t, "1/h depth 9", func(g *stage) {
		g.arriveAll("a", "b", "c")
		g.at(time.Second)
		g.cancel("b", "c") // The ticker was asleep for an hour, and must not stay.
		g.saw("0s a left", "1s b cancelled", "1s c cancelled")
	})
}

func TestCloseRefusesThoseInLine(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		g.arriveAll("a", "b", "c")
		g.at(500 * ms)
		require.NoError(t, g.Close())
		require.NoError(t, g.Close())
		g.arriveAll("d")
		require.False(t, g.Allow())
		g.saw("0s a left", "500ms b closed, retry 0s", "500ms c closed, retry 0s", "500ms d closed, retry 0s")
		st := g.Stats()
		require.EqualValues(t, 4, st.Closed)
		require.EqualValues(t, 4, st.Refused)
		require.NoError(t, g.SetLimits(shaper.Limits{Rate: 5}))
		require.Equal(t, shaper.Limits{Rate: 5}, g.Limits())
	})
}

func TestShutdownLetsTheLineLeave(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		g.arriveAll("a", "b", "c")
		go g.shutDown()
		synctest.Wait()
		g.at(500 * ms)
		g.arriveAll("d")
		g.saw("0s a left", "500ms d closed, retry 1.5s")
		g.at(10 * time.Second)
		require.ElementsMatch(t, []string{"1s b left", "2s c left", "2s shut down: <nil>"}, g.log)
	})
}

func (g *stage) shutDown() { g.note(fmt.Sprint("shut down: ", g.Shutdown(context.Background()))) }

func TestShutdownOfAnEmptyLineIsDoneAtOnce(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		done, cancel := context.WithCancel(context.Background())
		cancel()
		g.arriveAll("a")
		require.NoError(t, g.Shutdown(done))
		require.NoError(t, g.Shutdown(done))
		g.arriveAll("b")
		g.saw("0s a left", "0s b closed, retry 0s")
	})
}

func TestShutdownThatIsGivenUpGoesOn(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		g.arriveAll("a", "b", "c")
		ctx, cancel := context.WithTimeout(context.Background(), 500*ms)
		defer cancel()
		require.True(t, g.Shutdown(ctx) == context.DeadlineExceeded)
		require.True(t, g.Shutdown(ctx) == context.DeadlineExceeded)
		require.Equal(t, 500*ms, time.Since(g.start))
		require.NoError(t, g.Shutdown(context.Background()), "another waits for the rest")
		require.Equal(t, 2*time.Second, time.Since(g.start))
		synctest.Wait()
		g.saw("0s a left", "1s b left", "2s c left")
	})
}

// A context may say that it is done and give no reason. The line has not left
// for all that.
func TestShutdownWithADoneContextWithoutAnError(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		g.arriveAll("a", "b")
		done := make(chan struct{})
		close(done)
		require.True(t, g.Shutdown(wordless{context.Background(), done}) == context.Canceled)
		require.Equal(t, 1, g.Stats().Waiting)
		g.at(time.Second)
	})
}

// Where requests go through two lines, none must wait in the first only to be refused by the
// second.
func TestTheOuterOfTwoLinesEndsFirst(t *testing.T) {
	for _, outerFirst := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			outer, inner := mustMake(t, limitsOf(t, "10/s depth 99")), mustMake(t, limitsOf(t, "5/s depth 99"))
			both := shaper.Chain(outer, inner)
			refused := make(chan error, 20)
			for range cap(refused) {
				go func() {
					if err := both.WaitN(context.Background(), 1); err != nil {
						refused <- err
					}
				}()
			}
			time.Sleep(ms)
			first, second := outer, inner
			if !outerFirst {
				first, second = inner, outer
			}
			require.NoError(t, first.Shutdown(t.Context()))
			synctest.Wait() // The last of the first line may be on its way to the second.
			require.NoError(t, second.Shutdown(t.Context()))
			synctest.Wait()
			if outerFirst {
				require.Empty(t, refused)
				require.EqualValues(t, 20, inner.Stats().Departed)
			} else {
				require.Len(t, refused, 19, "if none is refused, the order does not matter")
				require.EqualValues(t, 20, outer.Stats().Departed, "they had their turn")
			}
		})
	}
}

func TestCloseOvertakesShutdown(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		g.arriveAll("a", "b")
		for range 3 {
			go g.shutDown()
		}
		g.at(500 * ms)
		require.NoError(t, g.Close())
		synctest.Wait()
		require.ElementsMatch(t, g.log, []string{"0s a left", "500ms b closed, retry 0s",
			"500ms shut down: <nil>", "500ms shut down: <nil>", "500ms shut down: <nil>"})
	})
}

func TestTheLastInLineMayEndAShutdownByLeavingIt(t *testing.T) {
	play(t, "1/h depth 9", func(g *stage) {
		g.arriveAll("a", "b")
		go g.shutDown()
		g.at(time.Second)
		g.cancel("b")
		require.ElementsMatch(t, g.log, []string{"0s a left", "1s b cancelled", "1s shut down: <nil>"})
	})
}

// Close and Shutdown may be called from every hook: no hook runs on the
// ticker's goroutine, for whose end Close waits, nor under the lock.
func TestCloseFromInsideAHook(t *testing.T) {
	var s *shaper.Shaper
	end := func(context.Context, shaper.Event) {
		_ = s.Shutdown(closedContext())
		_ = s.Close()
	}
	for _, trace := range []*shaper.Trace{{Enqueued: end}, {Departed: end}, {Refused: end}, {Abandoned: end}} {
		play(t, "1/s depth 1", func(g *stage) {
			s = g.Shaper
			g.arriveAll("a", "b", "c")
			g.cancel("b")
			g.at(10 * time.Second)
			require.Len(t, g.log, 3)
			require.ErrorIs(t, g.Wait(context.Background()), shaper.ErrClosed)
		}, shaper.WithTrace(trace))
	}
}

func closedContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// AllowN on a closed Shaper or Group is counted in one way, whatever is known of the
// Limits: a closed Group does not know whether a key has a cap. Otherwise the totals
// of a Shaper and of a Group would tell different things of the same calls.
func TestAllowOfAClosedShaperAndGroupIsCountedAlike(t *testing.T) {
	type ending interface {
		Shutdown(context.Context) error
		Close() error
	}
	for _, limits := range []string{"1/s depth 9", "1/s depth 9 inflight 1"} {
		for name, end := range map[string]func(ending){
			"Close":    func(e ending) { _ = e.Close() },
			"Shutdown": func(e ending) { _ = e.Shutdown(closedContext()) },
		} {
			bubble(t, limits+" "+name, func(t *testing.T) {
				var told []error
				trace := shaper.WithTrace(&shaper.Trace{Refused: func(_ context.Context, e shaper.Event) { told = append(told, e.Err) }})
				l := limitsOf(t, limits)
				s := must(shaper.New(l, trace))
				g := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil }, trace))
				wait := func(acquire func(context.Context, int) (func(), error)) {
					release, err := acquire(context.Background(), 1)
					require.NoError(t, err)
					time.Sleep(500 * time.Millisecond) // Until it is closed, if by Shutdown, with one in line.
					release()
				}
				inGroup := g.Limiter("a")
				for range 2 {
					go wait(s.Acquire)
					go wait(inGroup.Acquire)
					synctest.Wait()
				}
				if name == "Close" {
					time.Sleep(10 * time.Second)
				}
				end(s)
				end(g)
				told = nil
				for _, key := range []string{"a", "new"} {
					require.False(t, s.AllowN(2))
					require.False(t, g.AllowN(key, 2))
					require.True(t, s.AllowN(0))
					require.True(t, g.AllowN(key, 0))
					require.False(t, s.AllowN(-1))
					require.False(t, g.AllowN(key, -1))
				}
				require.EqualValues(t, 2, s.Stats().Closed)
				require.EqualValues(t, 2, g.Stats().Closed)
				require.Len(t, told, 4)
				for _, err := range told {
					require.ErrorIs(t, err, shaper.ErrClosed)
				}
				time.Sleep(10 * time.Second)
			})
		}
	}
}
