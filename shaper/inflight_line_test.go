package shaper_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// This file holds what Limits.InFlight means for those who wait: guarantees 1, 4, 5 and 9
// (pace, abandonment, one outcome, end) hold with it.

func TestARequestThatGivesUpWhileAllSeatsAreTakenLeavesTheLine(t *testing.T) {
	play(t, "10/s depth 3 inflight 1", func(g *stage) {
		g.acquireAll("a", "b", "c", "d")
		g.at(time.Second)
		g.cancel("b", "c")
		require.Equal(t, 1, g.Stats().Waiting)
		require.Equal(t, 1, g.Stats().InFlight)
		g.acquireAll("e")
		g.release("a")
		g.at(2 * time.Second)
		g.saw("0s a left", "1s b cancelled", "1s c cancelled", "1s d left")
		g.release("d")
		g.saw("2s e left")
	})
}

// A departure that is abandoned gives its slot and its seat on, to one who may
// then leave, and to no more than one.
func TestAnAbandonedDepartureGivesItsSeatOn(t *testing.T) {
	play(t, "10/s burst 9 depth 9 inflight 1", func(g *stage) {
		late := newLateCancel()
		g.acquireAll("a")
		g.acquireWith(late, "gone", 1)
		g.acquireAll("c", "d")
		late.end()
		g.at(time.Second)
		g.release("a")
		g.saw("0s a left", "1s gone cancelled", "1s c left")
		require.Equal(t, 1, g.Stats().InFlight)
		require.InDelta(t, 1, g.Stats().Level, 1e-9, "gone is off the bucket")
		g.release("gone")
		g.saw()
		g.release("c")
		g.saw("1s d left")
	})
	play(t, "10/s depth 9 inflight 1", func(g *stage) {
		late := newLateCancel()
		g.acquireAll("a")
		g.acquireWith(late, "gone", 1)
		late.end()
		g.at(time.Second)
		g.release("a")
		g.saw("0s a left", "1s gone cancelled")
		require.Zero(t, g.Stats().InFlight)
		g.acquireAll("c")
		g.saw("1s c left") // Slot and seat have gone back to where they came from.
	})
}

// The first of two that leave together is abandoned: its slot is gone, as the
// second left after it, but its seat is not.
func TestASeatComesBackWhereTheSlotCannot(t *testing.T) {
	play(t, "1/s depth 9 inflight 3", func(g *stage) {
		late := newLateCancel()
		g.acquireAll("a")
		g.acquireWith(late, "gone", 1)
		g.acquireAll("c")
		late.end()
		g.set("1/s burst 3 depth 9 inflight 3")
		g.saw("0s a left", "0s gone cancelled", "0s c left")
		require.InDelta(t, 3, g.Stats().Level, 1e-9)
		require.Equal(t, 2, g.Stats().InFlight)
	})
}

// One that gives up as its slot comes has its seat until it is asked, and that
// may take long: the head behind it could not leave meanwhile, and is not late.
func TestARequestThatWaitedForAnAbandonedSeatIsNotLate(t *testing.T) {
	play(t, "10/s depth 9 inflight 1", func(g *stage) {
		g.acquireAll("a")
		g.acquireWith(&meddling{Context: context.Background(), meddle: func() { time.Sleep(time.Second) }}, "gone", 1)
		g.acquireAll("c", "d", "e")
		g.at(time.Second)
		g.release("a") // gone has its slot now, and says after a second that it has left.
		g.at(1500 * ms)
		require.Equal(t, 1, g.Stats().InFlight)
		g.at(2 * time.Second)
		g.saw("0s a left", "2s gone cancelled", "2s c left")
		g.release("c")
		g.at(2100 * ms)
		g.release("d")
		g.at(3 * time.Second)
		g.saw("2.1s d left", "2.2s e left") // Nothing is made up,
		require.Zero(t, g.Stats().Missed)   // and nothing missed.
	})
}

// A seat that comes back does not move the schedule of a line that was not
// waiting for one: 7/s is exact to the nanosecond, late cancels or not.
func TestSeatsThatComeBackDoNotShiftTheSchedule(t *testing.T) {
	play(t, "7/s depth 99 inflight 99", func(g *stage) {
		for range 15 {
			late := newLateCancel()
			g.acquireWith(late, "gone", 1)
			late.end()
			g.acquireAll("x")
		}
		g.at(time.Minute)
		require.Contains(t, g.log, "2s x left", "the fifteenth")
	})
}

// Who could not leave for want of a seat is not late: nothing is missed, and
// nothing is made up.
func TestTimeBlockedIsNotLateness(t *testing.T) {
	play(t, "10/s depth 9 inflight 1", func(g *stage) {
		g.acquireAll("a", "b", "c", "d", "e")
		g.at(time.Second)
		g.set("10/s depth 9 inflight 9")
		g.at(2 * time.Second)
		g.saw("0s a left", "1s b left", "1.1s c left", "1.2s d left", "1.3s e left")
		require.Zero(t, g.Stats().Missed)
	})
	play(t, "10/s burst 2 depth 9 inflight 2", func(g *stage) {
		g.acquireAll("a", "b", "c", "d", "e")
		g.at(time.Second)
		g.release("a", "b")
		g.at(2 * time.Second)
		g.saw("0s a left", "0s b left", "1s c left", "1s d left") // As from a bucket at rest.
		require.InDelta(t, 0, g.Stats().Level, 1e-9)
		g.release("c")
		g.saw("2s e left")
		require.Zero(t, g.Stats().Missed)
	})
}

func TestCloseRefusesThoseWhoWaitForASeat(t *testing.T) {
	play(t, "10/s depth 9 inflight 1", func(g *stage) {
		g.acquireAll("a", "b", "c")
		g.at(time.Second)
		require.NoError(t, g.Close())
		g.saw("0s a left", "1s b closed, retry 0s", "1s c closed, retry 0s")
		g.release("a")
		require.Zero(t, g.Stats().InFlight)
		require.Zero(t, g.Stats().Waiting)
	})
}

// Shutdown waits for the line, which waits for seats, but not for those who
// are upstream.
func TestShutdownWaitsForThoseWhoWaitForASeat(t *testing.T) {
	play(t, "10/s depth 9 inflight 1", func(g *stage) {
		g.acquireAll("a", "b")
		go g.shutDown()
		g.at(time.Second)
		g.saw("0s a left")
		g.release("a")
		g.saw("1s b left", "1s shut down: <nil>")
		g.release("b")
		g.acquireAll("c")
		g.saw("1s c closed, retry 0s")
	})
}
