package redisbucket_test

import (
	"context"
	"flag"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper/shared"
)

// TestMain runs more tests at once than there are processors, as most of their time is waiting.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "6"); err != nil { // The command line is read later, and wins.
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// patience is far longer than anything takes on a busy machine.
const patience = 30 * time.Second

// within returns a context that ends only if something hangs.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// onEach runs a test with a server of Redis, and with one of Valkey where that is installed.
func onEach(t *testing.T, test func(t *testing.T, server *servers.Redis)) {
	t.Run("Redis", func(t *testing.T) { test(t, servers.StartRedis(t)) })
	t.Run("Valkey", func(t *testing.T) { test(t, servers.StartValkey(t)) })
}

// connect returns a client of one server, which waits for a server that is not scheduled.
func connect(t testing.TB, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{
		Addr: addr, DialerRetries: 1, DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience,
	})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

// hour is a rate of one per hour: a second request does not leave while a test runs.
var hour = shared.BucketRate{Version: 1, Micros: time.Hour.Microseconds(), Parts: 1, Burst: 1}

// one takes one unit of a key at the rate hour.
func one(key string) shared.Take { return shared.Take{Key: key, Cost: 1, First: 1, Rate: hour} }

// taken asks for one unit and returns whether it was to be had.
func taken(t testing.TB, b shared.Bucket, key string) bool {
	t.Helper()
	answer, err := b.Take(within(t), one(key))
	require.NoError(t, err)
	return answer.OK
}
