package alarm

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
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
	// If one wake-up in twenty is later, the lead stays. If one in five is, it follows.
	require.InDelta(t, 20*us, settle(func(i int) int64 {
		if i%20 == 0 {
			return 45 * us
		}
		return 20 * us
	}), float64(2*us))
	require.InDelta(t, 40*us, settle(func(i int) int64 {
		if i%5 == 0 {
			return 40 * us
		}
		return 20 * us
	}), float64(2*us))
	// Where that would let the others wait for too long, it stays.
	require.InDelta(t, 20*us+int64(awaitUpTo), settle(func(i int) int64 {
		if i%5 == 0 {
			return 90 * us
		}
		return 20 * us
	}), float64(2*us))
	require.Equal(t, int64(LongestLead), settle(func(int) int64 { return 500 * us }), "it is bounded")
	require.Zero(t, settle(func(int) int64 { return 0 }), "as a wake-up that is never late needs none")
	l = Lead{span: 7, middle: 7}
	l.Woke(0, -1)
	require.Equal(t, 7*int64(step), l.Before(soon, 0), "who was woken for something else learns nothing")

	require.Equal(t, 7*int64(step), l.Before(int64(leadUpTo), 0))
	require.Zero(t, l.Before(int64(leadUpTo)+1, 0), "after a longer sleep there is none")
}

// A spacing is even if the ticker was in time for both of its ends. So the share of the
// wake-ups that are in time has to be well above a half, however long waking takes.
func TestMostSpacingsAreEvenHoweverLongWakingTakes(t *testing.T) {
	const interval = int64(100 * time.Microsecond)
	for _, c := range []struct{ least, more int64 }{{0, 5}, {30, 10}, {50, 10}, {50, 30}, {70, 25}} {
		random := rand.New(rand.NewPCG(1, 2))
		var l Lead
		var left, errors []int64
		for i := range int64(20_000) {
			slot := i * interval
			wake := slot - l.Before(slot, slot-interval)
			late := c.least*us + int64(random.Float64()*float64(c.more*us))
			l.Woke(wake+late, late)
			left = append(left, max(slot, wake+late))
		}
		for i := range left[10_000:] {
			errors = append(errors, max(left[9_999+i]+interval-left[10_000+i], left[10_000+i]-left[9_999+i]-interval))
		}
		slices.Sort(errors)
		require.Less(t, errors[len(errors)/2], us, "waking takes from %d to %d µs", c.least, c.least+c.more)
	}
}

// The yield of an idle process wakes the thread that is needed when a request leaves. If
// that thread were woken only then, the request would be late. On one processor, the
// effect of the yield shows in who runs.
func TestAThreadIsWokenBeforeTheSlotComes(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	epoch := time.Now()
	var ran atomic.Bool
	for range 2 { // The runtime's scheduler takes the goroutine that has yielded first, once in 61 times.
		var l Lead
		go ran.Store(true)
		idle := l.Await(int64(time.Since(epoch))+int64(lookUpTo)/2, epoch)
		if l.paused == 0 && l.busy == 0 { // the machine did not stall
			require.True(t, idle)
		}
	}
	require.True(t, ran.Load())
}

// Where others always have work, a yield before each slot would make each slot late, and one
// after it the next.
func TestABusyProcessIsSeldomYieldedToAtASlot(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	epoch := time.Now()
	for name, slot := range map[string]func(*Lead){
		"before": func(l *Lead) { l.Await(int64(time.Since(epoch))+us, epoch) },
		"after":  func(l *Lead) { l.StepAside(epoch) },
	} {
		var turns atomic.Int64
		var over atomic.Bool
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for !over.Load() {
				turns.Add(1)
				for began := time.Now(); time.Since(began) < 2*slowYield; {
					_ = began
				}
				runtime.Gosched()
			}
		}()
		var l Lead
		const slots = 1_000
		for range slots {
			slot(&l)
		}
		got := turns.Load()
		over.Store(true)
		<-ended
		require.Positive(t, got, name)
		require.Less(t, got, int64(slots/4), "%s: at few slots, or a little more often, as the runtime takes the processor away", name)
	}
}

// One late wake-up suspends waking early for a short time. A process that remains busy
// suspends it for longer and longer.
func TestALateWakeUpSuspendsTheLead(t *testing.T) {
	l := Lead{span: 240, middle: 240}
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
	require.Equal(t, int16(240), l.span, "what a busy process does is nothing to learn from")
}

// Yield and Await return when the slot has come, or after a yield that came back late.
func TestYieldingEnds(t *testing.T) {
	epoch := time.Now()
	await := func(l *Lead, until int64, epoch time.Time) { l.Await(until, epoch) }
	for _, pass := range []func(*Lead, int64, time.Time){(*Lead).Yield, await} {
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
