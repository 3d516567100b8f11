package shaper

import (
	"context"
	"math/rand/v2"
	"slices"
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

// This file tests the line by itself: whatever waiters enter, leave or give up, and wherever in the
// line they are, it must hold the same waiters as a plain slice.

// A slowQueue is the obvious implementation of a queue: a slice of the waiters in line.
// The first of them, as many as retries says, entered as retries.
type slowQueue struct {
	line    []*waiter
	costs   []int64 // of those in line, which a waiter can't change by mistake
	retries int
}

func (q *slowQueue) insert(at int, w *waiter, n int64) {
	q.line, q.costs = slices.Insert(q.line, at, w), slices.Insert(q.costs, at, n)
}

func (q *slowQueue) delete(at int) {
	q.line, q.costs = slices.Delete(q.line, at, at+1), slices.Delete(q.costs, at, at+1)
	if at < q.retries {
		q.retries--
	}
}

// first returns the cost of the first k in line, saturating.
func (q *slowQueue) first(k int) (cost int64) {
	for _, n := range q.costs[:k] {
		cost = exact.Sum(cost, n)
	}
	return cost
}

func TestTheQueueIsWhatASliceWouldBe(t *testing.T) {
	t.Parallel()
	t.Run("small costs", func(t *testing.T) {
		compareQueues(t, 1, func(r *rand.Rand) int64 { return 1 + r.Int64N(9) })
	})
	t.Run("costs of which a few fill a word", func(t *testing.T) {
		compareQueues(t, 2, func(r *rand.Rand) int64 {
			return []int64{1, 1 + r.Int64N(exact.Forever), exact.Forever}[r.IntN(3)]
		})
	})
}

func compareQueues(t *testing.T, seed uint64, cost func(*rand.Rand) int64) {
	t.Helper()
	r := rand.New(rand.NewPCG(6, seed))
	saturated := 0
	for range 25 {
		var fast queue
		var spare waiterPool
		var slow slowQueue
		longest := 1 + r.IntN(16) // short enough that the line is empty now and then
		for now := range int64(200) {
			n := cost(r)
			switch arrives := len(slow.line) < longest && r.IntN(2) == 0; {
			case arrives && r.IntN(2) == 0:
				w := spare.take(n, now)
				fast.enter(w, &request{kind: reentry})
				requireEntered(t, slow, w, n, now)
				slow.insert(slow.retries, w, n)
				slow.retries++
			case arrives:
				w := spare.take(n, now)
				fast.enter(w, &request{})
				requireEntered(t, slow, w, n, now)
				slow.insert(len(slow.line), w, n)
			case len(slow.line) > 0:
				at := r.IntN(len(slow.line))
				w := slow.line[at]
				slow.delete(at)
				how := []state{departed, refused, abandoned}[r.IntN(3)]
				fast.remove(w, how)
				require.Equal(t, how, w.state)
				require.EqualValues(t, len(slow.line), w.waiting)
				if r.IntN(4) > 0 { // else the goroutine of its call still has it
					spare.keep(w)
				}
			}
			requireSame(t, &slow, &fast)
			if fast.cost.total() == exact.Forever {
				saturated++
			}
		}
		for len(slow.line) > 0 { // from the head on, as Close removes them
			fast.remove(fast.head, refused)
			slow.delete(0)
			requireSame(t, &slow, &fast)
		}
		require.Zero(t, fast.cost, "what is in no line costs nothing")
		require.Zero(t, fast.cost.high)
	}
	t.Logf("saturated %d times", saturated)
	require.Equal(t, seed == 2, saturated > 0)
}

// requireEntered requires that a waiter that has just entered has the state of a new one,
// and is none of those in line already.
func requireEntered(t *testing.T, slow slowQueue, w *waiter, n, now int64) {
	t.Helper()
	require.False(t, slices.Contains(slow.line, w), "it is in line already")
	require.Equal(t, queued, w.state)
	require.Equal(t, n, w.cost)
	require.Equal(t, now, w.at)
	require.Empty(t, w.ready)
}

// requireSame compares all that a queue can be asked, and checks its links.
func requireSame(t *testing.T, slow *slowQueue, fast *queue) {
	t.Helper()
	require.Equal(t, len(slow.line), int(fast.len))
	at, before := fast.head, (*waiter)(nil)
	for i, w := range slow.line {
		// == compares the pointers; testify would compare the values behind them.
		require.True(t, at == w, "from the head, %d of %d", i+1, len(slow.line))
		require.True(t, w.prev == before, "towards the head, %d of %d", i+1, len(slow.line))
		at, before = w.next, w
	}
	require.True(t, at == nil, "there are more in line")
	require.True(t, fast.tail == before, "the tail is the last")

	last := (*waiter)(nil)
	if slow.retries > 0 {
		last = slow.line[slow.retries-1]
	}
	require.True(t, fast.lastReentry == last, "the last of the retries")
	for kind, first := range map[entryKind]int{reentry: slow.retries, newcomer: len(slow.line), allow: len(slow.line)} {
		n, cost := fast.before(&request{kind: kind}, nil)
		require.EqualValues(t, first, n)
		require.Equal(t, slow.first(first), cost)
	}
	next := fast.walk()
	for _, w := range slow.line {
		require.True(t, next() == w)
	}
	require.Nil(t, next())
	for k := 1; k <= len(slow.line); k++ {
		w, cost := fast.ahead(k)
		require.True(t, w == slow.line[k-1], "the %d-th of %d", k, len(slow.line))
		require.Equal(t, slow.first(k-1), cost)
	}
}

// This file tests the heap by itself: however lines, their buckets and their seats change,
// its first line must be one whose head leaves first, as a search of a plain slice finds it.

func TestTheNextDepartureIsTheLeastOfAll(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 2))
	plans := []*plan{
		planOf(Limits{Rate: 1, Depth: 9}), planOf(Limits{Rate: 7, Burst: 3, Depth: 9}),
		planOf(Limits{Rate: 1e9, Depth: 9, InFlight: 1}), planOf(Limits{Rate: rate.Inf, Depth: 9}),
	}
	for range 6 {
		var heap departures
		var spare waiterPool
		var flows []*flow
		for range 1 + r.IntN(30) {
			f := &flow{bucket: bucket{plan: plans[r.IntN(len(plans))]}}
			f.line = &line{flow: f, index: -1}
			flows = append(flows, f)
		}
		for now := range int64(300) {
			f := flows[r.IntN(len(flows))]
			ln := f.line
			switch r.IntN(8) {
			case 0, 1, 2:
				ln.push(spare.take(1+r.Int64N(5), now))
			case 3:
				if ln.head != nil {
					ln.remove([]*waiter{ln.head, ln.tail}[r.IntN(2)], abandoned)
				}
			case 4:
				f.bucket.empty = exact.At(r.Int64N(20) * msec)
			case 5:
				f.bucket.coldOrNew().hold = exact.At(r.Int64N(20) * msec)
			case 6:
				ln.seatsTaken = int32(r.IntN(2))
			case 7:
				for ln.head != nil {
					ln.remove(ln.head, refused)
				}
			}
			if ln.head != nil {
				ln.slot = f.headMayLeave()
			}
			heap.update(ln)
			requireHeap(t, heap, flows)
		}
	}
}

// requireHeap checks all that a heap is asked, the order of its elements and their indexes.
func requireHeap(t *testing.T, heap departures, flows []*flow) {
	t.Helper()
	waiting, least := 0, int64(exact.Forever)
	for _, f := range flows {
		if f.line.head == nil {
			require.EqualValues(t, -1, f.line.index, "nobody waits there")
			continue
		}
		waiting++
		least = min(least, f.headMayLeave())
		require.True(t, heap[f.line.index] == f.line)
		require.Equal(t, f.headMayLeave(), f.line.slot)
	}
	require.Len(t, heap, waiting)
	if waiting > 0 {
		require.Equal(t, least, heap[0].slot)
	}
	for i := range heap {
		require.LessOrEqual(t, heap[(i-1)/2*min(i, 1)].slot, heap[i].slot)
	}
	for _, rest := range heap[len(heap):cap(heap)] {
		require.Nil(t, rest, "what has been taken out is forgotten")
	}
}
