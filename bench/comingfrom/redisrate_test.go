package comingfrom

import (
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// redisRate is the heading of the rows that need a server, and so run in real time. The limits are so slow that
// nothing drains while they run.
const redisRate = "go-redis/redis_rate"

var onRedis = []row{
	{"`redis_rate.NewLimiter(rdb)`, `Allow(ctx, key, limit)`", func(t *testing.T) {
		theirs, ours := newRedisRivals(t)
		limit := redis_rate.PerHour(5)
		require.Equal(t, 5, count(9, func() bool { return must(theirs.Allow(ctx, "a", limit)).Allowed == 1 }))
		require.Equal(t, 5, count(9, allows(ours, "a")))
	}},
	{"`Result.Remaining`, `ResetAfter`", func(t *testing.T) {
		theirs, ours := newRedisRivals(t)
		result := must(theirs.AllowN(ctx, "a", redis_rate.PerHour(5), 3))
		require.True(t, ours.AllowN("a", 3))
		st := ours.Limiter("a").Stats()
		require.Equal(t, result.Remaining, st.Free)
		require.InDelta(t, result.ResetAfter.Seconds(), time.Until(st.EmptyAt).Seconds(), 30)
		require.InDelta(t, 36*time.Minute.Seconds(), result.ResetAfter.Seconds(), 30)
	}},
	{"`Result.RetryAfter`", func(t *testing.T) {
		theirs, ours := newRedisRivals(t)
		limit := redis_rate.PerHour(5)
		must(theirs.AllowN(ctx, "a", limit, 5))
		require.True(t, ours.AllowN("a", 5))
		result := must(theirs.Allow(ctx, "a", limit))
		var refused *shaper.RejectError
		require.ErrorAs(t, ours.Wait(ctx, "a"), &refused)
		require.InDelta(t, result.RetryAfter.Seconds(), refused.RetryAfter.Seconds(), 30)
		require.InDelta(t, 12*time.Minute.Seconds(), refused.RetryAfter.Seconds(), 30)
	}},
}

func TestEachRowRunsBothOnRedis(t *testing.T) {
	for _, r := range onRedis {
		t.Run(r.call, r.both)
	}
}

// newRedisRivals returns both on one server that is empty, each with 5 an hour.
func newRedisRivals(t *testing.T) (*redis_rate.Limiter, *shaper.Group[string]) {
	client := redis.NewClient(&redis.Options{Addr: servers.StartRedis(t).Addr})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	ours := newGroup(t, "5/h burst 5", shaper.WithBuckets(redisbucket.New(client), func(key string) string { return key }, shared.Options{}))
	return redis_rate.NewLimiter(client), ours
}
