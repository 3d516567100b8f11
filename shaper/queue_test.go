package shaper

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/exact"
)

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
