package redisbucket_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper"
)

func TestTheScriptsDoWhatApplyDoes(t *testing.T) {
	onEach(t, func(t *testing.T, server *servers.Redis) { compare(t, connect(t, server.Addr), nil) })
	t.Run("miniredis", func(t *testing.T) {
		server := miniredis.RunT(t)
		compare(t, connect(t, server.Addr()), server.SetTime)
	})
}

// compare plays random steps to a Bucket, and compares each answer and each state with that
// of the definition. A real server's clock goes on by itself; a state of its future stands
// for a clock that has gone back. Where the clock can be set, setTime does.
func compare(t *testing.T, client *redis.Client, setTime func(time.Time)) {
	const keys = 7
	steps := 4_000
	if os.Getenv("SHAPER_LONG") == "1" {
		steps = 100_000
	}
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	ctx := context.Background()
	bucket := redisbucket.New(client)
	levels := map[string]shaper.BucketLevel{}
	rates := someRates()
	answers, kinds := map[string]shaper.Taken{}, map[string]int{}
	now := time.Now().UnixMicro()
	for step := range steps {
		if setTime != nil {
			now += random.Int64N(2_000_000) - 300_000
			setTime(time.UnixMicro(now))
		}
		key := "key" + strconv.Itoa(random.IntN(keys))
		if random.IntN(8) == 0 {
			level := randomLevel(random, rates, now)
			if random.IntN(4) == 0 {
				level = shaper.BucketLevel{}
			}
			levels[key] = level
			require.NoError(t, set(ctx, client, key, level))
		}
		l := levels[key]
		take := randomTake(random, key, rates, l, answers[key])
		if random.IntN(6) == 0 {
			end := l.Empty
			if random.IntN(4) == 0 {
				end.Part++
			}
			require.NoError(t, bucket.GiveBack(ctx, take, end))
			levels[key] = take.ApplyGiveBack(l, end)
			if levels[key] != l {
				kinds["given back"]++
			}
		} else {
			got, err := bucket.Take(ctx, take)
			require.NoError(t, err)
			next, ok := wanted(take, l, got)
			require.Truef(t, ok, "step %d: %+v at %+v answers %+v", step, take, l, got)
			levels[key], answers[key], now = next, got, got.Now
			count(kinds, take, l, got)
		}
		state, err := client.Get(ctx, "shaper:"+key).Result()
		if levels[key].At == 0 {
			require.ErrorIs(t, err, redis.Nil, "step %d", step)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, redisbucket.Encode(levels[key]), state, "step %d: after %+v at %+v", step, take, l)
	}
	for _, kind := range []string{"taken", "refused", "cold", "another rate", "rescaled", "clock back", "healed", "given back"} {
		require.Greaterf(t, kinds[kind], steps/1000, "too few of %q: %v", kind, kinds)
	}
}

// someRates returns rates whose numbers are small, great and odd, with few versions, so
// that they are often the same.
func someRates() (rates []shaper.BucketRate) {
	for _, r := range []shaper.BucketRate{
		{Micros: 10_000, Parts: 1, Burst: 1},
		{Micros: 333_333, Part: 1, Parts: 3, Burst: 5},
		{Micros: 33, Part: 1, Parts: 3, Burst: 1000},
		{Part: 1, Parts: 1000, Burst: 1_000_000},
		{Micros: 1, Part: 999_999_999_999, Parts: 1_000_000_000_000, Burst: 3},
		{Micros: 123_456, Part: 789_012_345_679, Parts: 999_999_999_989, Burst: 2},
		{Micros: time.Hour.Microseconds(), Parts: 1, Burst: 40},
	} {
		for version := range int64(3) {
			r.Version = version + 1
			rates = append(rates, r)
		}
	}
	return append(rates, shaper.BucketRate{Version: 1 << 53, Micros: 7, Part: 3, Parts: 7, Burst: 1 << 31})
}

// randomLevel returns a state that was written about now, also a bit later, at which the
// bucket is about full.
func randomLevel(random *rand.Rand, rates []shaper.BucketRate, now int64) shaper.BucketLevel {
	r := rates[random.IntN(len(rates))]
	room := shaper.Take{First: 1, Rate: r}.Room()
	l := shaper.BucketLevel{Rate: r, At: now + random.Int64N(3_000_000) - 2_000_000}
	l.Empty = shaper.Instant{Micros: now + random.Int64N(2_000_000) - 500_000, Part: random.Int64N(r.Parts)}
	if random.IntN(2) == 0 && room.Micros < 1<<50 {
		l.Empty.Micros += room.Micros
	}
	return l
}

func randomTake(random *rand.Rand, key string, rates []shaper.BucketRate, l shaper.BucketLevel, last shaper.Taken) shaper.Take {
	take := shaper.Take{Key: key, Cost: 1 + random.Int64N(9), First: 1 + random.Int64N(3), Rate: rates[random.IntN(len(rates))]}
	if random.IntN(4) > 0 && l.Rate.Parts > 0 {
		take.Rate = l.Rate
	}
	if random.IntN(2) == 0 {
		take.Ahead = time.Duration(random.Int64N(2_000_001)) * time.Microsecond
	}
	if random.IntN(3) == 0 {
		take.Guard = time.Duration(random.Int64N(3_000_000)) * time.Microsecond
	}
	if random.IntN(3) == 0 && last.Now > 0 {
		take.High = shaper.Instant{Micros: last.Now + random.Int64N(1_000_000), Part: random.Int64N(take.Rate.Parts)}
		take.Seen = last.Now
	}
	return take
}

// wanted returns the state after a Take that was answered so, and whether the definition
// allows the answer. A change of the rate may make Empty up to 2 µs later.
func wanted(take shaper.Take, l shaper.BucketLevel, got shaper.Taken) (shaper.BucketLevel, bool) {
	if l == (shaper.BucketLevel{}) || l.Rate.Version >= take.Rate.Version {
		next, want := take.Apply(l, got.Now)
		return next, equal(want, got)
	}
	empty := l.Empty
	empty.Micros -= max(0, l.At-got.Now)
	for late := range int64(3) {
		rescaled := shaper.BucketLevel{Empty: take.Rate.Rescale(l.Rate, empty, got.Now), Rate: take.Rate, At: got.Now}
		rescaled.Empty.Micros += late
		next, want := take.Apply(rescaled, got.Now)
		if !want.OK { // It is written all the same, as the rate has changed.
			next = shaper.BucketLevel{Empty: want.Empty, Rate: take.Rate, At: got.Now}
		}
		if equal(want, got) {
			return next, true
		}
	}
	return l, false
}

func equal(a, b shaper.Taken) bool {
	if a.Other != nil && b.Other != nil && *a.Other == *b.Other {
		a.Other = b.Other
	}
	return a == b
}

func count(kinds map[string]int, take shaper.Take, l shaper.BucketLevel, got shaper.Taken) {
	for kind, is := range map[string]bool{
		"taken": got.OK, "refused": !got.OK && got.Other == nil, "cold": got.Cold, "another rate": got.Other != nil,
		"rescaled":   !got.Cold && l.Rate.Version < take.Rate.Version && got.Empty.Micros > got.Now,
		"clock back": l.At > got.Now, "healed": take.High != shaper.Instant{} && got.Empty == take.High,
	} {
		if is {
			kinds[kind]++
		}
	}
}

// set writes a state as a server has it.
func set(ctx context.Context, client *redis.Client, key string, l shaper.BucketLevel) error {
	if l == (shaper.BucketLevel{}) {
		return client.Del(ctx, "shaper:"+key).Err()
	}
	return client.Set(ctx, "shaper:"+key, redisbucket.Encode(l), time.Hour).Err()
}

// Real Redis prints a number of 16 digits with 14 if a script lets it; miniredis prints all.
func TestNoDigitIsLostOnARealServer(t *testing.T) { onEach(t, noDigitIsLostOnARealServer) }

func noDigitIsLostOnARealServer(t *testing.T, server *servers.Redis) {
	ctx, client := within(t), connect(t, server.Addr)
	lost, err := client.Eval(ctx, "return tostring(1795220905000001)", nil).Result()
	require.NoError(t, err)
	require.Equal(t, "1.795220905e+15", lost, "which this test is about")

	rate := shaper.BucketRate{Version: 1<<53 - 1, Micros: 1, Part: 999_999_999_999, Parts: 1_000_000_000_000, Burst: 1 << 31}
	bucket := redisbucket.New(client)
	// So far ahead that the server's clock does not matter, and nearer than the burst reaches.
	level := shaper.BucketLevel{
		Empty: shaper.Instant{Micros: time.Now().Add(time.Minute).UnixMicro() | 1, Part: 1}, Rate: rate, At: 1_234_567_890_123_457,
	}
	require.NoError(t, set(ctx, client, "key", level))
	take := shaper.Take{Key: "key", Cost: 1_000_007, First: 1, Rate: rate}
	for range 500 {
		got, err := bucket.Take(ctx, take)
		require.NoError(t, err)
		require.True(t, got.OK)
		next, want := take.Apply(level, got.Now)
		require.Equal(t, want, got)
		state, err := client.Get(ctx, "shaper:key").Result()
		require.NoError(t, err)
		require.Equal(t, redisbucket.Encode(next), state)
		level = next
	}
}

// A state that somebody has written by hand, or another program, must neither stop the
// rate nor make each call an error.
func TestADamagedStateIsNone(t *testing.T) { onEach(t, aDamagedStateIsNone) }

func aDamagedStateIsNone(t *testing.T, server *servers.Redis) {
	ctx, client := within(t), connect(t, server.Addr)
	bucket := redisbucket.New(client)
	now := time.Now().UnixMicro()
	good := redisbucket.Encode(shaper.BucketLevel{Empty: shaper.Instant{Micros: now + 1e9}, Rate: hour, At: now})
	require.NoError(t, client.Set(ctx, "shaper:good", good, 0).Err())
	require.False(t, taken(t, bucket, "good"), "this one is not damaged")

	at := strconv.FormatInt(now, 10)
	rate := " 1 3600000000 0 1 1 0 0"
	for _, state := range []string{
		"", " ", "garbage", "-1", "1e15", at, good + " ", " " + good, good + "\n", good + " 1", "x" + good[1:],
		"-1 0 " + at + rate, "nan 0 " + at + rate, "inf 0 " + at + rate, "0x7fffffffffff 0 " + at + rate,
		"99999999999999999999 0 " + at + rate, // the far future
		"9999999999999999 0 9999999999999999" + rate,
		at + "000 0 " + at + rate,
		"9007199254740000 1 " + at + rate,                                     // there is one part
		"9007199254740000 0 0" + rate,                                         // written never
		"9007199254740994 0 9007199254740994" + rate,                          // above 2^53
		"9007199254740000 0 " + at + " -9 1 0 1 1 0 0",                        // a negative version
		"9007199254740000 0 " + at + " 9 2251799813685249 0 1 1 0 0",          // too slow
		"9007199254740000 0 " + at + " 1 3600000000 0 1 1 1 0",                // the room of another rate
		"9007199254740000 0 " + at + " 9 3600000000 0 0 1 0 0",                // no parts
		"9007199254740000 0 " + at + " 9 0 0 1 1 0 0",                         // no time
		"9007199254740000 0 " + at + " 9 1 5 5 1 0 0",                         // as many as there are
		"9007199254740000 0 " + at + " 9 1 0 1 0 0 0",                         // no burst
		"9007199254740000 0 " + at + " 9 1 0 1000000000001 1 0 0",             // too many parts
		"9007199254740000 0 " + at + " 99999999999999999999 1 0 1 1 0 0",      // too great a version
		"9007199254740000 0 " + at + " 9 1 0 1 99999999999999999999999 0 0",   // too great a burst
		"9007199254740000 0 " + at + " 9 1 0 1 1 0",                           // a number is missing
		"9007199254740000 0 " + at + " -- 1 0 1 1 0 0", "\x00\xff\x00", "nil", // no numbers
	} {
		require.NoError(t, client.Set(ctx, "shaper:key", state, 0).Err())
		require.NoError(t, bucket.GiveBack(ctx, one("key"), shaper.Instant{Micros: 1}))
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
		require.NoError(t, bucket.GiveBack(ctx, one("key"), shaper.Instant{Micros: 1}))
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

// Keys of users who have gone must not fill the memory, and those of users who have not
// must not be forgotten.
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

	end := got.Empty
	end.Micros += 24 * time.Hour.Microseconds()
	require.NoError(t, bucket.GiveBack(ctx, take, end))
	require.InDelta(t, time.Minute, ttl(t, client), float64(patience))
	require.NoError(t, client.PExpire(ctx, "mine:key", time.Millisecond).Err())
	require.Eventually(t, func() bool { return client.DBSize(ctx).Val() == 0 }, patience, time.Millisecond)
}

func ttl(t *testing.T, client *redis.Client) time.Duration {
	left, err := client.PTTL(within(t), "mine:key").Result()
	require.NoError(t, err)
	require.Positive(t, left)
	return left
}

// What a server says instead of carrying out a script is an error, and never a licence.
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
		require.EqualError(t, bucket.GiveBack(ctx, one("key"), shaper.Instant{}), "redisbucket: "+says)
	}
	server.SetError("")
	require.True(t, taken(t, bucket, "key"), "nothing was taken meanwhile")

	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": server.Addr()}})
	defer func() { require.NoError(t, ring.Close()) }()
	for _, test := range []struct {
		bucket shaper.Bucket
		change func(*shaper.Take)
		says   string
	}{
		{redisbucket.New(nil), nil, "the client is nil"},
		{redisbucket.New(ring), nil, "use NewRing"},
		{redisbucket.NewRing(nil), nil, "no servers"},
		{bucket, func(t *shaper.Take) { t.Key = "" }, "the key is empty"},
		{bucket, func(t *shaper.Take) { t.Cost = 0 }, "the cost is 0"},
		{bucket, func(t *shaper.Take) { t.Rate = shaper.BucketRate{} }, "the rate {Version:0 "},
		{bucket, func(t *shaper.Take) { t.Rate.Version = 1<<53 + 1 }, "Version:9007199254740993"},
	} {
		take := one("other")
		if test.change == nil {
			require.ErrorContains(t, test.bucket.GiveBack(ctx, take, shaper.Instant{}), test.says)
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
		client := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: enabled, ReadTimeout: time.Second})
		bucket := redisbucket.New(client)
		require.Eventually(t, func() bool { return client.Ping(within(t)).Err() == nil }, patience, time.Millisecond)
		server.Pause()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		began := time.Now()
		_, err := bucket.Take(ctx, one("key"))
		require.Less(t, time.Since(began), time.Second, "ContextTimeoutEnabled is %v", enabled)
		require.Equal(t, context.DeadlineExceeded, err)
		cancel()

		ctx, cancel = context.WithCancel(context.Background())
		cancel()
		err = bucket.GiveBack(ctx, one("key"), shaper.Instant{})
		require.True(t, errors.Is(err, context.Canceled), err)
		server.Resume()
		require.NoError(t, client.Close())
	}
}

func TestTheAnswerOfAnotherScriptIsAnError(t *testing.T) {
	for _, text := range []string{"", "1 0 1 2", "1 0 1 2 3 4", "1 0 1 2 x", "1 0 1 2 3 1 2 3 4 5 6 7 8"} {
		_, ok := redisbucket.ParseTaken(text)
		require.False(t, ok, text)
	}
}

// The server may lose its scripts at any time; a lost one is sent again, and counts once.
func TestScriptFlushIsInvisible(t *testing.T) { onEach(t, scriptFlushIsInvisible) }

func scriptFlushIsInvisible(t *testing.T, server *servers.Redis) {
	ctx, client := within(t), connect(t, server.Addr)
	bucket := redisbucket.New(client)
	take := one("key")
	take.Rate.Burst = 1000
	var level shaper.BucketLevel
	for range 20 {
		require.NoError(t, client.ScriptFlush(ctx).Err())
		got, err := bucket.Take(ctx, take)
		require.NoError(t, err)
		var want shaper.Taken
		level, want = take.Apply(level, got.Now)
		require.Equal(t, want, got)
	}
	require.NoError(t, client.ScriptFlush(ctx).Err())
	require.NoError(t, bucket.GiveBack(ctx, take, level.Empty))
	state, err := client.Get(ctx, "shaper:key").Result()
	require.NoError(t, err)
	require.Equal(t, redisbucket.Encode(take.ApplyGiveBack(level, level.Empty)), state)
}
