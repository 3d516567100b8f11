package sharedfaults_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// All requests of all processes give up together, ten times in a second, and others come at
// once. What was leased for those is used by these.
func TestStormsOfCancelledRequestsDoNotCostTheRate(t *testing.T) {
	atLength(t)
	t.Parallel()
	r := startRedis(t)
	f := startFleet(t, four(plan{Engine: redisEngine, Addrs: []string{r.Addr}, Key: "storms", Rate: 500, Waiters: 64, Slack: d,
		Storm: 100 * time.Millisecond}))
	to := f.reaches(2*time.Second, f.began.Add(noise), f.plan().Rate*busy)
	reports, l := f.ends()
	l.keepsPace(t, f.plan())
	for _, r := range reports {
		b := r.Stats.Bucket
		require.Zero(t, b.Held)
		// A request that gives up after it was given its slot, and before its call has
		// returned, has used it if the next has left since.
		require.LessOrEqual(t, r.Stats.Departed+b.Dropped+b.GivenBack, b.Leased)
		require.Less(t, b.Leased, r.Stats.Departed+b.Dropped+b.GivenBack+20)
	}
	require.Greater(t, len(l.only(abandoned)), len(l.only(departed)), "most requests give up")
	require.Greater(t, l.rate(f.began.Add(noise), to), f.plan().Rate*busy)
}

// One process has leased for a line that then gives up. It gives back what it has, so the
// other leaves in its slots, and not behind them.
func TestSlotsOfThoseThatGaveUpAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(time.Millisecond, time.Millisecond)
		limits := shaper.Limits{Rate: 1000, Depth: 1000, Slack: d}
		one, other := newShared(t, m, limits), newShared(t, m, limits)

		ctx, cancel := context.WithCancel(t.Context())
		for range 200 {
			go one.Wait(ctx)
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		require.Greater(t, one.Stats().Bucket.Held, int64(5), "it has leased ahead")
		cancel()
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		b := one.Stats().Bucket
		require.Zero(t, b.Held)
		require.NotZero(t, b.GivenBack)
		require.Equal(t, b.Leased, one.Stats().Departed+b.Dropped+b.GivenBack)

		start := time.Now()
		require.NoError(t, other.Wait(t.Context()))
		require.Less(t, time.Since(start), 5*time.Millisecond, "it does not wait behind slots that nobody will use")
	})
}

// Those who come after others have given up leave in the order in which they came, in the
// slots of those.
func TestLaterRequestsUseTheSlotsOfThoseThatGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(time.Millisecond, time.Millisecond)
		var mu sync.Mutex
		var left []int
		s := newShared(t, m, shaper.Limits{Rate: 100, Depth: 1000, Slack: d})
		wait := func(ctx context.Context, i int) {
			if s.Wait(ctx) == nil {
				mu.Lock()
				defer mu.Unlock()
				left = append(left, i)
			}
		}
		patient, impatient := t.Context(), t.Context()
		impatient, cancel := context.WithCancel(impatient)
		for i := range 40 {
			ctx := impatient
			if i >= 20 {
				ctx = patient
			}
			go wait(ctx, i)
			synctest.Wait()
		}
		time.Sleep(45 * time.Millisecond)
		synctest.Wait()
		before := len(left)
		cancel()
		time.Sleep(time.Second)
		synctest.Wait()
		require.Len(t, left, before+20)
		require.IsIncreasing(t, left)
		require.Equal(t, 20, left[before], "the first of the patient follows at once")
		require.Zero(t, s.Stats().Bucket.Dropped)
	})
}

// newShared returns a Shaper on a bucket, which is closed when the test ends.
func newShared(t *testing.T, b shaper.Bucket, l shaper.Limits, options ...shaper.Option) *shaper.Shaper {
	t.Helper()
	s, err := shaper.New(l, append([]shaper.Option{shaper.WithBucket(b, "key")}, options...)...)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}
