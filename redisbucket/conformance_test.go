package redisbucket_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/internal/realtime"
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

// A call for seats beside one for a level, and how much the server keeps for it.
func BenchmarkSeats(b *testing.B) {
	for _, processes := range []int{1, 4, 16, 64} {
		b.Run(fmt.Sprint(processes), func(b *testing.B) {
			client := connect(b, servers.StartRedis(b).Addr)
			d := damageable{redisbucket.New(client), client, b}
			d.ready("key")
			made.SeatsBesideTake(b, d, "key", processes)
			b.ReportMetric(float64(client.MemoryUsage(b.Context(), redisbucket.SeatsName(d.Bucket, "key")).Val()), "B/key")
		})
	}
}

// A damageable is a Bucket whose states the suite can lose and damage.
type damageable struct {
	*redisbucket.Bucket
	client redis.UniversalClient
	t      testing.TB
}

func (d damageable) Corrupt(key, value string) error {
	return d.client.Set(context.Background(), "shaper:"+key, value, time.Hour).Err()
}

func (d damageable) Forget(key string) error {
	for _, name := range []string{"shaper:" + key, redisbucket.SeatsName(d.Bucket, key), redisbucket.KeeperName(d.Bucket, key)} {
		if err := d.client.Del(context.Background(), name).Err(); err != nil {
			return err
		}
	}
	return nil
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

// now sets the clock of the server for one call, which ends with the function that it returns.
func (s steppable) now() (end func()) {
	s.clock.mu.Lock()
	s.clock.server.SetTime(time.Now().Add(s.clock.offset))
	return s.clock.mu.Unlock
}

func (s steppable) Take(ctx context.Context, t shared.Take) (shared.Taken, error) {
	defer s.now()()
	return s.damageable.Take(ctx, t)
}

func (s steppable) Seats(ctx context.Context, q shared.Seating) (shared.Seated, error) {
	defer s.now()()
	return s.damageable.Seats(ctx, q)
}

func (s steppable) Keep(ctx context.Context, k shared.Keeping) (shared.Kept, error) {
	defer s.now()()
	return s.damageable.Keep(ctx, k)
}

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
	seats, keeper := redisbucket.SeatsName(bucket, take.Key), redisbucket.KeeperName(bucket, take.Key)
	states := func() string {
		return fmt.Sprint(direct.Get(ctx, "shaper:"+take.Key).Val(), direct.HGetAll(ctx, seats).Val(), direct.HGetAll(ctx, keeper).Val())
	}
	_, err = other.Seats(ctx, seating(take.Key))
	require.NoError(t, err)
	_, err = other.Keep(ctx, keeping(take.Key))
	require.NoError(t, err, "and those")
	// once makes a call whose answer is lost in some way, and waits until it has changed a
	// state. The client has a connection, so it has nothing else to send before the call.
	once := func(lose func(n int), what string, call func() error) {
		t.Helper()
		state := states()
		connected()
		before := scriptsRun(t, direct)
		lose(1)
		require.Error(t, call())
		lose(0)
		realtime.Until(t, func() bool { return states() != state }, "the "+what+" is carried out")
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

		once(lose, "Seats", func() error { _, err := bucket.Seats(ctx, seating(take.Key)); return err })
		once(lose, "Keep", func() error { _, err := bucket.Keep(ctx, keeping(take.Key)); return err })
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
