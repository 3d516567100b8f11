package shaper_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// This file holds what Hold promises.

// What Hold does to those in line, to newcomers, to seats, and at the ends of each is compared with the
// model in TestModel. This is the timeline by which one understands it.
func TestNobodyLeavesDuringAHold(t *testing.T) {
	play(t, "10/s depth 9", func(g *stage) {
		g.arriveAll("a", "b")
		g.at(50 * ms)
		g.Hold(time.Second)
		g.arriveAll("c")
		require.False(t, g.Allow())
		g.at(time.Minute)
		g.saw("0s a left", "1.05s b left", "1.15s c left")
		require.Zero(t, g.Stats().Missed, "who could not leave is not late")
	})
}

// An end that is centuries away would never come in the life of a process.
func TestAHoldReachesNoFurtherThanTheHorizon(t *testing.T) {
	const year = 365 * 24 * time.Hour
	play(t, "10/s depth 9", func(g *stage) {
		g.Hold(math.MaxInt64)
		require.Equal(t, g.start.Add(year), g.Stats().HeldUntil)
		g.arriveAll("a", "b")
		g.at(year)
		g.saw("0s b late, retry 100ms", "8760h0m0s a left")
	})
}

// The slot of a departure that is abandoned is the next waiter's, but not before
// a hold that has begun in between is over.
func TestASlotIsNotHandedOnDuringAHold(t *testing.T) {
	play(t, "10/s depth 9", func(g *stage) {
		g.arriveAll("a")
		g.arriveWith(&meddling{Context: context.Background(), meddle: func() { g.Hold(time.Second) }}, "gone", 1)
		g.arriveAll("b")
		g.at(time.Minute)
		g.saw("0s a left", "100ms gone cancelled", "1.1s b left")
	})
}

// meddling is the context of a call whose last question, asked when it has its
// slot, does something and is then answered by the end of the context.
type meddling struct {
	context.Context
	meddle func()
	asked  int
}

func (c *meddling) Err() error {
	if c.asked++; c.asked == 1 {
		return nil // at entry
	}
	c.meddle()
	return context.Canceled
}

func TestHoldMayBeCalledFromAHook(t *testing.T) {
	var g *stage
	trace := &shaper.Trace{Departed: func(context.Context, shaper.Event) { g.Hold(time.Second) }}
	play(t, "10/s depth 9", func(stage *stage) {
		g = stage
		g.arriveAll("a", "b", "c")
		g.at(time.Minute)
		g.saw("0s a left", "1s b left", "2s c left")
	}, shaper.WithTrace(trace))
}
