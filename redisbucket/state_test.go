package redisbucket_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper/shared"
)

// A state that somebody has written by hand, or another program, must neither stop the
// rate nor make each call an error. The suite has the numbers that are outside of their ranges.
func TestADamagedStateIsNone(t *testing.T) { onEach(t, aDamagedStateIsNone) }

func aDamagedStateIsNone(t *testing.T, server *servers.Redis) {
	ctx, client := within(t), connect(t, server.Addr)
	bucket := redisbucket.New(client)
	now := time.Now().UnixMicro()
	good := redisbucket.Encode(shared.BucketLevel{Empty: shared.Instant{Micros: now + 1e9}, Rate: hour, At: now})
	require.NoError(t, client.Set(ctx, "shaper:good", good, 0).Err())
	require.False(t, taken(t, bucket, "good"), "this one is not damaged")

	at := strconv.FormatInt(now, 10)
	rate := " 1 3600000000 0 1 1 0 0" // with its version
	for _, state := range []string{
		"", " ", "garbage", "-1", "1e15", at, good + " ", " " + good, good + "\n", good + " 1", "x" + good[1:],
		"-1 0 " + at + rate, "nan 0 " + at + rate, "inf 0 " + at + rate, "0x7fffffffffff 0 " + at + rate,
		"99999999999999999999 0 " + at + rate, // the far future
		"9999999999999999 0 9999999999999999" + rate,
		at + "000 0 " + at + rate,
		"9007199254740000 0 " + at + " 1 3600000000 0 1 1 1 0",                    // the room of another rate
		"9007199254740000 0 " + at + " 9 3600000000 0 1 1 1 0",                    // and with another version
		"9007199254740000 0 " + at + " 99999999999999999999 3600000000 0 1 1 0 0", // too great a version of this rate
		"9007199254740000 0 " + at + " -1 3600000000 0 1 1 0 0",                   // a negative one
		"9007199254740000 0 " + at + " 99999999999999999999 1 0 1 1 0 0",          // too great a version
		"9007199254740000 0 " + at + " 9 1 0 1 99999999999999999999999 0 0",       // too great a burst
		"9007199254740000 0 " + at + " 9 1 0 1 9223372036854775808 0 0",           // a burst that is no int64
		"9007199254740000 0 " + at + " 9 1 0 1 9999999999999999999 0 0",           // nor is this
		"9007199254740000 0 " + at + " 9 1 0 1 1 0",                               // a number is missing
		"9007199254740000 0 " + at + " -- 1 0 1 1 0 0", "\x00\xff\x00", "nil",     // no numbers
	} {
		require.NoError(t, client.Set(ctx, "shaper:key", state, 0).Err())
		require.NoError(t, bucket.GiveBack(ctx, one("key"), shared.Instant{Micros: 1}))
		kept, err := client.Get(ctx, "shaper:key").Result()
		require.NoError(t, err)
		require.Equal(t, state, kept, "GiveBack does nothing")

		got, err := bucket.Take(ctx, one("key"))
		require.NoErrorf(t, err, "state %q", state)
		require.Truef(t, got.OK && got.Cold, "state %q: %+v", state, got)
		require.Falsef(t, taken(t, bucket, "key"), "after %q there is a level", state)
	}
	for _, make := range []func(key string) error{
		func(key string) error { return client.RPush(ctx, key, good).Err() },
		func(key string) error { return client.HSet(ctx, key, "a", "b").Err() },
		func(key string) error { return client.SAdd(ctx, key, "a").Err() },
		func(key string) error {
			return client.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []string{"a", "b"}}).Err()
		},
	} {
		require.NoError(t, client.Del(ctx, "shaper:key").Err())
		require.NoError(t, make("shaper:key"))
		require.NoError(t, bucket.GiveBack(ctx, one("key"), shared.Instant{Micros: 1}))
		guarded := one("key")
		guarded.Guard = time.Minute
		got, err := bucket.Take(ctx, guarded)
		require.NoError(t, err)
		require.True(t, got.Cold && !got.OK, "its guard has begun: %+v", got)
		require.NoError(t, client.Del(ctx, "shaper:key").Err())
		require.NoError(t, make("shaper:key"))
		require.True(t, taken(t, bucket, "key"))
		require.False(t, taken(t, bucket, "key"))
	}
}

// Keys of users who have gone must not fill the memory, and keys of users who have not must not be
// forgotten.
func TestAKeyExpiresAMinuteAfterItsLevelHasReachedZero(t *testing.T) {
	onEach(t, aKeyExpiresAMinuteAfterItsLevelHasReachedZero)
}

func aKeyExpiresAMinuteAfterItsLevelHasReachedZero(t *testing.T, server *servers.Redis) {
	ctx, client := within(t), connect(t, server.Addr)
	bucket := redisbucket.New(client, redisbucket.WithPrefix("mine:"))
	take := one("key")
	take.Rate.Burst = 1000
	take.Cost = 24
	got, err := bucket.Take(ctx, take)
	require.NoError(t, err)
	require.True(t, got.OK)
	require.InDelta(t, 24*time.Hour+time.Minute, ttl(t, client), float64(patience))
	require.Less(t, client.StrLen(ctx, "mine:key").Val(), int64(100), "bytes of state")

	end := got.Empty
	end.Micros += 24 * time.Hour.Microseconds()
	require.NoError(t, bucket.GiveBack(ctx, take, end))
	require.InDelta(t, time.Minute, ttl(t, client), float64(patience))
	require.NoError(t, client.PExpire(ctx, "mine:key", time.Millisecond).Err())
	realtime.Until(t, func() bool { return client.DBSize(ctx).Val() == 0 }, "the key is gone")
}

func ttl(t *testing.T, client *redis.Client) time.Duration {
	left, err := client.PTTL(within(t), "mine:key").Result()
	require.NoError(t, err)
	require.Positive(t, left)
	return left
}

// The server may lose its scripts at any time; a lost one is sent again, and counts once.
func TestScriptFlushIsInvisible(t *testing.T) { onEach(t, scriptFlushIsInvisible) }

func scriptFlushIsInvisible(t *testing.T, server *servers.Redis) {
	ctx, client := within(t), connect(t, server.Addr)
	bucket := redisbucket.New(client)
	take := one("key")
	take.Rate.Burst = 1000
	var level shared.BucketLevel
	for range 20 {
		require.NoError(t, client.ScriptFlush(ctx).Err())
		got, err := bucket.Take(ctx, take)
		require.NoError(t, err)
		var want shared.Taken
		level, want = take.Apply(level, got.Now)
		require.Equal(t, want, got)
	}
	require.NoError(t, client.ScriptFlush(ctx).Err())
	require.NoError(t, bucket.GiveBack(ctx, take, level.Empty))
	state, err := client.Get(ctx, "shaper:key").Result()
	require.NoError(t, err)
	require.Equal(t, redisbucket.Encode(take.ApplyGiveBack(level, level.Empty)), state)
}
