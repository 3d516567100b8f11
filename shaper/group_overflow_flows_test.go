package shaper

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/internal/keyed"
)

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
