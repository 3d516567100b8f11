package redisbucket_test

import (
	"context"
	"net"
	"regexp"
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

// A Take whose answer is lost has taken. If the client sent it again, as go-redis does by
// default, it would take twice.
func TestALostAnswerIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	onEach(t, aLostAnswerIsNotAskedForAgain)
}

func aLostAnswerIsNotAskedForAgain(t *testing.T, server *servers.Redis) {
	proxy := servers.StartProxy(t, server.Addr)
	for name, client := range map[string]redis.UniversalClient{
		"one server": redis.NewClient(&redis.Options{Addr: proxy.Addr, ReadTimeout: soon, WriteTimeout: patience, MaxRetries: 2}),
		"one server with contexts": redis.NewClient(&redis.Options{
			Addr: proxy.Addr, ReadTimeout: soon, WriteTimeout: patience, MaxRetries: 2, ContextTimeoutEnabled: true,
		}),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{
			ReadTimeout: soon, WriteTimeout: patience, MaxRedirects: 2,
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: proxy.Addr}}}}, nil
			},
		}),
	} {
		t.Run(name, func(t *testing.T) {
			defer func() { require.NoError(t, client.Close()) }()
			takesOnce(t, client, connect(t, server.Addr), proxy)
		})
	}
}

// soon is when a client gives up an answer that is lost. On a busy machine it also gives up
// answers that are on their way.
const soon = 300 * time.Millisecond

// takesOnce fails the test if a Take whose answer the proxy loses is sent more than once, or
// if that is no trial for the client. direct is of the same server, without the proxy.
func takesOnce(t *testing.T, client redis.UniversalClient, direct *redis.Client, proxy *servers.Proxy) {
	ctx := within(t)
	bucket, other := redisbucket.New(client), redisbucket.New(direct)
	take := one("lost:" + t.Name())
	take.Rate.Burst = 100
	realtime.Until(t, func() bool { return redisbucket.Reach(ctx, bucket, take.Key) == nil }, "it has a connection")
	first, err := other.Take(ctx, take)
	require.NoError(t, err)
	units := int64(1)
	require.NoError(t, other.GiveBack(ctx, take, shared.Instant{}), "the server has that script now too")
	connected := func() {
		t.Helper()
		realtime.Until(t, func() bool { return client.Ping(ctx).Err() == nil }, "there is a connection")
	}
	// once makes a call whose answer is lost in some way, and waits until it has changed the
	// level. The client has a connection, so it has nothing else to send before the call.
	once := func(lose func(n int), what string, call func() error) {
		t.Helper()
		level := direct.Get(ctx, "shaper:"+take.Key).Val()
		connected()
		before := scriptsRun(t, direct)
		lose(1)
		require.Error(t, call())
		lose(0)
		realtime.Until(t, func() bool { return direct.Get(ctx, "shaper:"+take.Key).Val() != level }, "the "+what+" is carried out")
		require.Equal(t, before+1, scriptsRun(t, direct), "the %s was sent so often", what)
	}
	for _, lose := range []func(n int){proxy.LoseReplies, proxy.CutReplies} {
		// An ordinary command of the same client is repeated, unless the client has given up
		// before it had a second connection.
		realtime.Until(t, func() bool {
			direct.Del(ctx, "counted")
			connected()
			lose(1)
			client.Incr(ctx, "counted")
			lose(0)
			return direct.Get(ctx, "counted").Val() > "1"
		}, "a command is repeated")

		once(lose, "Take", func() error { _, err := bucket.Take(ctx, take); return err })
		units++
		again, err := other.Take(ctx, take)
		require.NoError(t, err)
		require.Equal(t, first.Empty.Micros+units*hour.Micros, again.Empty.Micros, "it has taken once")
		units++

		end := shared.Instant{Micros: first.Empty.Micros + units*hour.Micros}
		once(lose, "GiveBack", func() error { return bucket.GiveBack(ctx, take, end) })
		units--
	}
}

// scriptsRun returns how many scripts a server has been sent.
func scriptsRun(t *testing.T, direct *redis.Client) (n int) {
	t.Helper()
	stats, err := direct.Info(within(t), "commandstats").Result()
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`cmdstat_evalsha?:calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
		calls, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		n += calls
	}
	return n
}

// through returns a dialer that goes through the proxy of a server, if it has one.
func through(proxies map[string]*servers.Proxy) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if p := proxies[addr]; p != nil {
			addr = p.Addr
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
}
