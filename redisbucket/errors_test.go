package redisbucket_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper/shared"
)

// An answer of a server that has not carried out the script is an error, and never a licence.
func TestWhatIsWrongIsAnError(t *testing.T) {
	ctx, server := within(t), miniredis.RunT(t)
	bucket := redisbucket.New(connect(t, server.Addr()))
	for _, says := range []string{
		"LOADING Redis is loading the dataset in memory", "CLUSTERDOWN The cluster is down",
		"READONLY You can't write against a read only replica.", "OOM command not allowed when used memory > 'maxmemory'.",
		"NOPERM this user has no permissions", "BUSY Redis is busy running a script.", "MASTERDOWN Link with MASTER is down",
	} {
		server.SetError(says)
		_, err := bucket.Take(ctx, one("key"))
		require.EqualError(t, err, "redisbucket: "+says)
		require.EqualError(t, bucket.GiveBack(ctx, one("key"), shared.Instant{}), "redisbucket: "+says)
	}
	server.SetError("")
	require.True(t, taken(t, bucket, "key"), "nothing was taken meanwhile")

	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": server.Addr()}})
	defer func() { require.NoError(t, ring.Close()) }()
	for _, test := range []struct {
		bucket shared.Bucket
		change func(*shared.Take)
		says   string
	}{
		{redisbucket.New(nil, nil), nil, "the client is nil"},
		{redisbucket.New(ring), nil, "use NewRing"},
		{redisbucket.NewRing(nil), nil, "no servers"},
		{bucket, func(t *shared.Take) { t.Key = "" }, "the key is empty"},
		{bucket, func(t *shared.Take) { t.Cost = 0 }, "the cost is 0"},
		{bucket, func(t *shared.Take) { t.Rate = shared.BucketRate{} }, "the rate {Version:0 "},
		{bucket, func(t *shared.Take) { t.Rate.Version = 1<<53 + 1 }, "Version:9007199254740993"},
	} {
		take := one("other")
		if test.change == nil {
			require.ErrorContains(t, test.bucket.GiveBack(ctx, take, shared.Instant{}), test.says)
		} else {
			test.change(&take)
		}
		_, err := test.bucket.Take(ctx, take)
		require.ErrorContains(t, err, test.says)
	}
	require.True(t, taken(t, bucket, "other"), "a Take that fails takes nothing")
}

// A context that has ended is returned as it is, so that callers can tell it.
func TestACallEndsWithItsContext(t *testing.T) { onEach(t, aCallEndsWithItsContext) }

func aCallEndsWithItsContext(t *testing.T, server *servers.Redis) {
	for _, enabled := range []bool{false, true} {
		client := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: enabled, ReadTimeout: patience})
		bucket := redisbucket.New(client)
		realtime.Until(t, func() bool { return client.Ping(within(t)).Err() == nil }, "there is a connection")
		server.Pause()
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		began := time.Now()
		_, err := bucket.Take(ctx, one("key"))
		require.Less(t, time.Since(began), patience/2, "ContextTimeoutEnabled is %v", enabled)
		require.Equal(t, context.DeadlineExceeded, err)
		cancel()

		ctx, cancel = context.WithCancel(context.Background())
		cancel()
		err = bucket.GiveBack(ctx, one("key"), shared.Instant{})
		require.True(t, errors.Is(err, context.Canceled), err)
		server.Resume()
		require.NoError(t, client.Close())
	}
}

func TestTheAnswerOfAnotherScriptIsAnError(t *testing.T) {
	for _, text := range []string{"", "1 0 1 2", "1 0 1 2 3 4", "1 0 1 2 x", "1 0 1 2 3 1 2 3 4 5 6 7 8"} {
		_, ok := redisbucket.ParseTaken(text)
		require.False(t, ok, text)
	}
}

// The permissions that the documentation names must suffice, also for rare calls.
func TestAUserWithTheDocumentedRightsCanUseABucket(t *testing.T) {
	onEach(t, aUserWithTheDocumentedRightsCanUseABucket)
}

func aUserWithTheDocumentedRightsCanUseABucket(t *testing.T, server *servers.Redis) {
	ctx := within(t)
	server.MustDo("ACL", "SETUSER", "limited", "on", ">secret", "resetkeys", "-@all",
		"+evalsha", "+eval", "+get", "+set", "+setrange", "+time", "~shaper:*",
		"+hello")
	client := redis.NewClient(&redis.Options{Addr: server.Addr, Username: "limited", Password: "secret", DisableIdentity: true, ReadTimeout: patience})
	defer func() { require.NoError(t, client.Close()) }()
	bucket := redisbucket.New(client)
	answer, err := bucket.Take(ctx, one("key"))
	require.NoError(t, err)
	require.True(t, answer.OK)
	require.False(t, taken(t, bucket, "key"))
	require.NoError(t, bucket.GiveBack(ctx, one("key"), addMicros(answer.Empty, hour.Micros)))
	require.True(t, taken(t, bucket, "key"))
	guarded := one("guarded")
	guarded.Guard = 1e9
	answer, err = bucket.Take(ctx, guarded)
	require.NoError(t, err)
	require.Equal(t, shared.Instant{Micros: answer.Now + 1e6}, answer.Empty)
	require.Empty(t, server.MustDo("ACL", "LOG"), "nothing was denied")

	_, err = redisbucket.New(client, redisbucket.WithPrefix("other:")).Take(ctx, one("key"))
	require.ErrorContains(t, err, "NOPERM")
}
