package shaper

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/realtime"
)

// What the shards of a Group have in common, from inside.

// requireSharesAddUp compares the counts of all shards together with the contents of each of them.
// A plan is in one shard only, and the lock of the shard guards the plan's count of users.
func requireSharesAddUp(t *testing.T, g *Group[float64]) {
	t.Helper()
	own, unlimited, overridden, shared := 0, 0, 0, 0
	shardOf := make(map[*plan]*keyShard[float64])
	for _, s := range g.all {
		s.lockAndAdvance()
		users := make(map[*plan]int)
		for _, kf := range s.table.Entries() {
			users[kf.Value.givenPlan()]++
			if kf.Light {
				unlimited++
			} else {
				own++
			}
		}
		if s == g.overflow {
			for p, ring := range g.rings.All() {
				users[p] += len(ring)
				shared += len(ring)
			}
		}
		for p := range s.plans.of.Values() {
			l := p.limits
			require.Same(t, p, s.plans.get(l))
			require.EqualValues(t, users[p], p.users, "%+v", l)
			require.True(t, p.users > 0 || p == s.plans.unused, "nobody will ever delete the plan of %+v", l)
			require.Nil(t, shardOf[p], "the plan of %+v is in two shards", l)
			shardOf[p] = s
			delete(users, p)
		}
		require.Empty(t, users, "plans that are in no shard")
		overridden += s.overrides.Len()
		s.unlockAndArm()
	}
	require.EqualValues(t, own, g.counts.Heavy.Load())
	require.EqualValues(t, unlimited, g.counts.Light.Load())
	require.EqualValues(t, overridden, g.overridden.Load())
	require.EqualValues(t, shared, g.rings.Len())
	require.LessOrEqual(t, own, int(g.maxKeys))
	require.LessOrEqual(t, unlimited, int(g.maxKeys))
}

// Whatever keys meet, no shard loses count of its contents, and no plan of Limits is kept for
// nobody or has users in two shards, whose locks do not guard each other's counts.
func TestTheShardsOfAGroupAddUp(t *testing.T) {
	limits := []Limits{
		{Rate: 1, Depth: 2}, {Rate: 5, Burst: 3, Depth: 1}, {Rate: rate.Inf}, {Rate: rate.Inf, Depth: 1},
		{Rate: 20, Depth: 3, InFlight: 1}, {Rate: 0.5, Burst: 2}, {Rate: rate.Inf, Depth: 2},
	}
	shared, full := 0, 0
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 18))
			turn := 0
			g, err := NewGroup(func(key float64) (Limits, error) {
				if math.IsNaN(key) {
					key = 0
				}
				return limits[(turn+int(key))%len(limits)], nil
			}, WithMaxKeys(1+r.IntN(3)))
			require.NoError(t, err)
			for range 150 {
				key := float64(r.IntN(9))
				if key == 8 {
					key = math.NaN()
				}
				l, cost, span := limits[r.IntN(len(limits))], 1+r.IntN(2), time.Duration(r.Int64N(int64(time.Second)))
				switch r.IntN(10) {
				case 0, 1:
					g.AllowN(key, cost)
				case 2, 3:
					go func() {
						ctx, cancel := context.WithTimeout(context.Background(), span)
						defer cancel()
						release, _ := g.Acquire(ctx, key, cost)
						time.Sleep(span / 4)
						release()
					}()
				case 4:
					g.Limiter(key).Hold(span)
				case 5:
					g.Limiter(key).Hold(0)
				case 6:
					_ = g.SetLimits(key, l)
				case 7:
					_ = g.ResetLimits(key)
				case 8:
					turn++
					g.Reload()
				default:
					time.Sleep(span)
				}
				synctest.Wait()
				requireSharesAddUp(t, g)
				shared += int(g.rings.Len())
				if g.tableFull() {
					full++
				}
			}
			time.Sleep(time.Minute)
			requireSharesAddUp(t, g)
			require.Zero(t, g.counts.Heavy.Load()+g.counts.Light.Load())
			require.Zero(t, g.rings.Len())
			g.Allow(1)
			g.Limiter(2).Hold(time.Hour)
			require.NoError(t, g.Close())
			requireSharesAddUp(t, g)
			require.Zero(t, g.counts.Heavy.Load()+g.counts.Light.Load())
		})
	}
	require.Greater(t, shared, 200, "the scripts are too tame")
	require.Greater(t, full, 200, "the scripts are too tame")
}

// A key that gets no bucket, as there is no plan for it any more, takes no room.
func TestAKeyThatGetsNoBucketTakesNoRoom(t *testing.T) {
	g, err := NewGroup(func(float64) (Limits, error) { return Limits{Rate: 1}, nil }, WithMaxKeys(1))
	require.NoError(t, err)
	s := g.shardOf(7)
	for _, l := range []Limits{{Rate: 1}, {Rate: rate.Inf}} {
		g.overflow.lockAndAdvance()
		_, kf, err := (&limitsLookup[float64]{s: s, key: 7, limits: l, known: true, hasOverflow: true}).insertLocked(s.lockAndAdvance())
		s.unlockAndArm()
		g.overflow.unlockAndArm()
		require.NoError(t, err)
		require.Nil(t, kf)
		requireSharesAddUp(t, g)
	}
}

// The Stats of a Group are the sum over all its shards, the shard of the shared buckets included.
func TestTheStatsOfAGroupAreThoseOfAllShards(t *testing.T) {
	g, err := NewGroup(func(int) (Limits, error) { return Limits{Rate: 1}, nil })
	require.NoError(t, err)
	want := GroupStats{}
	for i, s := range g.all {
		n := uint64(1) << i
		*s.totals = totals{departed: n, abandoned: n, wait: int64(n), missed: float64(n), refused: refusals{n, n, n, n, n}}
		s.overflowed, s.limitErrors = n, n
		want.Departed += n
	}
	sum := want.Departed
	want.Abandoned, want.TotalWait, want.Missed, want.Overflowed, want.LimitErrors = sum, time.Duration(sum), float64(sum), sum, sum
	want.QueueFull, want.TooLate, want.TooCostly, want.Closed, want.Unavailable, want.Refused = sum, sum, sum, sum, sum, 5*sum
	require.Equal(t, want, g.Stats())
}

// keysIn returns a key of each of two shards: of the first one, and of the last one that keys
// have of their own.
func keysIn(g *Group[int]) (first, last int) {
	for g.shardOf(first) != g.shards[0] {
		first++
	}
	for g.shardOf(last) != g.shards[len(g.shards)-1] {
		last++
	}
	return first, last
}

// A call that waits for the lock of the shared buckets has no other lock meanwhile.
func TestACallThatSharesDelaysNoKeyWithABucket(t *testing.T) {
	own, sharing := 0, 1
	asked := make(chan bool, 1) // for the Limits of the key that shares, which comes before any lock of overflow
	g, err := NewGroup(func(key int) (Limits, error) {
		if key == sharing {
			asked <- true
		}
		return Limits{Rate: 1, Burst: 9}, nil
	}, WithMaxKeys(1))
	require.NoError(t, err)
	for g.shardOf(sharing) != g.shardOf(own) {
		sharing++
	}
	require.True(t, g.Allow(own))
	g.overflow.mu.Lock()
	shared := make(chan bool, 1)
	go func() { shared <- g.Allow(sharing) }()
	realtime.Next(t, asked)
	time.Sleep(10 * time.Millisecond) // It comes as far as it can.
	allowed := make(chan bool, 1)
	go func() { allowed <- g.Allow(own) }()
	select {
	case ok := <-allowed:
		require.True(t, ok)
	case <-time.After(time.Minute):
		t.Error("a call of a key with a bucket waits for one that shares")
	}
	require.Empty(t, shared)
	g.overflow.mu.Unlock()
	require.True(t, realtime.Next(t, shared))
}

// The ticker takes no lock of a shard whose next head is not to leave yet. So a line leaves
// however busy the other shards are.
func TestALineLeavesWhileAnotherShardIsLocked(t *testing.T) {
	g, err := NewGroup(func(int) (Limits, error) { return Limits{Rate: 5, Depth: 1}, nil })
	require.NoError(t, err)
	defer g.Close()
	first, last := keysIn(g)
	g.Limiter(last).Hold(time.Hour)
	startsToWait(t, g, last)
	// It looks at all shards when it starts.
	realtime.Until(t, func() bool { return g.ticker.armedAt() >= int64(time.Minute) }, "the ticker sleeps")
	locked, s := g.shardOf(last), g.shardOf(first)
	locked.mu.Lock()
	unlock := sync.OnceFunc(locked.mu.Unlock)
	defer unlock() // Close needs it.
	var ended <-chan error
	realtime.Until(t, func() bool { // On a busy machine it may have left too soon.
		g.Allow(first)
		ended = startsToWait(t, g, first)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waiting != 1 {
			return false
		}
		s.sweepTimer.Stop() // A sweep would hand out the slot, too.
		return true
	}, "each request leaves before anybody sees it wait")
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Error("the ticker waits for the lock of a shard in which nothing is due")
	}
	unlock()
}

// armedAt returns for when the ticker has set its alarm.
func (t *ticker) armedAt() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.armed
}

// startsToWait lets a request wait, and returns how that ends. It returns when the request waits
// or has left.
func startsToWait(t *testing.T, g *Group[int], key int) <-chan error {
	t.Helper()
	s := g.shardOf(key)
	waiting := func() int32 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.waiting
	}
	before := waiting()
	ended := make(chan error, 1)
	go func() { ended <- g.Wait(context.Background(), key) }()
	realtime.Until(t, func() bool { return waiting() != before || len(ended) > 0 }, "a request waits or leaves")
	return ended
}

// While a Shutdown begins in one shard after the other, the line of one may empty before the next
// has been told. That ends no line of the others.
func TestAShutdownThatBeginsEndsNoLine(t *testing.T) {
	g, err := NewGroup(func(int) (Limits, error) { return Limits{Rate: 20, Depth: 1}, nil })
	require.NoError(t, err)
	first, last := keysIn(g)
	require.True(t, g.Allow(first))
	require.True(t, g.Allow(last))
	g.Limiter(first).Hold(time.Hour)
	g.Limiter(last).Hold(time.Hour)
	firstEnded, lastEnded := startsToWait(t, g, first), startsToWait(t, g, last)
	told, untold := g.shardOf(first), g.shardOf(last)
	untold.mu.Lock()
	down := make(chan error, 1)
	go func() { down <- g.Shutdown(context.Background()) }()
	realtime.Until(t, func() bool {
		told.mu.Lock()
		defer told.mu.Unlock()
		return told.phase != open
	}, "the first shard is told of the Shutdown")
	g.Limiter(first).Hold(0)
	require.NoError(t, realtime.Next(t, firstEnded))
	require.Equal(t, open, untold.phase)
	untold.mu.Unlock()
	g.Limiter(last).Hold(0)
	require.NoError(t, realtime.Next(t, lastEnded))
	require.NoError(t, realtime.Next(t, down))
}

// beginsDrain reports whether a Shutdown has begun.
func beginsDrain[K comparable](g *Group[K]) bool {
	g.drain.mu.Lock()
	defer g.drain.mu.Unlock()
	return g.drain.awaits > 0
}

// A Shutdown that begins is no line that another one has to wait for.
func TestTheShutdownsOfAGroupWithoutLinesDoNotWaitForEachOther(t *testing.T) {
	g, err := NewGroup(func(int) (Limits, error) { return Limits{Rate: 1}, nil })
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	errs := make(chan error, 4)
	g.overflow.mu.Lock()
	for range cap(errs) {
		go func() { errs <- g.Shutdown(ctx) }()
	}
	realtime.Until(t, func() bool { return beginsDrain(g) }, "a Shutdown begins")
	time.Sleep(10 * time.Millisecond) // One has begun, and the others come as far as they can.
	g.overflow.mu.Unlock()
	for range cap(errs) {
		require.NoError(t, realtime.Next(t, errs))
	}
}

// A drain that has ended closes the shards in a goroutine, which Close waits for.
func TestCloseOfAGroupWaitsForTheEndOfADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := NewGroup(func(int) (Limits, error) { return Limits{Rate: 1}, nil })
		require.NoError(t, err)
		var goes, closed bool
		goOn := make(chan struct{})
		g.drain.closing.Go(func() { <-goOn; goes = true })
		go func() {
			_ = g.Close()
			closed = goes
		}()
		synctest.Wait()
		close(goOn)
		synctest.Wait()
		require.True(t, closed)
	})
}
