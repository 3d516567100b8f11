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

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper/internal/keyed"
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

// The overflow buckets of a Group from inside, where one can see which key has which.

// fullGroup returns a Group whose table is full, of the key -1. Any other key has the limits at the
// index key % len(of).
func fullGroup(t *testing.T, of []Limits) *Group[int] {
	t.Helper()
	g, err := NewGroup(func(key int) (Limits, error) {
		if key < 0 {
			return Limits{Rate: 1.0 / 86400, Burst: 365}, nil
		}
		return of[key%len(of)], nil
	}, WithMaxKeys(1))
	require.NoError(t, err)
	require.True(t, g.AllowN(-1, 365))
	return g
}

// use lets a call of cost 1 come, and returns the bucket that it found.
func use(t *testing.T, g *Group[int], key int) (kf *keyedFlow[int], allowed bool) {
	t.Helper()
	_, kf, dec := g.enter(key, &request{ctx: context.Background(), cost: 1, deadline: exact.Forever, kind: allow})
	return kf, dec.passed()
}

// Nobody finds a new bucket while the one that he has used is not drained, whatever
// has gone meanwhile of those in its way.
func TestAKeyKeepsItsOverflowBucket(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, seed))
			var of []Limits
			for i := range 6 {
				of = append(of, Limits{Rate: 1, Burst: []int{1, 2, 3, 10, 30, 60}[i]})
			}
			g := fullGroup(t, of)
			defer g.Close()
			has := map[int]*keyedFlow[int]{}
			kept, moved, refused, farthest := 0, 0, 0, int16(0)
			for range 20_000 {
				key := r.IntN(4000)
				kf, _ := use(t, g, key)
				before := has[key]
				has[key] = kf
				now := g.overflow.lockAndAdvance()
				stays := before != nil && before != kf && !before.Value.drained(now)
				g.overflow.unlockAndArm()
				switch {
				case stays:
					require.FailNow(t, "a key got a new bucket while its own was not drained", "key %d", key)
				case kf == nil:
					refused++
				case before == kf:
					kept++
				case before != nil:
					moved++
				}
				if kf != nil {
					require.Equal(t, of[key%len(of)], kf.Value.bucket.limits)
					farthest = max(farthest, kf.Reach)
				}
				if r.IntN(500) == 0 {
					time.Sleep(time.Duration(r.Int64N(int64(4 * time.Second))))
					synctest.Wait()
				}
			}
			require.Positive(t, kept)
			require.Positive(t, moved, "none has gone meanwhile")
			require.Positive(t, farthest, "none has had to go beyond its home")
			t.Logf("kept %d, moved %d, refused %d, reach %d", kept, moved, refused, farthest)
		})
	}
}

// There are 1,024 and no more, and whoever floods one rule leaves 64 of them for the
// others. Who finds none is refused. As they drain others come in their place.
func TestThereAreSoManyOverflowBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var of []Limits
		for i := range 1 + keyed.Spare + 1 {
			of = append(of, Limits{Rate: 1, Burst: 7 + i})
		}
		var told []Event
		g := fullGroup(t, of)
		for _, s := range g.all {
			s.hasHooks, s.trace.Refused = true, func(_ context.Context, e Event) { told = append(told, e) }
		}
		defer g.Close()
		buckets := func() (n int) {
			g.overflow.lockAndAdvance()
			defer g.overflow.unlockAndArm()
			for _, ring := range g.rings.All() {
				n += len(ring)
			}
			require.EqualValues(t, n, g.rings.Len())
			return n
		}
		for i := range 20_000 {
			kf, _ := use(t, g, i*len(of))
			require.NotNil(t, kf)
		}
		require.Equal(t, keyed.Homes, buckets())
		for key := 1; key <= keyed.Spare; key++ {
			require.True(t, g.Allow(key), "of rule %d", key)
		}
		require.Equal(t, keyed.MaxShared, buckets())
		before := g.Stats()
		require.Equal(t, 1, before.Keys)
		require.EqualValues(t, 20_000+keyed.Spare, before.Overflowed)

		late := len(of) - 1
		_, none := g.Limiter(late).Forecast(1)
		require.ErrorIs(t, none, ErrQueueFull)
		err := g.Wait(context.Background(), late)
		var refusal *RejectError
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, RejectError{Reason: ErrQueueFull, RetryAfter: 500 * time.Millisecond}, *refusal)
		require.False(t, g.Allow(late+len(of)))
		after := g.Stats()
		require.EqualValues(t, 20_002+keyed.Spare, after.Overflowed)
		require.EqualValues(t, before.QueueFull+2, after.QueueFull)
		require.Len(t, told, int(after.QueueFull), "the hook is told of these too")
		require.Equal(t, late+len(of), told[len(told)-1].Key)
		require.Equal(t, time.Now(), told[len(told)-1].At)

		g.Limiter(late).Hold(time.Minute) // There is no room for a bucket to hold either.
		g.Limiter(0).Hold(time.Nanosecond)
		require.Equal(t, after, g.Stats(), "a hold is no request, so none is refused and none shares")

		time.Sleep(time.Minute)
		synctest.Wait()
		require.Zero(t, buckets())
		require.NoError(t, g.Wait(context.Background(), late))
		require.Equal(t, 1, buckets())
	})
}

// A shared bucket is deleted when it is drained, however many keys from other keyed.Homes
// it serves.
func TestSharedBucketsOfWideReachDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := []Limits{{Rate: 1, Burst: 3}}
		g := fullGroup(t, of)
		defer g.Close()
		for key := range 20_000 {
			use(t, g, key)
		}
		g.overflow.lockAndAdvance()
		for _, ring := range g.rings.All() {
			require.Len(t, ring, keyed.Homes)
			for _, kf := range ring {
				kf.Reach = keyed.Homes - 1
			}
		}
		g.overflow.unlockAndArm()
		time.Sleep(4 * time.Second)
		synctest.Wait()
		require.Zero(t, g.rings.Len())
		require.Nil(t, g.rings.All())
	})
}

// Refusing a key because all shared buckets are taken looks at none of them, and a key
// that finds its bucket looks at no bucket of other Limits: otherwise whoever can
// influence Limits would slow everybody down, as this happens under the Group's lock.
func TestAFloodOfLimitsDoesNotMakeRefusalsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var of []Limits
		for i := range keyed.MaxShared + 1 {
			of = append(of, Limits{Rate: 1. / 3600, Burst: 1 + i})
		}
		unlimited := len(of)
		of = append(of, Limits{Rate: rate.Inf, Depth: 9})
		g := fullGroup(t, of)
		defer g.Close()
		for key := range keyed.MaxShared {
			kf, allowed := use(t, g, key)
			require.NotNil(t, kf)
			require.True(t, allowed)
		}
		require.EqualValues(t, keyed.MaxShared, g.rings.Len())
		mine := g.overflow.plans.get(of[7])
		require.Len(t, g.rings.All()[mine], 1)
		g.overflow.lockAndAdvance()
		for p := range g.rings.All() {
			if p != mine {
				g.rings.All()[p] = []*keyedFlow[int]{nil} // To look at it is to panic.
			}
		}
		g.overflow.unlockAndArm()
		plans := func() (n int) {
			for _, s := range g.all {
				s.mu.Lock()
				n += s.plans.of.Len()
				s.mu.Unlock()
			}
			return n
		}
		before := plans()

		for range 10 {
			require.False(t, g.Allow(keyed.MaxShared))
			_, err := g.Limiter(keyed.MaxShared).Forecast(1)
			require.ErrorIs(t, err, ErrQueueFull)
		}
		require.Equal(t, before, plans(), "no plan is made for a call that is refused")
		require.LessOrEqual(t, testing.AllocsPerRun(100, func() { g.Allow(keyed.MaxShared) }), 3.0)
		for i := range 100 { // Keys of the rule that has a bucket, from many keyed.Homes.
			kf, _ := use(t, g, 7+i*len(of))
			require.Same(t, g.rings.All()[mine][0], kf)
		}
		require.True(t, g.Allow(unlimited), "a key without a limit needs none of these buckets")
	})
}

func TestKeysThatDoNotEqualThemselvesHaveOneHome(t *testing.T) {
	var g Group[float64]
	for range 100 {
		require.Zero(t, g.homeOf(math.NaN()))
	}
}
