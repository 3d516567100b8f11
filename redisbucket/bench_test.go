package redisbucket_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper/shared"
)

// BenchmarkTake is one call over the loopback: of a Take that takes, of one that is
// refused, and of a PING, which is what the client and the way cost. contexts is a client
// whose calls end with their contexts by themselves.
func BenchmarkTake(b *testing.B) {
	server := servers.StartRedis(b)
	ctx := context.Background()
	fast := shared.Take{Key: "fast", Cost: 8, First: 1, Rate: shared.BucketRate{Version: 1, Part: 1, Parts: 1000, Burst: 1}}
	for name, enabled := range map[string]bool{"contexts": true, "default": false} {
		client := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: enabled})
		bucket := redisbucket.New(client)
		b.Run("taken/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				answer, err := bucket.Take(ctx, fast)
				require.NoError(b, err)
				require.True(b, answer.OK)
			}
		})
		b.Run("refused/"+name, func(b *testing.B) {
			_, err := bucket.Take(ctx, one("slow"))
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				answer, err := bucket.Take(ctx, one("slow"))
				require.NoError(b, err)
				require.False(b, answer.OK)
			}
		})
		b.Run("ping/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, client.Ping(ctx).Err())
			}
		})
		require.NoError(b, client.Close())
	}
}
