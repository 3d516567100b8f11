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

// This file holds guarantees 4 (abandonment) and 5 (exactly one outcome).

func TestCancelledHeadDoesNotCostAnInterval(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		g.arriveAll("a", "b", "c", "d")
		g.at(500 * ms)
		g.cancel("b")
		g.at(10 * time.Second)
		g.saw("0s a left", "500ms b cancelled", "1s c left", "2s d left")
	})
}

// Whoever of n waiters gives up, the others leave at the first n−k instants.
func TestTheOthersMoveUp(t *testing.T) {
	const n = 6
	for gone := range 1 << n {
		play(t, "1/s depth 9", func(g *stage) {
			g.arriveAll("first")
			want := []string{"0s first left"}
			for i := range n {
				g.arriveAll(string(rune('a' + i)))
			}
			g.at(100 * ms)
			for i := range n {
				if gone>>i&1 == 1 {
					g.cancel(string(rune('a' + i)))
					want = append(want, "100ms "+string(rune('a'+i))+" cancelled")
				}
			}
			seconds := 0
			for i := range n {
				if gone>>i&1 == 0 {
					seconds++
					want = append(want, fmt.Sprintf("%ds %c left", seconds, 'a'+i))
				}
			}
			g.at(time.Minute)
			g.saw(want...)
		})
	}
}

func TestThePlaceIsFreeBeforeTheCallReturns(t *testing.T) {
	play(t, "1/s depth 1", func(g *stage) {
		g.arriveAll("a", "b")
		g.at(100 * ms)
		g.cancel("b")
		require.Zero(t, g.Stats().Waiting)
		g.arriveAll("c")
		g.at(time.Second)
		g.saw("0s a left", "100ms b cancelled", "1s c left")
	})
}

func TestACheapOneLeavesWhenTheDearHeadIsCancelled(t *testing.T) {
	play(t, "1/s burst 5 depth 9", func(g *stage) {
		g.arrive("a", 4)     // level 4
		g.arrive("dear", 5)  // at level 0
		g.arrive("cheap", 1) // at level 4, but not past dear
		g.at(1500 * ms)
		g.cancel("dear")
		g.saw("0s a left", "1.5s dear cancelled", "1.5s cheap left")
		// The level was 2.5 when cheap left: it counts from then.
		require.InDelta(t, 3.5, g.Stats().Level, 1e-9)
	})
}

func TestAContextThatIsDoneConsumesNothing(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		require.True(t, g.Wait(ctx) == context.Canceled)
		require.Zero(t, g.Stats().Level)
		require.Zero(t, g.Stats().Abandoned, "it was done before the call: counted nowhere")
		require.True(t, g.Stats().LastCall.IsZero())
	})
}

func TestAContextErrorComesThroughUntouched(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		ctx, cancel := context.WithCancelCause(context.Background())
		g.arriveAll("a")
		g.arriveWith(ctx, "b", 1)
		cancel(fmt.Errorf("the cause is the caller's to ask"))
		g.saw("0s a left", "0s b cancelled")
	})
}

func TestASlotWhoseOwnerHasGoneIsTheNextOnes(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		late := newLateCancel()
		g.arriveAll("a")
		g.arriveWith(late, "gone", 1)
		g.arriveAll("c", "d")
		late.end()
		require.Equal(t, 3, g.Stats().Waiting, "nobody knows yet")
		g.at(10 * time.Second)
		g.saw("0s a left", "1s gone cancelled", "1s c left", "2s d left")
		require.EqualValues(t, 1, g.Stats().Abandoned)
		require.EqualValues(t, 3, g.Stats().Departed)
		require.Equal(t, 2, late.asked, "once at entry, once after the slot")
	})
}

func TestASlotWhoseOwnerHasGoneGoesBackToTheBucket(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		late := newLateCancel()
		g.arriveAll("a")
		g.arriveWith(late, "gone", 1)
		late.end()
		g.at(1500 * ms)
		require.Zero(t, g.Stats().Level)
		g.arriveAll("c", "d")
		g.at(10 * time.Second)
		g.saw("0s a left", "1s gone cancelled", "1.5s c left", "2.5s d left")
	})
}

// Three leave in one wake-up, as the rate becomes unlimited. The units that the
// first gives back are gone, since others have left after it; the units of the
// last are not. At rate.Inf there is no level that shows it, so the change is
// to a great Burst.
func TestOfSeveralInOneWakeUpTheLastCanBeGivenBack(t *testing.T) {
	for _, c := range []struct {
		name  string
		gone  int // of the three, in their order
		level float64
	}{{"first", 0, 4}, {"second", 1, 4}, {"last", 2, 3}} {
		t.Run(c.name, func(t *testing.T) {
			play(t, "1/s depth 9", func(g *stage) {
				g.arriveAll("a")
				var lates [3]*lateCancel
				for i := range lates {
					lates[i] = newLateCancel()
					g.arriveWith(lates[i], string(rune('b'+i)), 1)
				}
				lates[c.gone].end()
				g.set("1/s burst 9 depth 9")
				require.EqualValues(t, 3, g.Stats().Departed)
				require.EqualValues(t, 1, g.Stats().Abandoned)
				require.InDelta(t, c.level, g.Stats().Level, 1e-9)
			})
		})
	}
}

// A slot and the end of its owner's context fall on one instant: either may
// win, one does, and the next waiter is none the worse in either case.
func TestSlotAndCancelAtOneInstant(t *testing.T) {
	for range 500 {
		play(t, "1/s depth 9", func(g *stage) {
			g.arriveAll("a", "b", "c")
			go func() { time.Sleep(time.Second); g.cancels["b"]() }()
			g.at(10 * time.Second)
			st := g.Stats()
			require.EqualValues(t, 3, st.Departed+st.Abandoned)
			switch g.log[1] {
			case "1s b left":
				require.Equal(t, "2s c left", g.log[2])
			case "1s c left":
				require.Equal(t, "1s b cancelled", g.log[2])
			default:
				require.Equal(t, "1s b cancelled", g.log[1])
				require.Equal(t, "1s c left", g.log[2])
			}
		})
	}
}

// A hook that panics must not leave a waiter in the line to whom nobody
// listens: its slot would be lost.
func TestAPanicInAHookLeavesTheLine(t *testing.T) {
	trace := &shaper.Trace{Enqueued: func(_ context.Context, e shaper.Event) {
		if e.Cost == 2 {
			panic("hook")
		}
	}}
	play(t, "1/s depth 9", func(g *stage) {
		g.arriveAll("a")
		require.PanicsWithValue(t, "hook", func() { _ = g.WaitN(context.Background(), 2) })
		g.arriveAll("b")
		g.at(10 * time.Second)
		g.saw("0s a left", "1s b left")
	}, shaper.WithTrace(trace))
}

// A context may say that it is done and give no reason. It has ended all the
// same.
func TestADoneContextWithoutAnErrorEndsTheWait(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		done := make(chan struct{})
		g.arriveAll("a")
		g.arriveWith(wordless{context.Background(), done}, "b", 1)
		close(done)
		synctest.Wait()
		g.saw("0s a left", "0s b cancelled")
	})
}

type wordless struct {
	context.Context
	done chan struct{}
}

func (c wordless) Done() <-chan struct{} { return c.done }
