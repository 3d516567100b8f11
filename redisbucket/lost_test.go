package redisbucket_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper/shared"
)

// A Take whose answer is lost has taken. If the client sent it again, as go-redis does by
// default, it would take twice.
func TestALostAnswerIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	onEach(t, aLostAnswerIsNotAskedForAgain)
}

func aLostAnswerIsNotAskedForAgain(t *testing.T, server *servers.Redis) {
	w := newWire(t, server.Addr)
	for name, client := range map[string]redis.UniversalClient{
		"one server": redis.NewClient(&redis.Options{Addr: w.addr(), ReadTimeout: soon, WriteTimeout: patience, MaxRetries: 2}),
		"one server with contexts": redis.NewClient(&redis.Options{
			Addr: w.addr(), ReadTimeout: soon, WriteTimeout: patience, MaxRetries: 2, ContextTimeoutEnabled: true,
		}),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{
			ReadTimeout: soon, WriteTimeout: patience, MaxRedirects: 2,
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: w.addr()}}}}, nil
			},
		}),
	} {
		t.Run(name, func(t *testing.T) {
			defer func() { require.NoError(t, client.Close()) }()
			takesOnce(t, client, connect(t, server.Addr), w)
		})
	}
}

// soon is when a client gives up an answer that is lost. On a busy machine it also gives up
// answers that are on their way.
const soon = 300 * time.Millisecond

// takesOnce fails the test if a Take whose answer the wire loses is sent more than once, or
// if the wire is no trial for the client. direct is of the same server, without the wire.
func takesOnce(t *testing.T, client redis.UniversalClient, direct *redis.Client, w *wire) {
	ctx := within(t)
	bucket, other := redisbucket.New(client), redisbucket.New(direct)
	take := one("lost:" + t.Name())
	take.Rate.Burst = 100
	realtime.Until(t, func() bool { return redisbucket.Reach(ctx, bucket, take.Key) == nil }, "it has a connection")
	first, err := other.Take(ctx, take)
	require.NoError(t, err)
	units := int64(1)
	require.NoError(t, other.GiveBack(ctx, take, shared.Instant{}), "the server has that script now too")
	// once makes a call whose answer is lost in some way, and waits until it has changed the
	// level. The client has a connection, so it has nothing else to send before the call.
	once := func(how int, what string, call func() error) {
		t.Helper()
		level := direct.Get(ctx, "shaper:"+take.Key).Val()
		connected(t, client, w)
		w.lose(how)
		require.Error(t, call())
		realtime.Until(t, func() bool { return direct.Get(ctx, "shaper:"+take.Key).Val() != level }, "the "+what+" is carried out")
		require.Equal(t, 1, w.count(), "the %s was sent so often", what)
		w.lose(keep)
	}
	for _, how := range []int{swallow, cut} {
		// An ordinary command of the same client is repeated, unless the client has given up
		// before it had a second connection.
		realtime.Until(t, func() bool {
			w.lose(how)
			return client.EvalSha(ctx, "0", []string{"key"}).Err() != nil && w.count() > 1
		}, "a command is repeated")

		once(how, "Take", func() error { _, err := bucket.Take(ctx, take); return err })
		units++
		again, err := other.Take(ctx, take)
		require.NoError(t, err)
		require.Equal(t, first.Empty.Micros+units*hour.Micros, again.Empty.Micros, "it has taken once")
		units++

		end := shared.Instant{Micros: first.Empty.Micros + units*hour.Micros}
		once(how, "GiveBack", func() error { return bucket.GiveBack(ctx, take, end) })
		units--
	}
}

// connected waits until a client has a connection to the server through the wire.
func connected(t *testing.T, client redis.UniversalClient, w *wire) {
	t.Helper()
	w.lose(keep)
	realtime.Until(t, func() bool { return client.Ping(within(t)).Err() == nil }, "there is a connection")
}
