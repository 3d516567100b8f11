package redisbucket_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// An answer of a server that has not carried out the script is an error, and never a licence.
func TestWhatIsWrongIsAnError(t *testing.T) {
	ctx, server := within(t), miniredis.RunT(t)
	bucket := redisbucket.New(connect(t, server.Addr()))
	for _, says := range []string{
		"LOADING Redis is loading the dataset in memory", "CLUSTERDOWN The cluster is down",
		"READONLY You can't write against a read only replica.", "OOM command not allowed when used memory > 'maxmemory'.",
		"NOPERM this user has no permissions", "BUSY Redis is busy running a script.", "MASTERDOWN Link with MASTER is down",
	} {
		server.SetError(says)
		_, err := bucket.Take(ctx, one("key"))
		require.EqualError(t, err, "redisbucket: "+says)
		require.EqualError(t, bucket.GiveBack(ctx, one("key"), shared.Instant{}), "redisbucket: "+says)
		_, err = bucket.Seats(ctx, seating("key"))
		require.EqualError(t, err, "redisbucket: "+says)
		_, err = bucket.Keep(ctx, keeping("key"))
		require.EqualError(t, err, "redisbucket: "+says)
	}
	server.SetError("")
	require.True(t, taken(t, bucket, "key"), "nothing was taken meanwhile")

	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": server.Addr()}})
	defer func() { require.NoError(t, ring.Close()) }()
	for _, test := range []struct {
		bucket shared.Bucket
		change func(*shared.Take)
		says   string
	}{
		{redisbucket.New(nil, nil), nil, "the client is nil"},
		{redisbucket.New(ring), nil, "use NewRing"},
		{redisbucket.NewRing(nil), nil, "no servers"},
		{bucket, func(t *shared.Take) { t.Key = "" }, "the key is empty"},
		{bucket, func(t *shared.Take) { t.Cost = 0 }, "the cost is 0"},
		{bucket, func(t *shared.Take) { t.Rate = shared.BucketRate{} }, "the rate {Version:0 "},
		{bucket, func(t *shared.Take) { t.Rate.Version = 1<<53 + 1 }, "Version:9007199254740993"},
	} {
		take := one("other")
		if test.change == nil {
			require.ErrorContains(t, test.bucket.GiveBack(ctx, take, shared.Instant{}), test.says)
			_, err := test.bucket.(shared.Seater).Seats(ctx, seating("other"))
			require.ErrorContains(t, err, test.says)
			_, err = test.bucket.(shared.Keeper).Keep(ctx, keeping("other"))
			require.ErrorContains(t, err, test.says)
		} else {
			test.change(&take)
		}
		_, err := test.bucket.Take(ctx, take)
		require.ErrorContains(t, err, test.says)
	}
	require.True(t, taken(t, bucket, "other"), "a Take that fails takes nothing")
}

// A context that has ended is returned as it is, so that callers can tell it.
func TestACallEndsWithItsContext(t *testing.T) { onEach(t, aCallEndsWithItsContext) }

func aCallEndsWithItsContext(t *testing.T, server *servers.Redis) {
	for _, enabled := range []bool{false, true} {
		client := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: enabled, ReadTimeout: patience})
		bucket := redisbucket.New(client)
		realtime.Until(t, func() bool { return client.Ping(within(t)).Err() == nil }, "there is a connection")
		server.Pause()
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		began := time.Now()
		_, err := bucket.Take(ctx, one("key"))
		require.Less(t, time.Since(began), patience/2, "ContextTimeoutEnabled is %v", enabled)
		require.Equal(t, context.DeadlineExceeded, err)
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
		_, err = bucket.Seats(ctx, seating("key"))
		require.Equal(t, context.DeadlineExceeded, err)
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
		_, err = bucket.Keep(ctx, keeping("key"))
		require.Equal(t, context.DeadlineExceeded, err)
		require.Less(t, time.Since(began), patience/2, "ContextTimeoutEnabled is %v", enabled)
		cancel()

		ctx, cancel = context.WithCancel(context.Background())
		cancel()
		err = bucket.GiveBack(ctx, one("key"), shared.Instant{})
		require.True(t, errors.Is(err, context.Canceled), err)
		server.Resume()
		require.NoError(t, client.Close())
	}
}

func TestTheAnswerOfAnotherScriptIsAnError(t *testing.T) {
	for _, text := range []string{"", "1 0 1 2", "1 0 1 2 3 4", "1 0 1 2 x", "1 0 1 2 3 1 2 3 4 5 6 7 8", "1 0 1 2 3 @", "1 0 1 2 3 @x", "1 0 1 2 3 @4 5", "1 0 1 2 @4"} {
		_, ok := redisbucket.ParseTaken(text)
		require.False(t, ok, text)
	}
}

// The permissions that the documentation names must suffice, also for rare calls.
func TestAUserWithTheDocumentedRightsCanUseABucket(t *testing.T) {
	onEach(t, aUserWithTheDocumentedRightsCanUseABucket)
}

func aUserWithTheDocumentedRightsCanUseABucket(t *testing.T, server *servers.Redis) {
	ctx := within(t)
	server.MustDo("ACL", "SETUSER", "limited", "on", ">secret", "resetkeys", "-@all",
		"+evalsha", "+eval", "+get", "+set", "+setrange", "+time", "~shaper:*",
		"+hgetall", "+hmget", "+hset", "+hsetnx", "+hdel", "+del", "+pexpire", "+info", "~seats:*", "~keeper:*",
		"+hello")
	client := redis.NewClient(&redis.Options{Addr: server.Addr, Username: "limited", Password: "secret", DisableIdentity: true, ReadTimeout: patience})
	defer func() { require.NoError(t, client.Close()) }()
	bucket := redisbucket.New(client)
	answer, err := bucket.Take(ctx, one("key"))
	require.NoError(t, err)
	require.True(t, answer.OK)
	require.False(t, taken(t, bucket, "key"))
	require.NoError(t, bucket.GiveBack(ctx, one("key"), addMicros(answer.Empty, hour.Micros)))
	require.True(t, taken(t, bucket, "key"))
	guarded := one("guarded")
	guarded.Guard = 1e9
	answer, err = bucket.Take(ctx, guarded)
	require.NoError(t, err)
	require.Equal(t, shared.Instant{Micros: answer.Now + 1e6}, answer.Empty)
	// Each command of the two other scripts: a new key, one that is known, one that is overtaken, forgotten, and damaged.
	admin := connect(t, server.Addr)
	for _, q := range []shared.Seating{
		{ID: "a", Cap: 2, Want: 1, Number: 1}, {ID: "a", Cap: 2, Want: 1, Number: 3}, {ID: "a", Cap: 2, Want: 1, Number: 2}, {ID: "a", Cap: 2, Number: 4},
	} {
		q.Key = "key"
		_, err = bucket.Seats(ctx, q)
		require.NoError(t, err)
	}
	_, err = bucket.Keep(ctx, keeping("key"))
	require.NoError(t, err)
	for _, id := range []string{"a", "b", "a"} {
		k := keeping("key")
		k.ID, k.Lease = id, 0
		_, err = bucket.Keep(ctx, k)
		require.NoError(t, err)
	}
	for _, name := range []string{redisbucket.SeatsName(bucket, "damaged"), redisbucket.KeeperName(bucket, "damaged")} {
		require.NoError(t, admin.Set(ctx, name, "of another type", 0).Err())
	}
	_, err = bucket.Seats(ctx, seating("damaged"))
	require.NoError(t, err)
	_, err = bucket.Keep(ctx, keeping("damaged"))
	require.NoError(t, err)
	require.Empty(t, server.MustDo("ACL", "LOG"), "nothing was denied")

	_, err = redisbucket.New(client, redisbucket.WithPrefix("other:")).Take(ctx, one("key"))
	require.ErrorContains(t, err, "NOPERM")

	// A user with the rights of an older version uses levels as before.
	server.MustDo("ACL", "SETUSER", "limited", "-hgetall", "-hmget", "-hset", "-hsetnx", "-hdel", "-del", "-pexpire", "-info", "resetkeys", "~shaper:*")
	require.False(t, taken(t, bucket, "key"))
	_, err = bucket.Seats(ctx, seating("key"))
	require.ErrorContains(t, err, "NOPERM")
	_, err = bucket.Keep(ctx, keeping("key"))
	require.ErrorContains(t, err, "NOPERM")
}

// A process of a version that knows of no holds takes a state with one for none, and the next process that knows of the hold
// mends it. Without a hold both write the same state.
func TestAScriptWithoutHoldsTakesAHeldStateForNone(t *testing.T) {
	old, err := os.ReadFile("testdata/take_without_holds.lua")
	require.NoError(t, err)
	ctx, client := within(t), connect(t, servers.StartRedis(t).Addr)
	bucket := redisbucket.New(client)
	older := func() string {
		answer, err := client.Eval(ctx, string(old), []string{"shaper:key"}, 1, "3600000000 0 1 1 0 0", 1, int64(3600000000), 0, 0, 0, 0, 0, 0, 0, 0).Text()
		require.NoError(t, err)
		return answer[:3]
	}
	require.Equal(t, "1 1", older(), "taken, and there was no state")
	require.False(t, taken(t, bucket, "key"), "what the old script writes is a state")
	tell := one("key")
	tell.Hold, tell.First = time.Now().Add(3*time.Hour).UnixMicro(), 2
	held, err := bucket.Take(ctx, tell)
	require.NoError(t, err)
	require.Equal(t, tell.Hold, held.Hold)
	require.Equal(t, "1 1", older(), "it is lost for the old script")
	require.False(t, taken(t, bucket, "key"))
	held, err = bucket.Take(ctx, tell)
	require.NoError(t, err)
	require.Equal(t, [2]int64{tell.Hold, tell.Hold}, [2]int64{held.Hold, held.Empty.Micros}, "who knows of the hold mends it")
}

// A state that somebody has written by hand, or another program, must neither stop the
// rate nor make each call an error. The suite has the numbers that are outside of their ranges.
func TestADamagedStateIsNone(t *testing.T) { onEach(t, aDamagedStateIsNone) }

func aDamagedStateIsNone(t *testing.T, server *servers.Redis) {
	ctx, client := within(t), connect(t, server.Addr)
	bucket := redisbucket.New(client)
	now := time.Now().UnixMicro()
	good := redisbucket.Encode(shared.BucketLevel{Empty: shared.Instant{Micros: now + 1e9}, Rate: hour, At: now})
	require.NoError(t, client.Set(ctx, "shaper:good", good, 0).Err())
	require.False(t, taken(t, bucket, "good"), "this one is not damaged")

	at := strconv.FormatInt(now, 10)
	rate := " 1 3600000000 0 1 1 0 0" // with its version
	for _, state := range []string{
		"", " ", "garbage", "-1", "1e15", at, good + " ", " " + good, good + "\n", good + " 1", good + " @", good + " @-1", good + " @99999999999999999", good + " @1 1", "x" + good[1:],
		"-1 0 " + at + rate, "nan 0 " + at + rate, "inf 0 " + at + rate, "0x7fffffffffff 0 " + at + rate,
		"99999999999999999999 0 " + at + rate, // the far future
		"9999999999999999 0 9999999999999999" + rate,
		at + "000 0 " + at + rate,
		"9007199254740000 0 " + at + " 1 3600000000 0 1 1 1 0",                    // the room of another rate
		"9007199254740000 0 " + at + " 9 3600000000 0 1 1 1 0",                    // and with another version
		"9007199254740000 0 " + at + " 99999999999999999999 3600000000 0 1 1 0 0", // too great a version of this rate
		"9007199254740000 0 " + at + " -1 3600000000 0 1 1 0 0",                   // a negative one
		"9007199254740000 0 " + at + " 99999999999999999999 1 0 1 1 0 0",          // too great a version
		"9007199254740000 0 " + at + " 9 1 0 1 99999999999999999999999 0 0",       // too great a burst
		"9007199254740000 0 " + at + " 9 1 0 1 9223372036854775808 0 0",           // a burst that is no int64
		"9007199254740000 0 " + at + " 9 1 0 1 9999999999999999999 0 0",           // nor is this
		"9007199254740000 0 " + at + " 9 1 0 1 1 0",                               // a number is missing
		"9007199254740000 0 " + at + " -- 1 0 1 1 0 0", "\x00\xff\x00", "nil",     // no numbers
	} {
		require.NoError(t, client.Set(ctx, "shaper:key", state, 0).Err())
		require.NoError(t, bucket.GiveBack(ctx, one("key"), shared.Instant{Micros: 1}))
		kept, err := client.Get(ctx, "shaper:key").Result()
		require.NoError(t, err)
		require.Equal(t, state, kept, "GiveBack does nothing")

		got, err := bucket.Take(ctx, one("key"))
		require.NoErrorf(t, err, "state %q", state)
		require.Truef(t, got.OK && got.Cold, "state %q: %+v", state, got)
		require.Falsef(t, taken(t, bucket, "key"), "after %q there is a level", state)
	}
	for _, make := range []func(key string) error{
		func(key string) error { return client.RPush(ctx, key, good).Err() },
		func(key string) error { return client.HSet(ctx, key, "a", "b").Err() },
		func(key string) error { return client.SAdd(ctx, key, "a").Err() },
		func(key string) error {
			return client.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []string{"a", "b"}}).Err()
		},
	} {
		require.NoError(t, client.Del(ctx, "shaper:key").Err())
		require.NoError(t, make("shaper:key"))
		require.NoError(t, bucket.GiveBack(ctx, one("key"), shared.Instant{Micros: 1}))
		guarded := one("key")
		guarded.Guard = time.Minute
		got, err := bucket.Take(ctx, guarded)
		require.NoError(t, err)
		require.True(t, got.Cold && !got.OK, "its guard has begun: %+v", got)
		require.NoError(t, client.Del(ctx, "shaper:key").Err())
		require.NoError(t, make("shaper:key"))
		require.True(t, taken(t, bucket, "key"))
		require.False(t, taken(t, bucket, "key"))
	}
}

// Keys of users who have gone must not fill the memory, and keys of users who have not must not be
// forgotten.
func TestAKeyExpiresAMinuteAfterItsLevelHasReachedZero(t *testing.T) {
	onEach(t, aKeyExpiresAMinuteAfterItsLevelHasReachedZero)
}

func aKeyExpiresAMinuteAfterItsLevelHasReachedZero(t *testing.T, server *servers.Redis) {
	ctx, client := within(t), connect(t, server.Addr)
	bucket := redisbucket.New(client, redisbucket.WithPrefix("mine:"))
	take := one("key")
	take.Rate.Burst = 1000
	take.Cost = 24
	got, err := bucket.Take(ctx, take)
	require.NoError(t, err)
	require.True(t, got.OK)
	require.InDelta(t, 24*time.Hour+time.Minute, ttl(t, client), float64(patience))
	require.Less(t, client.StrLen(ctx, "mine:key").Val(), int64(100), "bytes of state")

	end := got.Empty
	end.Micros += 24 * time.Hour.Microseconds()
	require.NoError(t, bucket.GiveBack(ctx, take, end))
	require.InDelta(t, time.Minute, ttl(t, client), float64(patience))
	require.NoError(t, client.PExpire(ctx, "mine:key", time.Millisecond).Err())
	realtime.Until(t, func() bool { return client.DBSize(ctx).Val() == 0 }, "the key is gone")
}

func ttl(t *testing.T, client *redis.Client) time.Duration {
	left, err := client.PTTL(within(t), "mine:key").Result()
	require.NoError(t, err)
	require.Positive(t, left)
	return left
}

// The server may lose its scripts at any time; a lost one is sent again, and counts once.
func TestScriptFlushIsInvisible(t *testing.T) { onEach(t, scriptFlushIsInvisible) }

func scriptFlushIsInvisible(t *testing.T, server *servers.Redis) {
	ctx, client := within(t), connect(t, server.Addr)
	bucket := redisbucket.New(client)
	take := one("key")
	take.Rate.Burst = 1000
	var level shared.BucketLevel
	for range 20 {
		require.NoError(t, client.ScriptFlush(ctx).Err())
		got, err := bucket.Take(ctx, take)
		require.NoError(t, err)
		var want shared.Taken
		level, want = take.Apply(level, got.Now)
		require.Equal(t, want, got)
	}
	require.NoError(t, client.ScriptFlush(ctx).Err())
	require.NoError(t, bucket.GiveBack(ctx, take, level.Empty))
	state, err := client.Get(ctx, "shaper:key").Result()
	require.NoError(t, err)
	require.Equal(t, redisbucket.Encode(take.ApplyGiveBack(level, level.Empty)), state)

	for n := range 3 {
		require.NoError(t, client.ScriptFlush(ctx).Err())
		seated, err := bucket.Seats(ctx, shared.Seating{Key: "key", ID: "a", Cap: 2, Want: 1, Number: int64(n) + 1, Answered: int64(n)})
		require.NoError(t, err)
		require.Equal(t, shared.Seated{Target: 2, Now: seated.Now}, seated, "the guard goes on")
		require.NoError(t, client.ScriptFlush(ctx).Err())
		kept, err := bucket.Keep(ctx, keeping("key"))
		require.NoError(t, err)
		require.Equal(t, "a", kept.ID)
		require.Equal(t, n > 0, kept.Value != nil, "what the first call has begun the next goes on with")
	}
}

// A failedDials is a hook that sends a value for each attempt to connect that has failed. It
// must be added before a Bucket's own, which then has noted it.
type failedDials chan struct{}

func (f failedDials) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil {
			select {
			case f <- struct{}{}:
			default:
			}
		}
		return conn, err
	}
}

func (failedDials) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (failedDials) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// takes makes a call whose time ends while the client waits to dial again, and returns its error.
func (f failedDials) takes(t *testing.T, bucket *redisbucket.Bucket, key string) error {
	ctx, cancel := context.WithCancel(within(t))
	over := make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-f:
		case <-ctx.Done():
		}
		cancel()
	}()
	_, err := bucket.Take(ctx, one(key))
	cancel()
	<-over
	return err
}

// A client of go-redis dials for longer than a call may take. Whoever looks for the reason of an
// outage must read it, and not only that time has passed.
func TestARefusedConnectionIsTold(t *testing.T) {
	t.Parallel()
	for name, newClient := range map[string]func(addr string) redis.UniversalClient{
		"defaults": func(addr string) redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: addr}) },
		"a context that is obeyed": func(addr string) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
		},
		"one attempt": func(addr string) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: addr, DialerRetries: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := servers.StartRedis(t)
			client, dialed := newClient(server.Addr), make(failedDials, 1)
			defer func() { require.NoError(t, client.Close()) }()
			client.AddHook(dialed)
			bucket := redisbucket.New(client)
			require.True(t, taken(t, bucket, "key"))
			s, err := shaper.New(shaper.Limits{Rate: 50, Depth: 9}, shaper.WithBucket(bucket, "other", shared.Options{}))
			require.NoError(t, err)
			defer s.Close()
			require.NoError(t, s.Wait(within(t)))

			server.Kill()
			for range 3 {
				require.ErrorIs(t, dialed.takes(t, bucket, "key"), syscall.ECONNREFUSED)
			}
			ctx, cancel := context.WithCancel(t.Context())
			waiting := make(chan error, 1)
			go func() { waiting <- s.Wait(ctx) }()
			realtime.Until(t, func() bool {
				b := s.Stats().Bucket
				return b.State == shared.StateDown && errors.Is(b.Err, syscall.ECONNREFUSED)
			}, "it counts as unavailable, and says why")
			cancel()
			realtime.Next(t, waiting)

			server.Restart()
			require.True(t, taken(t, bucket, "new"))
			server.Pause()
			defer server.Resume()
			ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			_, err = bucket.Take(ctx, one("key"))
			require.Equal(t, context.DeadlineExceeded, err, "that was another outage")
		})
	}
}

// What a cluster's servers refuse is told of each server's keys alone.
func TestARefusedConnectionToANodeIsTold(t *testing.T) {
	t.Parallel()
	cluster := servers.StartRedisCluster(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs, ContextTimeoutEnabled: true, ReadTimeout: patience})
	defer func() { require.NoError(t, client.Close()) }()
	dialed := make(failedDials, 1)
	client.OnNewNode(func(node *redis.Client) { node.AddHook(dialed) })
	bucket := redisbucket.New(client)
	up, down := keysOf(cluster, 0, "up", 1)[0], keysOf(cluster, 2, "down", 1)[0]
	require.True(t, taken(t, bucket, up))
	require.True(t, taken(t, bucket, down))

	cluster.Nodes[2].Kill()
	require.ErrorIs(t, dialed.takes(t, bucket, down), syscall.ECONNREFUSED)
	cluster.Nodes[0].Pause()
	defer cluster.Nodes[0].Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := bucket.Take(ctx, one(up))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, syscall.ECONNREFUSED)
}

// far is a round trip to a server that is far away. A call has time for two of them, and a
// connection with TLS takes three.
const far = 100 * time.Millisecond

// startFar starts a server with TLS that is far away, and returns the options of its clients.
func startFar(t *testing.T) *redis.Options {
	dir, port := t.TempDir(), servers.FreePort(t)
	site := httptest.NewTLSServer(nil) // It has a certificate for 127.0.0.1, and serves nobody.
	site.Close()
	private, err := x509.MarshalPKCS8PrivateKey(site.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	file := func(name, kind string, bytes []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600))
		return path
	}
	certFile := file("cert.pem", "CERTIFICATE", site.Certificate().Raw)
	servers.StartRedis(t, "--tls-port", strconv.Itoa(port), "--tls-auth-clients", "no",
		"--tls-cert-file", certFile, "--tls-key-file", file("key.pem", "PRIVATE KEY", private), "--tls-ca-cert-file", certFile)
	proxy := servers.StartProxy(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	proxy.SetDelay(far, 0)
	roots := x509.NewCertPool()
	roots.AddCert(site.Certificate())
	return &redis.Options{Addr: proxy.Addr, TLSConfig: &tls.Config{RootCAs: roots}}
}

// A call that is too short to make a connection must not be all in vain: otherwise each call
// begins anew, and a healthy server is never reached.
func TestAFarServerIsReachedByAColdClient(t *testing.T) {
	t.Parallel()
	for _, obeys := range []bool{false, true} {
		t.Run(strconv.FormatBool(obeys), func(t *testing.T) {
			t.Parallel()
			options := startFar(t)
			options.ContextTimeoutEnabled = obeys
			client := redis.NewClient(options)
			defer func() { require.NoError(t, client.Close()) }()
			s, err := shaper.New(shaper.Limits{Rate: 50, Depth: 9}, shaper.WithBucket(redisbucket.New(client), "key", shared.Options{}))
			require.NoError(t, err)
			defer s.Close()
			began := time.Now()
			require.NoError(t, s.Wait(within(t)))
			t.Logf("the first request left after %v, and %d calls that failed", time.Since(began), s.Stats().Bucket.Failures)
		})
	}
}
