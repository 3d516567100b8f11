package shaper

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
)

// In virtual time nothing is late. So this file tests what lateness does from inside the
// package, on the bucket itself. It also tests the limits of the exact arithmetic.

const msec = int64(time.Millisecond)

// A lineless is a bucket with as much of a line as these tests need: the instant since
// which its head may leave.
type lineless struct {
	bucket
	since exact.Nanos
}

func newLineless(l Limits) lineless { return lineless{bucket: newBucket(l)} }

func newBucket(l Limits) bucket { return bucket{plan: planOf(l), cold: new(cold)} }

func (b *lineless) release(now, n int64) (left bool) {
	slot, left := b.bucket.letLeave(b.since, now, n)
	if left {
		b.since = slot
	}
	return left
}

// release lets a line of that many requests of cost 1 leave at an instant, as far as they
// may, and returns how many have left.
func release(b *lineless, line int, now int64) (left int) {
	for left < line && b.release(now, 1) {
		left++
	}
	return left
}

func TestLatenessWithinSlackDoesNotAddUp(t *testing.T) {
	b := newLineless(Limits{Rate: 100, Slack: 20 * time.Millisecond})
	b.pass(0, 1)
	// The wake-ups are at 15, 25 and 38 ms instead of at 10, 20 and 30. The fourth
	// request still leaves at 40 ms.
	require.Equal(t, 1, release(&b, 9, 15*msec))
	require.Equal(t, 1, release(&b, 9, 25*msec))
	require.Equal(t, 1, release(&b, 9, 38*msec))
	require.Equal(t, 0, release(&b, 9, 40*msec-1))
	require.Equal(t, 1, release(&b, 9, 40*msec))
	require.Zero(t, b.missed)
}

func TestLatenessBeyondSlackIsGoneAndCounted(t *testing.T) {
	b := newLineless(Limits{Rate: 100, Slack: 20 * time.Millisecond})
	b.pass(0, 1)
	// The slot was due at 10 ms and is noticed at 100: the schedule goes on from 80 ms.
	require.Equal(t, 3, release(&b, 9, 100*msec))
	require.InDelta(t, 7, b.missed, 1e-9)
	require.Equal(t, 0, release(&b, 9, 110*msec-1))
	require.Equal(t, 1, release(&b, 9, 110*msec))
	require.InDelta(t, 7, b.missed, 1e-9)
}

// A level above 0 must not leak during the time that is lost, or the loss would be made up
// in a burst.
func TestLatenessBeyondSlackEarnsNoBurst(t *testing.T) {
	b := newLineless(Limits{Rate: 100, Burst: 10, Slack: 20 * time.Millisecond})
	b.pass(0, 10)
	for i := int64(1); i <= 5; i++ { // each stall takes 200 ms, of which 180 are lost
		require.Equal(t, 3, release(&b, 99, i*200*msec+10*msec), "stall %d", i)
	}
}

// Whenever the wake-ups come, the costs that have left and those that were missed add up
// to Rate × time, and no window holds more than guarantee 1 allows.
func TestLatenessKeepsThePaceAndTheAccount(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		l := Limits{Rate: []rate.Limit{7, 100, 1e4, 1.0 / 3}[r.IntN(4)], Burst: 1 + r.IntN(6), Slack: time.Duration(1 + r.Int64N(int64(50*time.Millisecond)))}
		b := newLineless(l)
		b.pass(0, int64(l.Burst))
		interval := float64(time.Second) / float64(l.Rate)
		var now, cost int64
		level, last := float64(l.Burst), int64(0) // of a second bucket, which holds Burst + Rate × Slack
		room := float64(l.Burst) + float64(l.Rate)*l.Slack.Seconds()
		for range 300 {
			now += r.Int64N(int64(3*interval)+2*int64(l.Slack)) + 1
			for n := 1 + r.Int64N(int64(l.Burst)); b.release(now, n); n = 1 + r.Int64N(int64(l.Burst)) {
				cost += n
				level = max(0, level-float64(now-last)/interval) + float64(n)
				last = now
				if level > room+1e-6 { // Asking require each time takes most of the time.
					require.LessOrEqual(t, level, room+1e-6)
				}
			}
			earned := float64(now) / interval
			require.InDelta(t, earned, float64(cost)+b.missed, room+float64(l.Burst)+1e-6)
		}
	}
}

// For a time all wake-ups of the ticker are late, then all are punctual, and now and then the line is empty, so that
// Burst and all of Slack meet in one window. Every closed window that begins at a departure keeps the promise, and
// some uses nearly all of it.
func TestNoWindowHoldsMoreThanItPromisesHoweverLate(t *testing.T) {
	t.Parallel()
	const departures = 100_000
	for text, promise := range map[string]struct {
		n      int64
		length time.Duration
	}{
		"100 in 1min burst 20":           {100, time.Minute},
		"300 in 3s":                      {300, 3 * time.Second},
		"500 in 1s burst 30":             {500, time.Second},
		"100 in 1s burst 10 slack 300ms": {100, time.Second},
	} {
		l, err := ParseLimits(text)
		require.NoError(t, err)
		for _, mostCost := range []int64{1, l.burst()} {
			b, r := newLineless(l), rand.New(rand.NewPCG(38, uint64(mostCost)))
			var at, costs []int64
			var now, in, most int64
			late := false
			for cost := 1 + r.Int64N(mostCost); len(at) < departures; {
				now = max(now, b.slot(b.since, cost).Ceil())
				if late = late != (r.IntN(1000) == 0); late {
					now += r.Int64N(2*l.slack() + 1)
				}
				if r.IntN(1000) == 0 { // The line was empty until now.
					now += r.Int64N(2 * int64(promise.length))
					b.idleUntil(now)
					b.since = exact.At(now)
				}
				for b.release(now, cost) {
					at, costs, cost = append(at, now), append(costs, cost), 1+r.Int64N(mostCost)
				}
			}
			end := 0
			for i, first := range at {
				for ; end < len(at) && at[end] <= first+int64(promise.length); end++ {
					in += costs[end]
				}
				most = max(most, in)
				in -= costs[i]
			}
			require.LessOrEqual(t, most, promise.n, "%s, costs up to %d", text, mostCost)
			require.GreaterOrEqual(t, most, promise.n*9/10, "%s, costs up to %d: much less leaves than may", text, mostCost)
		}
	}
}

// A level that takes longer to drain than the clock can count is kept exactly, and can be
// given back.
func TestALevelOfCenturiesIsKept(t *testing.T) {
	b := newLineless(Limits{Rate: 7})
	b.pass(0, 1)
	b.pass(0, int64(horizon)) // 142 million years at 7/s
	require.InEpsilon(t, float64(horizon), b.level(0), 1e-12)
	require.Equal(t, time.Duration(exact.Forever), b.wait(0, 0, 1))
	b.change(planOf(Limits{Rate: 1e9}), 0)
	require.Equal(t, horizon+1, b.wait(0, 0, 1))
	b.change(planOf(Limits{Rate: 7}), 0)
	b.giveBack(2, int64(horizon))
	require.InDelta(t, 1, b.level(0), 1e-12)
	b.giveBack(1, 1)
	require.Zero(t, b.level(0))
}

// step moves the clock of a shaper ahead by d, as if the shaper had been made d earlier.
func (s *Shaper) step(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch = s.epoch.Add(-d)
}

func TestAClockThatStepsGivesNoLicence(t *testing.T) {
	for _, back := range []time.Duration{1, time.Second, time.Hour, 250 * 365 * 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s, err := New(Limits{Rate: 1, Depth: 9})
			require.NoError(t, err)
			time.Sleep(time.Minute)
			require.True(t, s.Allow())
			s.step(-back)
			require.False(t, s.Allow(), "a clock that steps back stands still")
			wait, err := s.Forecast(1)
			require.NoError(t, err)
			require.Equal(t, time.Second, wait)
			s.step(back)
			s.step(1000 * time.Hour)
			require.True(t, s.Allow())
			require.False(t, s.Allow(), "one that steps on earns no more than Burst")
		})
	}
}

// When its clock has reached the largest instant, a shaper neither panics nor lets more
// than its Burst leave.
func TestTheLastInstantOfTheClockIsNoLicence(t *testing.T) {
	s, err := New(Limits{Rate: 1, Depth: 9})
	require.NoError(t, err)
	for range 3 {
		s.step(exact.Forever)
		s.Allow()
		require.False(t, s.Allow())
		_, err = s.Forecast(1)
		require.NoError(t, err)
	}
}

// A bubble that ends finds goroutines that were left behind, but not timers. This test
// looks for timers.
func TestNoTimerIsLeftWhenTheLineEmptiesEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Limits{Rate: 1.0 / 3600, Depth: 9})
		require.NoError(t, err)
		require.True(t, s.Allow())
		ctx, cancel := context.WithCancel(context.Background())
		go func() { _ = s.Wait(ctx) }()
		synctest.Wait()
		running := func() bool {
			s.ticker.mu.Lock()
			defer s.ticker.mu.Unlock()
			return s.ticker.running
		}
		require.True(t, running())
		cancel()
		synctest.Wait()
		require.False(t, running())
		require.False(t, s.ticker.timer.Disarm(), "it would have fired in an hour")
	})
}

func TestAGreatBurstLeavesFewWaitersBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Limits{Rate: 1e6, Depth: 3 * maxSpares})
		require.NoError(t, err)
		for range 3 * maxSpares {
			go func() { _ = s.Wait(context.Background()) }()
		}
		synctest.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		require.Equal(t, maxSpares, int(s.waiters.len))
		count := 0
		for w := s.waiters.head; w != nil; w = w.next {
			count++
			require.Empty(t, w.ready)
		}
		require.Equal(t, maxSpares, count)
	})
}
