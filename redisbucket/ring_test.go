package redisbucket_test

import (
	"maps"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper/shared"
)

func TestAServerOfARingThatIsDownFailsItsOwnKeysOnly(t *testing.T) {
	t.Parallel()
	clients, running := map[string]redis.UniversalClient{}, map[string]*servers.Redis{}
	for _, name := range []string{"a", "b", "c"} {
		running[name] = servers.StartRedis(t)
		clients[name] = connect(t, running[name].Addr)
	}
	ring := redisbucket.NewRing(clients, redisbucket.WithPrefix("ring:"))
	keys := map[string][]string{}
	for i := range 30 {
		key := "key" + strconv.Itoa(i)
		keys[ring.Shard(key)] = append(keys[ring.Shard(key)], key)
		require.True(t, taken(t, ring, key))
	}
	for name, server := range running {
		require.Equal(t, strconv.Itoa(len(keys[name])), server.MustDo("DBSIZE"), "server %s has its own keys", name)
		require.NotEmpty(t, keys[name])
	}

	running["b"].Kill()
	for name, keys := range keys {
		for _, key := range keys {
			answer, err := ring.Take(within(t), one(key))
			if name == "b" {
				require.Error(t, err)
				require.Error(t, ring.GiveBack(within(t), one(key), shared.Instant{}))
				continue
			}
			require.NoError(t, err)
			require.False(t, answer.OK, "its level is known")
			require.NoError(t, ring.GiveBack(within(t), one(key), addMicros(answer.Empty, 0)))
			require.True(t, taken(t, ring, key), "it was given back")
		}
	}
	running["b"].Restart()
	realtime.Until(t, func() bool { // The client waits a while before it dials again.
		answer, err := ring.Take(within(t), one(keys["b"][0]))
		return err == nil && answer.OK
	}, "the server is back")
}

// Nobody may notice a new release by the levels of his keys.
func TestTheServerOfAKeyIsTheSameForever(t *testing.T) {
	ring := ringOf(t, "a", "b", "c", "d", "e")
	text := ""
	for i := range 40 {
		text += ring.Shard("user:" + strconv.Itoa(i))
	}
	require.Equal(t, "ddaeebdeeeeedaedcedecebbabcbabebaaecabaa", text)
}

func TestOnlyTheKeysOfANewServerMove(t *testing.T) {
	const keys = 20_000
	before, after := ringOf(t, "a", "b", "c", "d"), ringOf(t, "e", "d", "c", "b", "a")
	counts := map[string]int{}
	for i := range keys {
		key := "user:" + strconv.Itoa(i)
		if now := after.Shard(key); now != before.Shard(key) {
			require.Equal(t, "e", now)
		}
		counts[after.Shard(key)]++
	}
	require.Len(t, counts, 5)
	for name := range maps.Keys(counts) {
		require.InDelta(t, keys/5, counts[name], keys/50, "the share of server %s", name)
	}
}

// Keys of one slot fail together, keys of another may not.
func TestAClusterInARingHasItsSlots(t *testing.T) {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer func() { require.NoError(t, cluster.Close()) }()
	ring := redisbucket.NewRing(map[string]redis.UniversalClient{"a": cluster})
	require.Equal(t, "a "+redisbucket.New(cluster).Shard("key"), ring.Shard("key"))
	require.Empty(t, redisbucket.NewRing(nil).Shard("key"))
	require.Empty(t, redisbucket.New(connect(t, "127.0.0.1:1")).Shard("key"), "all keys of one server fail together")
}

// ringOf returns a Ring of servers that nobody asks.
func ringOf(t *testing.T, names ...string) *redisbucket.Ring {
	clients := map[string]redis.UniversalClient{}
	for _, name := range names {
		clients[name] = connect(t, "127.0.0.1:1")
	}
	return redisbucket.NewRing(clients)
}

// addMicros returns an instant that is later.
func addMicros(i shared.Instant, micros int64) shared.Instant {
	i.Micros += micros
	return i
}
