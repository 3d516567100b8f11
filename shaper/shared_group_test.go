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
