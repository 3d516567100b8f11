package redisbucket_test

import (
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper/shared"
)

func TestSentinelsHandOverToTheReplica(t *testing.T) {
	if os.Getenv("SHAPER_LONG") == "" {
		t.Skip("SHAPER_LONG=1 runs it: it waits until sentinels agree")
	}
	t.Parallel()
	sentinel := servers.StartSentinel(t)
	master, replica := sentinel.Servers[0], sentinel.Servers[1]
	proxy := servers.StartProxy(t, master.Addr)
	newClient := func(readTimeout time.Duration) *redis.Client {
		client := redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: sentinel.Master, SentinelAddrs: sentinel.Addrs, Dialer: through(map[string]*servers.Proxy{master.Addr: proxy}), MaxRetries: 2,
			ReadTimeout: readTimeout, WriteTimeout: patience,
		})
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		return client
	}
	bucket := redisbucket.New(newClient(patience))

	t.Run("a lost answer is not asked for again", func(t *testing.T) { takesOnce(t, newClient(soon), connect(t, master.Addr), proxy) })

	require.True(t, taken(t, bucket, "key"))
	realtime.Until(t, func() bool { return replica.MustDo("EXISTS", "shaper:key") == "1" }, "the replica has the key")

	t.Run("a replica does not answer", func(t *testing.T) {
		ctx := within(t)
		direct := redisbucket.New(connect(t, replica.Addr))
		for _, key := range []string{"key", "new key"} { // It would refuse the one and let the other leave.
			_, err := direct.Take(ctx, one(key))
			require.ErrorContains(t, err, "READONLY", key)
		}
		older := one("key")
		older.Rate.Version--
		_, err := direct.Take(ctx, older)
		require.ErrorContains(t, err, "READONLY")
	})

	t.Run("the replica becomes the master and has the level", func(t *testing.T) {
		require.Same(t, master, sentinel.KillMaster())
		_, err := bucket.Take(within(t), one("key"))
		require.Error(t, err)
		var answer shared.Taken
		realtime.Until(t, func() bool {
			answer, err = bucket.Take(within(t), one("key"))
			return err == nil
		}, "the replica is the master")
		require.False(t, answer.OK, "its level is known: %+v", answer)
		require.False(t, answer.Cold)
	})
}
