package alarm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const us = int64(time.Microsecond)

// The lead grows until nearly all wake-ups are early enough, and no further.
func TestTheLeadFollowsTheWakeUps(t *testing.T) {
	const soon = int64(100 * time.Microsecond)
	var l Lead
	require.Zero(t, l.Before(soon, 0), "nothing is known yet")

	settle := func(late func(i int) int64) int64 {
		for i := range 10_000 {
			l.Woke(0, late(i))
		}
		return l.Before(soon, 0)
	}
	// All wake-ups are equally late: the lead is at most a step above that.
	require.InDelta(t, 30*us, settle(func(int) int64 { return 30 * us }), float64(1*us))
	// If one wake-up in twenty is later, the lead stays. If one in three is, it follows.
	require.InDelta(t, 20*us, settle(func(i int) int64 {
		if i%20 == 0 {
			return 45 * us
		}
		return 20 * us
	}), float64(2*us))
	require.InDelta(t, 40*us, settle(func(i int) int64 {
		if i%3 == 0 {
			return 40 * us
		}
		return 20 * us
	}), float64(2*us))
	require.Equal(t, int64(LongestLead), settle(func(int) int64 { return 500 * us }), "it is bounded")
	require.Zero(t, settle(func(int) int64 { return 0 }), "as a wake-up that is never late needs none")
	l.span = 7
	l.Woke(0, -1)
	require.Equal(t, int64(7), l.Before(soon, 0), "who was woken for something else learns nothing")

	require.Equal(t, int64(7), l.Before(int64(leadUpTo), 0))
	require.Zero(t, l.Before(int64(leadUpTo)+1, 0), "after a longer sleep there is none")
}

// One late wake-up suspends waking early for a short time. A process that remains busy
// suspends it for longer and longer.
func TestALateWakeUpSuspendsTheLead(t *testing.T) {
	l := Lead{span: int32(30 * us)}
	now := int64(time.Hour)
	pause := func() time.Duration {
		l.Woke(now, int64(lateWake))
		began := now
		for l.Before(now, now) == 0 {
			now += int64(time.Millisecond)
		}
		return time.Duration(now - began)
	}
	require.Equal(t, shortestPause, pause())
	require.Equal(t, 2*shortestPause, pause())
	require.Equal(t, 4*shortestPause, pause())
	for range 10 {
		pause()
	}
	require.Equal(t, longestPause, pause())
	now += int64(longestPause)
	require.Equal(t, shortestPause, pause(), "the quiet since then has been as long as the last pause")
	require.Equal(t, int32(30*us), l.span, "what a busy process does is nothing to learn from")
}

// Yield and Await return when the slot has come, or after a yield that came back late.
func TestYieldingEnds(t *testing.T) {
	epoch := time.Now()
	for _, pass := range []func(*Lead, int64, time.Time){(*Lead).Yield, (*Lead).Await} {
		for range 1000 {
			var l Lead
			until := int64(time.Since(epoch)) + int64(LongestLead)
			pass(&l, until, epoch)
			if l.paused == 0 {
				require.GreaterOrEqual(t, int64(time.Since(epoch)), until)
			}
		}
	}
	var l Lead
	l.Yield(0, epoch) // for a slot that has passed there is one yield
}
