package shaper

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper/internal/exact"
)

// The overflow buckets of a Group from inside, where one can see which key has which.

// crowded is a Group whose table is full, of the key -1. The limits of the others
// are those of the number that the key ends with.
func crowded(t *testing.T, of []Limits) *Group[int] {
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
func use(t *testing.T, g *Group[int], key int) (c *keyedFlow[int], allowed bool) {
	t.Helper()
	c, dec := g.enter(key, &request{ctx: context.Background(), cost: 1, deadline: exact.Forever, kind: allow})
	return c, dec.passed()
}

// Nobody finds a new bucket while the one that he has used is not drained, whatever
// has gone meanwhile of those in its way.
func TestAKeyKeepsItsOverflowBucket(t *testing.T) {
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, seed))
			var of []Limits
			for i := range 6 {
				of = append(of, Limits{Rate: 1, Burst: []int{1, 2, 3, 10, 30, 60}[i]})
			}
			g := crowded(t, of)
			defer g.Close()
			has := map[int]*keyedFlow[int]{}
			kept, moved, refused := 0, 0, 0
			for range 20_000 {
				key := r.IntN(1200)
				c, _ := use(t, g, key)
				before := has[key]
				has[key] = c
				g.lockAndAdvance()
				now := g.clock
				stays := before != nil && before != c && !before.flow.drained(now)
				g.unlockAndArm()
				switch {
				case stays:
					require.FailNow(t, "a key got a new bucket while its own was not drained", "key %d", key)
				case c == nil:
					refused++
				case before == c:
					kept++
				case before != nil:
					moved++
				}
				if c != nil {
					require.Equal(t, of[key%len(of)], c.flow.bucket.limits)
				}
				if r.IntN(50) == 0 {
					time.Sleep(time.Duration(r.Int64N(int64(4 * time.Second))))
					synctest.Wait()
				}
			}
			require.Positive(t, kept)
			require.Positive(t, moved, "none has gone meanwhile")
			t.Logf("kept %d, moved %d, refused %d, reach %d", kept, moved, refused, g.overflow.probes)
		})
	}
}

// There are 1,024 and no more, and whoever floods one rule leaves 64 of them for the
// others. Who finds none is refused. As they drain others come in their place.
func TestThereAreSoManyOverflowBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var of []Limits
		for i := range 1 + lastResort + 1 {
			of = append(of, Limits{Rate: 1, Burst: 7 + i})
		}
		var told []Event
		g := crowded(t, of)
		g.hasHooks, g.trace.Refused = true, func(_ context.Context, e Event) { told = append(told, e) }
		defer g.Close()
		cells := func() (n int) {
			g.lockAndAdvance()
			defer g.unlockAndArm()
			for _, c := range g.overflow.flows {
				if c != nil {
					n++
				}
			}
			return n
		}
		for i := range 20_000 {
			c, _ := use(t, g, i*len(of))
			require.NotNil(t, c)
		}
		require.Equal(t, hashed, cells())
		for key := 1; key <= lastResort; key++ {
			require.True(t, g.Allow(key), "of rule %d", key)
		}
		require.Equal(t, maxOverflow, cells())
		before := g.Stats()
		require.Equal(t, 1, before.Keys)
		require.EqualValues(t, 20_000+lastResort, before.Overflowed)

		late := len(of) - 1
		_, none := g.Forecast(late, 1)
		require.ErrorIs(t, none, ErrQueueFull)
		err := g.Wait(context.Background(), late)
		var refusal *RejectError
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, RejectError{Reason: ErrQueueFull, RetryAfter: 500 * time.Millisecond}, *refusal)
		require.False(t, g.Allow(late+len(of)))
		after := g.Stats()
		require.EqualValues(t, 20_002+lastResort, after.Overflowed)
		require.EqualValues(t, before.QueueFull+2, after.QueueFull)
		require.Len(t, told, int(after.QueueFull), "the hook is told of these too")
		require.Equal(t, late+len(of), told[len(told)-1].Key)
		require.Equal(t, time.Now(), told[len(told)-1].At)

		time.Sleep(time.Minute)
		synctest.Wait()
		require.Zero(t, cells())
		require.NoError(t, g.Wait(context.Background(), late))
		require.Equal(t, 1, cells())
	})
}

// All whose Limits are the same and whom the hash puts together share one bucket,
// and those of other Limits do not.
func TestAnOverflowBucketIsForOneValueOfLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := []Limits{{Rate: 1, Burst: 5}, {Rate: 2, Burst: 5}, {Rate: 1, Burst: 5}}
		g := crowded(t, of)
		defer g.Close()
		allowed := map[*keyedFlow[int]]int{}
		sharers := map[*keyedFlow[int]]map[int]bool{}
		for key := range 9000 {
			c, ok := use(t, g, key)
			require.NotNil(t, c)
			require.Equal(t, of[key%3], c.flow.bucket.limits)
			if ok {
				allowed[c]++
			}
			if sharers[c] == nil {
				sharers[c] = map[int]bool{}
			}
			sharers[c][key] = true
		}
		shared := 0
		for c, n := range allowed {
			require.Equal(t, min(5, len(sharers[c])), n)
			if len(sharers[c]) > 1 {
				shared++
			}
		}
		require.Greater(t, shared, maxOverflow/2)
		require.LessOrEqual(t, len(allowed), maxOverflow)
		require.Len(t, g.plans, 3, "one for each value of Limits, and that of the table")
	})
}

// Of overflow buckets that are in each other's way in a ring none waits for another
// to go first.
func TestAFullRingOfOverflowBucketsDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := []Limits{{Rate: 1, Burst: 3}}
		g := crowded(t, of)
		defer g.Close()
		for key := range 20_000 {
			use(t, g, key)
		}
		g.lockAndAdvance()
		for _, c := range g.overflow.flows[:hashed] {
			if c != nil {
				g.overflow.noteProbes(c, hashed-1)
			}
		}
		g.unlockAndArm()
		time.Sleep(4 * time.Second)
		synctest.Wait()
		for place, c := range g.overflow.flows {
			require.True(t, c == nil, "at %d", place)
		}
	})
}

func TestKeysThatDoNotEqualThemselvesHaveOnePlace(t *testing.T) {
	var o overflow[float64]
	p := planOf(Limits{Rate: 1})
	for range 100 {
		_, place, reach := o.find(math.NaN(), p)
		require.Zero(t, place)
		require.Zero(t, reach)
	}
}
