package shaper_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

func ownKey(key string) string { return key }

// What the last request in a line gives back goes to other processes, in a Group too.
func TestAGroupGivesBackWhatACancelledRequestHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 1, Depth: 9}, nil }, shaper.WithBuckets(m, ownKey))
		require.NoError(t, err)
		defer g.Close()
		require.NoError(t, g.Wait(t.Context(), "key"))
		late := newLateCancel()
		done := make(chan error, 1)
		go func() { done <- g.Wait(late, "key") }()
		synctest.Wait()
		late.end() // when its slot has come
		time.Sleep(2 * time.Second)
		require.ErrorIs(t, <-done, context.Canceled)
		synctest.Wait()
		st := g.Stats().Bucket
		require.EqualValues(t, 2, st.Leased)
		require.EqualValues(t, 1, st.GivenBack)
	})
}

// What a call with a new key meets is told before the key has a bucket: in an outage that it would
// be refused, or leave by the fallback.
func TestAForecastForANewKeyKnowsOfTheOutage(t *testing.T) {
	type limiter interface{ Stats() shaper.Stats }
	for fallback, state := range map[shaper.Fallback]shaper.BucketState{
		shaper.FallbackClosed: shaper.BucketDown, shaper.FallbackOpen: shaper.BucketOpen, shaper.FallbackLocal(2): shaper.BucketLocal,
	} {
		for _, limits := range []string{"10/s depth 9", "10/s burst 4", "10/s depth 9 inflight 2"} {
			synctest.Test(t, func(t *testing.T) {
				l, err := shaper.ParseLimits(limits)
				require.NoError(t, err)
				m := buckettest.NewMemory()
				m.SetDelay(ms, ms)
				g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil }, shaper.WithBuckets(m, ownKey), shaper.WithFallback(fallback))
				require.NoError(t, err)
				stats := func(key string) shaper.BucketStats { return g.Limiter(key).Stats().Bucket }
				require.Equal(t, shaper.BucketShared, stats("new").State)
				m.Fail(faultOf(buckettest.FailBefore))
				if l.Depth > 0 {
					go func() { // It is in line until its patience ends, or by the fallback.
						if release, err := g.Acquire(context.Background(), "old", 1); err == nil {
							release()
						}
					}()
				}
				for g.Stats().Bucket.State == shaper.BucketShared {
					_ = g.Allow("old")
					time.Sleep(ms)
				}
				for i := range 50 { // The circuit breaker lets a call try now and then.
					key := string(rune('A' + i))
					require.Equal(t, state, stats(key).State)
					require.Error(t, stats(key).Err)
					wait, forecast := g.Forecast(key, 1)
					began := time.Now()
					release, err := g.Acquire(t.Context(), key, 1)
					if err == nil {
						release()
					}
					switch {
					case forecast == nil && fallback == shaper.FallbackClosed: // This one may try.
						require.ErrorIs(t, err, shaper.ErrUnavailable)
					case forecast == nil:
						require.NoError(t, err)
						require.Equal(t, time.Since(began), wait)
					default:
						require.Equal(t, forecast, err)
					}
					time.Sleep(7 * ms)
				}
				require.NoError(t, g.Close())
				require.NotEmpty(t, stats("new").State, "of a closed Group, too")
			})
		}
	}
}

// An overflow bucket and a key at rate.Inf have their state, too.
func TestAKeyThatSharesABucketHasItsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		limits := func(key string) (shaper.Limits, error) {
			if key == "inf" {
				return shaper.Limits{Rate: rate.Inf}, nil
			}
			return shaper.Limits{Rate: 1, Depth: 9}, nil
		}
		g, err := shaper.NewGroup(limits, shaper.WithBuckets(m, ownKey), shaper.WithMaxKeys(1))
		require.NoError(t, err)
		defer g.Close()
		require.NoError(t, g.Wait(t.Context(), "first"))
		for _, key := range []string{"inf", "second", "first"} {
			st := g.Limiter(key).Stats()
			require.Equal(t, shaper.BucketShared, st.Bucket.State, key)
			_, err := g.Forecast(key, 1)
			require.NoError(t, err)
		}
		_, err = g.Forecast("", 1)
		require.ErrorContains(t, err, "the key function of WithBuckets has returned an empty key")
		require.Equal(t, 1, g.Stats().Keys)
	})
}

// panicky is a Bucket that panics while it is told to.
type panicky struct {
	*buckettest.Memory
	panics atomic.Bool
}

func (p *panicky) Take(ctx context.Context, t shaper.Take) (shaper.Taken, error) {
	if p.panics.Load() {
		panic("the bucket panics")
	}
	return p.Memory.Take(ctx, t)
}

// A server recovers the panics of its handlers, and goes on.
func TestABucketThatPanicsWhileItIsProbedCanBeAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &panicky{Memory: buckettest.NewMemory()}
		s, err := shaper.New(shaper.Limits{Rate: 10}, shaper.WithBucket(b, "key"))
		require.NoError(t, err)
		defer s.Close()
		b.Fail(faultOf(buckettest.FailBefore))
		for range 3 {
			require.False(t, s.Allow())
		}
		require.Equal(t, shaper.BucketDown, s.Stats().Bucket.State)
		time.Sleep(time.Second)
		b.panics.Store(true)
		require.Panics(t, func() { s.Allow() })
		b.panics.Store(false)
		b.Fail(nil)
		time.Sleep(4 * time.Second)
		require.True(t, s.Allow())
		require.Equal(t, shaper.BucketShared, s.Stats().Bucket.State)
	})
}

// nosy is a Bucket whose Shard calls the Group, which must not hold its lock then.
type nosy struct {
	*buckettest.Memory
	look func()
}

func (n *nosy) Shard(string) string {
	if n.look != nil {
		n.look()
	}
	return ""
}

func TestTheShardOfAKeyIsAskedForWithoutTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &nosy{Memory: buckettest.NewMemory()}
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 10, Depth: 9}, nil }, shaper.WithBuckets(b, ownKey))
		require.NoError(t, err)
		defer g.Close()
		b.look = func() { g.Stats() }
		for range 20 {
			require.NoError(t, g.Wait(t.Context(), "key"))
		}
	})
}

// A key that is held at rate.Inf has a bucket, also after a restart; and its level is shared as
// soon as it has a rate.
func TestARestoredKeySharesItsLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		limits := func(string) (shaper.Limits, error) { return shaper.Limits{Rate: rate.Inf, Depth: 9}, nil }
		before, err := shaper.NewGroup(limits, shaper.WithBuckets(m, ownKey))
		require.NoError(t, err)
		before.Hold("key", time.Minute)
		saved, err := before.Snapshot()
		require.NoError(t, err)
		require.NoError(t, before.Close())

		g, err := shaper.NewGroup(limits, shaper.WithBuckets(m, ownKey))
		require.NoError(t, err)
		defer g.Close()
		require.NoError(t, g.Restore(saved))
		require.NoError(t, g.SetLimits("key", shaper.Limits{Rate: 20, Depth: 9}))
		for range 3 {
			require.NoError(t, g.Wait(t.Context(), "key"))
		}
		require.NotEmpty(t, m.Log(), "the Bucket has been asked")
	})
}

// Calls that get no limits are counted, and the key function of WithBuckets is one cause.
func TestAnEmptyKeyOfTheBucketIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 20}, nil }
		g, err := shaper.NewGroup(limits, shaper.WithBuckets(buckettest.NewMemory(), func(string) string { return "" }))
		require.NoError(t, err)
		defer g.Close()
		require.ErrorContains(t, g.Wait(t.Context(), "key"), "empty key")
		require.False(t, g.Allow("key"))
		require.EqualValues(t, 2, g.Stats().LimitErrors)
	})
}
