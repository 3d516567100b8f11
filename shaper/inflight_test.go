package shaper_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// This file holds what Limits.InFlight promises of those who leave and of the
// seats that they take. What it means for those who wait is in
// inflight_line_test.go and inflight_estimate_test.go, Do and panics are in do_test.go.

func TestARequestLeavesWhenBucketAndCapAllow(t *testing.T) {
	play(t, "10/s depth 9 inflight 2", func(g *stage) {
		g.acquireAll("a", "b", "c", "d")
		g.saw("0s a left")
		g.at(250 * ms)
		g.saw("100ms b left") // The bucket is empty, and two are upstream.
		require.Equal(t, 2, g.Stats().InFlight)
		g.release("a")
		g.saw("250ms c left")
		g.at(300 * ms)
		g.release("b") // There is room, but c has just left.
		g.saw()
		require.Equal(t, 1, g.Stats().InFlight)
		g.at(time.Second)
		g.saw("350ms d left")
	})
}

// The line keeps its order while it waits for a seat, and nobody slips past
// it in the moment in which one becomes free.
func TestNobodyOvertakesALineThatWaitsForASeat(t *testing.T) {
	play(t, "10/s burst 5 depth 9 inflight 1", func(g *stage) {
		g.acquireAll("a")
		g.acquire("dear", 5)
		g.acquireAll("cheap")
		g.at(time.Second) // The bucket has room for all.
		g.acquireAll("new")
		g.release("a")
		g.saw("0s a left", "1s dear left")
		g.release("dear") // There is a seat, but the bucket is full.
		g.acquireAll("newest")
		g.at(1100 * ms)
		g.saw("1.1s cheap left")
		g.release("cheap")
		g.at(1200 * ms)
		g.saw("1.2s new left")
		require.NoError(t, g.Close())
	})
}

// Who comes while the line is empty, but all seats are taken, waits for one.
func TestASeatIsOneRequestWhateverItsCost(t *testing.T) {
	play(t, "10/s burst 9 depth 9 inflight 2", func(g *stage) {
		g.acquire("five", 5)
		g.acquire("nothing", 0)
		g.acquire("one", 1)
		require.Equal(t, 2, g.Stats().InFlight)
		g.acquire("three", 3)
		g.saw("0s five left", "0s nothing left", "0s one left")
		g.release("nothing")
		require.Equal(t, 2, g.Stats().InFlight, "a cost of 0 takes no seat")
		g.release("five")
		g.saw("0s three left")
	})
}

func TestReleaseTwiceFreesOneSeat(t *testing.T) {
	play(t, "inf depth 9 inflight 2", func(g *stage) {
		g.acquireAll("a", "b", "c", "d")
		g.release("a", "a")
		g.saw("0s a left", "0s b left", "0s c left")
		require.Equal(t, 2, g.Stats().InFlight)
		// c has the seat that a had. It is c's to give back.
		g.release("a")
		g.saw()
		g.release("c")
		g.saw("0s d left")
		for range 3 {
			g.release("a", "b", "c", "d")
		}
		require.Zero(t, g.Stats().InFlight)
		g.acquireAll("e", "f", "g")
		g.saw("0s e left", "0s f left")
		require.NoError(t, g.Close())
	})
}

// Every call of Acquire returns a release that can be deferred unseen, and the
// errors of WaitN.
func TestAcquireThatFailsTakesNoSeat(t *testing.T) {
	play(t, "10/s depth 1 inflight 2", func(g *stage) {
		g.acquireAll("a", "b", "full")
		g.acquire("negative", -1)
		g.acquire("nothing", 0)
		g.acquireWith(closedContext(), "done", 1)
		g.cancel("b")
		g.saw("0s a left", "0s full full, retry 100ms", "0s negative shaper: cost is negative",
			"0s nothing left", "0s done cancelled", "0s b cancelled")
		g.release("full", "negative", "nothing", "done", "b")
		require.Equal(t, 1, g.Stats().InFlight)
		require.NoError(t, g.Close())
		g.acquireAll("late")
		g.saw("0s late closed, retry 0s")
		g.release("late")
		require.Equal(t, 1, g.Stats().InFlight)
		g.release("a")
		require.Zero(t, g.Stats().InFlight, "seats come back after Close too")
	})
}

// A caller who would not say when it ends must not pass for one upstream, so
// its call says what to use, before it looks at anything else.
func TestWithACapOnlyAcquireWaits(t *testing.T) {
	play(t, "10/s burst 9 depth 9 inflight 3", func(g *stage) {
		before := g.Stats()
		for _, n := range []int{-1, 0, 1, 99} {
			require.ErrorContains(t, g.WaitN(context.Background(), n), "Acquire")
			var refusal *shaper.RejectError
			require.False(t, errors.As(g.WaitN(context.Background(), n), &refusal), "it is a mistake, no refusal")
		}
		require.ErrorContains(t, g.Wait(closedContext()), "Acquire")
		require.False(t, g.Allow())
		require.False(t, g.AllowN(2))
		require.Equal(t, before, g.Stats(), "nothing is taken or counted")
	})
}

func TestSetLimitsTakesNoCapAwayAndBringsNone(t *testing.T) {
	play(t, "10/s depth 9 inflight 2", func(g *stage) {
		g.acquireAll("a", "b")
		capped := g.Limits()
		err := g.SetLimits(shaper.Limits{Rate: 99, Depth: 9})
		require.ErrorContains(t, err, "Limits.InFlight is 2 and can't become 0")
		require.Equal(t, capped, g.Limits())
		require.ErrorContains(t, g.SetLimits(shaper.Limits{Rate: 99, InFlight: -1}), "Limits.InFlight is -1,")
		g.at(time.Second)
		g.saw("0s a left", "100ms b left") // By the rate that it was.
	})
	play(t, "10/s depth 9", func(g *stage) {
		g.arriveAll("a", "b")
		err := g.SetLimits(shaper.Limits{Rate: 99, Depth: 9, InFlight: 7})
		require.ErrorContains(t, err, "Limits.InFlight is 0 and can't become 7")
		g.at(time.Second)
		g.saw("0s a left", "100ms b left")
	})
}

// An upstream that serves four requests at once, in 200 ms each, bears 20 a second.
// When it becomes slow, as upstreams do under load, a rate alone still sends it 20 a
// second, and it turns away what it can't take; with a cap it gets what it bears.
func TestACapHoldsWhatARateAloneDoesNot(t *testing.T) {
	for _, row := range []struct {
		limits  string
		service time.Duration
		refused int64
		took    time.Duration // until the last of 20 calls has ended
	}{
		{"20/s depth 100", 190 * ms, 0, 1140 * ms},
		{"20/s depth 100 inflight 4", 190 * ms, 0, 1140 * ms},
		{"20/s depth 100", 390 * ms, 8, 1340 * ms},
		{"20/s depth 100 inflight 4", 390 * ms, 0, 2100 * ms},
	} {
		t.Run(row.limits+" "+row.service.String(), func(t *testing.T) {
			play(t, row.limits, func(g *stage) {
				var busy, refused atomic.Int64
				call := func(context.Context) error {
					defer busy.Add(-1)
					if busy.Add(1) > 4 {
						refused.Add(1)
						return nil
					}
					time.Sleep(row.service)
					return nil
				}
				var all sync.WaitGroup
				for range 20 {
					all.Go(func() {
						if err := g.Do(context.Background(), 1, call); err != nil {
							g.note(err.Error())
						}
					})
				}
				all.Wait()
				g.saw() // No errors.
				require.Equal(t, row.refused, refused.Load())
				require.Equal(t, row.took, time.Since(g.start))
			})
		})
	}
}
