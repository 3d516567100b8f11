package redisbucket_test

import (
	"context"
	"net"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
)

func TestACluster(t *testing.T) {
	t.Parallel()
	cluster := servers.StartRedisCluster(t)
	proxies := map[string]*servers.Proxy{}
	for _, addr := range cluster.Addrs {
		proxies[addr] = servers.StartProxy(t, addr)
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: cluster.Addrs, Dialer: through(proxies), ReadTimeout: patience, WriteTimeout: patience,
	})
	defer func() { require.NoError(t, client.Close()) }()
	bucket := redisbucket.New(client)

	t.Run("each key has a slot, and keys of one slot fail together", func(t *testing.T) {
		ctx := within(t)
		for _, key := range []string{"a", "", "user:1", "{user}:1", "{user", "}user{", "{}user", "a{b}c{d}", "{{x}}", "ä\x00"} {
			want, err := client.ClusterKeySlot(ctx, "shaper:"+key).Result()
			require.NoError(t, err)
			require.Equal(t, int(want), redisbucket.Slot("shaper:"+key), "key %q", key)
			require.Equal(t, "slot "+strconv.FormatInt(want, 10), bucket.Shard(key))
		}
		for i := range 50 {
			key := "spread" + strconv.Itoa(i)
			require.True(t, taken(t, bucket, key))
			require.False(t, taken(t, bucket, key))
		}
	})

	t.Run("a slot moves", func(t *testing.T) { moveASlot(t, cluster, client, proxies) })

	t.Run("a server that is down fails its own keys only", func(t *testing.T) {
		mine := keysOf(cluster, 2, "down", 3)
		others := append(keysOf(cluster, 0, "up", 3), keysOf(cluster, 1, "up", 3)...)
		cluster.Nodes[2].Kill()
		for _, key := range mine {
			_, err := bucket.Take(within(t), one(key))
			require.Error(t, err)
		}
		for _, key := range others {
			require.True(t, taken(t, bucket, key))
			for _, down := range mine {
				require.NotEqual(t, bucket.Shard(down), bucket.Shard(key))
			}
		}
		cluster.Nodes[2].Restart()
		realtime.Until(t, func() bool {
			answer, err := bucket.Take(within(t), one(mine[0]))
			return err == nil && answer.OK
		}, "the server is back")
	})
}

// keysOf returns keys whose slots a server had when the cluster began.
func keysOf(cluster *servers.RedisCluster, server int, begin string, count int) (keys []string) {
	for i := 0; len(keys) < count; i++ {
		key := begin + strconv.Itoa(i)
		if slot := redisbucket.Slot("shaper:" + key); slot*len(cluster.Nodes)/16384 == server {
			keys = append(keys, key)
		}
	}
	return keys
}

// moveASlot moves a slot to another server while its keys are in use, step by step as
// redis-cli does.
func moveASlot(t *testing.T, cluster *servers.RedisCluster, client *redis.ClusterClient, proxies map[string]*servers.Proxy) {
	ctx, bucket := within(t), redisbucket.New(client)
	from, to := cluster.Nodes[0], cluster.Nodes[1]
	key := keysOf(cluster, 0, "moves", 1)[0]
	slot := strconv.Itoa(redisbucket.Slot("shaper:" + key))
	tag := "{shaper:" + key + "}" // the same slot
	host, port, err := net.SplitHostPort(to.Addr)
	require.NoError(t, err)

	take := one(key)
	take.Rate.Burst = 100
	first, err := bucket.Take(ctx, take)
	require.NoError(t, err)
	require.True(t, first.Cold)
	units := int64(1)
	goesOn := func(when string) {
		answer, err := bucket.Take(ctx, take)
		require.NoError(t, err, when)
		require.False(t, answer.Cold, when)
		require.Equal(t, first.Empty.Micros+units*hour.Micros, answer.Empty.Micros, when)
		units++
	}

	to.MustDo("CLUSTER", "SETSLOT", slot, "IMPORTING", from.MustDo("CLUSTER", "MYID").(string))
	from.MustDo("CLUSTER", "SETSLOT", slot, "MIGRATING", to.MustDo("CLUSTER", "MYID").(string))
	goesOn("it has not been moved yet")
	unprefixed := redisbucket.New(client, redisbucket.WithPrefix(""))
	require.True(t, taken(t, unprefixed, tag+"new"), "a new key is made at the new server (ASK)")
	require.False(t, taken(t, unprefixed, tag+"new"))

	from.MustDo("MIGRATE", host, port, "shaper:"+key, "0", "5000")
	goesOn("the old server asks to ask the new one (ASK)")
	to.MustDo("SCRIPT", "FLUSH")
	goesOn("and that has lost the script")

	// An answer that is lost behind a redirection is not asked for again either.
	require.NoError(t, client.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return c.Ping(ctx).Err() }), "it has connections")
	proxies[to.Addr].CutReplies(1)
	_, err = bucket.Take(ctx, take)
	require.Error(t, err)
	units++
	goesOn("after the loss")

	for _, node := range cluster.Nodes {
		node.MustDo("CLUSTER", "SETSLOT", slot, "NODE", to.MustDo("CLUSTER", "MYID").(string))
	}
	goesOn("the slot has moved (MOVED)")
	goesOn("and the client knows")
	require.NoError(t, bucket.GiveBack(ctx, take, addMicros(first.Empty, units*hour.Micros)))
	units--
	goesOn("after it was given back")
}

// A cluster that is down says so.
func TestAClusterWithoutASlotIsAnError(t *testing.T) {
	server := servers.StartRedis(t, "--cluster-enabled", "yes")
	client := redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: server.Addr}}}}, nil
		},
	})
	defer func() { require.NoError(t, client.Close()) }()
	_, err := redisbucket.New(client).Take(within(t), one("key"))
	require.ErrorContains(t, err, "redisbucket: CLUSTERDOWN ")
}
