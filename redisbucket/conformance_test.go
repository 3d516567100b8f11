package redisbucket_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

func TestRedisIsABucket(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *servers.Redis) {
		client := connect(t, server.Addr)
		buckettest.Run(t, func(t *testing.T) shared.Bucket { return damageable{redisbucket.New(client), client, t} })
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		client := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: servers.StartRedisCluster(t).Addrs, ContextTimeoutEnabled: true, ReadTimeout: patience, WriteTimeout: patience,
		})
		defer func() { require.NoError(t, client.Close()) }()
		buckettest.Run(t, func(t *testing.T) shared.Bucket { return damageable{redisbucket.New(client), client, t} })
	})
	t.Run("ring", func(t *testing.T) {
		t.Parallel()
		ring := redisbucket.NewRing(map[string]redis.UniversalClient{
			"a": connect(t, servers.StartRedis(t).Addr), "b": connect(t, servers.StartRedis(t).Addr),
		})
		buckettest.Run(t, func(*testing.T) shared.Bucket { return ring })
	})
	t.Run("a server whose clock steps", func(t *testing.T) {
		t.Parallel()
		server := miniredis.RunT(t)
		client := connect(t, server.Addr())
		buckettest.Run(t, func(t *testing.T) shared.Bucket {
			return steppable{damageable{redisbucket.New(client), client, t}, &clock{server: server}}
		})
	})
}

// One call over the loopback.
func BenchmarkTake(b *testing.B) {
	bucket := redisbucket.New(connect(b, servers.StartRedis(b).Addr))
	take := shared.Take{Key: "key", Cost: 1, First: 1, Rate: shared.BucketRate{Version: 1, Micros: 1, Parts: 1, Burst: 1}}
	b.ReportAllocs()
	for b.Loop() {
		answer, err := bucket.Take(b.Context(), take)
		require.NoError(b, err)
		require.True(b, answer.OK)
	}
}

// A damageable is a Bucket whose states the suite can lose and damage.
type damageable struct {
	*redisbucket.Bucket
	client redis.UniversalClient
	t      *testing.T
}

func (d damageable) Corrupt(key, value string) error {
	return d.client.Set(context.Background(), "shaper:"+key, value, time.Hour).Err()
}

func (d damageable) Forget(key string) error {
	return d.client.Del(context.Background(), "shaper:"+key).Err()
}

func (d damageable) Set(key string, l shared.BucketLevel) {
	require.NoError(d.t, d.Corrupt(key, redisbucket.Encode(l)))
}

// A steppable is one whose server has the clock of this machine, but for the steps.
type steppable struct {
	damageable
	clock *clock
}

type clock struct {
	mu     sync.Mutex
	server *miniredis.Miniredis
	offset time.Duration
}

func (s steppable) Step(d time.Duration) {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	s.clock.offset += d
}

func (s steppable) Take(ctx context.Context, t shared.Take) (shared.Taken, error) {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	s.clock.server.SetTime(time.Now().Add(s.clock.offset))
	return s.damageable.Take(ctx, t)
}
