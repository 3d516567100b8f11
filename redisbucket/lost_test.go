package redisbucket_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper"
)

// A Take whose answer is lost has taken. If the client sent it again, as go-redis does by
// default, it would take twice.
func TestALostAnswerIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	onEach(t, aLostAnswerIsNotAskedForAgain)
}

func aLostAnswerIsNotAskedForAgain(t *testing.T, server *servers.Redis) {
	w := newWire(t, server.Addr)
	const soon = 300 * time.Millisecond // when the client gives up an answer
	for name, client := range map[string]redis.UniversalClient{
		"one server": redis.NewClient(&redis.Options{Addr: w.addr(), ReadTimeout: soon, MaxRetries: 2}),
		"one server with contexts": redis.NewClient(&redis.Options{
			Addr: w.addr(), ReadTimeout: soon, MaxRetries: 2, ContextTimeoutEnabled: true,
		}),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{
			ReadTimeout: soon, MaxRedirects: 2,
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: w.addr()}}}}, nil
			},
		}),
	} {
		t.Run(name, func(t *testing.T) {
			defer func() { require.NoError(t, client.Close()) }()
			takesOnce(t, client, redisbucket.New(connect(t, server.Addr)), w)
		})
	}
}

// takesOnce fails the test if a Take whose answer the wire loses is sent more than once, or
// if the wire is no trial for the client. direct is on the same server, without the wire.
func takesOnce(t *testing.T, client redis.UniversalClient, direct shaper.Bucket, w *wire) {
	ctx := within(t)
	bucket := redisbucket.New(client)
	take := one("lost:" + t.Name())
	take.Rate.Burst = 100
	first, err := direct.Take(ctx, take)
	require.NoError(t, err)
	units := int64(1)
	require.NoError(t, direct.GiveBack(ctx, take, shaper.Instant{}), "the server has that script now too")
	for _, how := range []int{swallow, cut} {
		// An ordinary command of the same client is repeated.
		w.lose(how)
		require.Error(t, client.EvalSha(ctx, "0", []string{"key"}).Err())
		require.Greater(t, w.count(), 1)

		w.lose(how)
		_, err := bucket.Take(ctx, take)
		require.Error(t, err)
		require.Equal(t, 1, w.count(), "the Take was sent so often")
		units++

		w.lose(keep)
		again, err := direct.Take(ctx, take)
		require.NoError(t, err)
		require.Equal(t, first.Empty.Micros+units*hour.Micros, again.Empty.Micros, "it has taken once")
		units++

		w.lose(how)
		end := shaper.Instant{Micros: first.Empty.Micros + units*hour.Micros}
		require.Error(t, bucket.GiveBack(ctx, take, end))
		require.Equal(t, 1, w.count(), "the GiveBack was sent so often")
		units--
		w.lose(keep)
	}
}
