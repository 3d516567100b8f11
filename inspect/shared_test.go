package inspect_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

func requireReasonsAddUp(t *testing.T, b bucket) {
	t.Helper()
	require.Equal(t, b.Refused, b.QueueFull+b.TooLate+b.TooCostly+b.Closed+b.Unavailable)
}

// Were an outage of the shared bucket told as a closed one, an operator would look for who has
// closed it, and not at the server that is down.
func TestAnOutageIsNotTakenForAClosedBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := buckettest.NewMemory()
		s := made.Shaper(t, "1/s", shaper.WithBucket(server, "k", shared.Options{}))
		c := newConsole(t, inspect.Of(s))
		require.NoError(t, s.Wait(t.Context()))
		detail := func() (answer struct {
			Bucket   bucket
			Refusals []struct{ Reason string }
		}) {
			told(t, c, "/api/v1/buckets/one/", &answer)
			requireReasonsAddUp(t, answer.Bucket)
			return answer
		}
		up := detail().Bucket.Shared
		require.NotNil(t, up)
		require.Equal(t, "shared", up.State)
		require.Nil(t, up.Error)

		server.Fail(func(int, string) buckettest.Fault { return buckettest.FailBefore })
		time.Sleep(10 * time.Second)
		for range 11 {
			require.ErrorIs(t, s.Wait(t.Context()), shaper.ErrUnavailable)
		}
		down := detail()
		require.EqualValues(t, 11, down.Bucket.Unavailable)
		require.Zero(t, down.Bucket.Closed)
		require.Equal(t, "down", down.Bucket.Shared.State)
		require.NotEmpty(t, *down.Bucket.Shared.Error)
		require.GreaterOrEqual(t, down.Bucket.Shared.Failures, uint64(3))
		require.Len(t, down.Refusals, 11)
		for _, r := range down.Refusals {
			require.Equal(t, "unavailable", r.Reason)
		}

		l := listOf(t, c, "")
		require.Equal(t, down.Bucket.Shared, l.Buckets[0].Shared)
		require.Equal(t, down.Bucket.Unavailable, l.Buckets[0].Unavailable)
		require.Equal(t, "down", l.Sources[0].Shared.State)

		time.Sleep(1100 * time.Millisecond)
		require.Contains(t, ask(c, "/api/v1/buckets").Body.String(), `"health":"unavailable"`)
	})
}

// What is leased and not used yet can't be used by others: it is shown.
func TestWhatIsHeldOfASharedBucketIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.GroupBy(t, func(string) (shaper.Limits, error) { return made.Limits(t, "20/s depth 50"), nil },
			shaper.WithBuckets(buckettest.NewMemory(), func(key string) string { return key }, shared.Options{}))
		for range 40 {
			go g.Wait(t.Context(), "k")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		c := newConsole(t, inspect.OfGroup(g))
		st, ok := g.StatsOf("k")
		require.True(t, ok)
		require.Positive(t, st.Bucket.Leased)
		l := listOf(t, c, "")
		require.Equal(t, st.Bucket.Held, l.Buckets[0].Shared.Held)
		requireReasonsAddUp(t, l.Buckets[0])
	})
}
