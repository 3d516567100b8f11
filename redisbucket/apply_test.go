package redisbucket_test

import (
	"context"
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
	"example.com/leakybucket/shaper/shared"
)

func TestTheScriptsDoWhatApplyDoes(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *servers.Redis) { compare(t, connect(t, server.Addr), nil) })
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		server := miniredis.RunT(t)
		compare(t, connect(t, server.Addr()), server.SetTime)
	})
}

// compare plays random steps to a Bucket, and compares each answer and each state with that
// of the definition. A real server's clock goes on by itself; a state of its future stands
// for a clock that has gone back. Where the clock can be set, setTime does.
func compare(t *testing.T, client *redis.Client, setTime func(time.Time)) {
	const keys = 7
	steps := 2_000
	if os.Getenv("SHAPER_LONG") == "1" {
		steps = 100_000
	}
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	ctx := context.Background()
	bucket := redisbucket.New(client)
	levels := map[string]shared.BucketLevel{}
	rates := someRates()
	answers, kinds := map[string]shared.Taken{}, map[string]int{}
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
				level = shared.BucketLevel{}
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
	for _, kind := range []string{"taken", "refused", "cold", "another rate", "rescaled", "newer version", "older version", "clock back", "healed", "given back"} {
		require.Greaterf(t, kinds[kind], steps/1000, "too few of %q: %v", kind, kinds)
	}
}

// someRates returns rates whose numbers are small, great and odd, with few versions, so
// that they are often the same.
func someRates() (rates []shared.BucketRate) {
	for _, r := range []shared.BucketRate{
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
	return append(rates, shared.BucketRate{Version: 1 << 53, Micros: 7, Part: 3, Parts: 7, Burst: 1 << 31})
}

// randomLevel returns a state that was written about now, also a bit later, at which the
// bucket is about full.
func randomLevel(random *rand.Rand, rates []shared.BucketRate, now int64) shared.BucketLevel {
	r := rates[random.IntN(len(rates))]
	room := shared.Take{First: 1, Rate: r}.Room()
	l := shared.BucketLevel{Rate: r, At: now + random.Int64N(3_000_000) - 2_000_000}
	l.Empty = shared.Instant{Micros: now + random.Int64N(2_000_000) - 500_000, Part: random.Int64N(r.Parts)}
	if random.IntN(2) == 0 && room.Micros < 1<<50 {
		l.Empty.Micros += room.Micros
	}
	return l
}

func randomTake(random *rand.Rand, key string, rates []shared.BucketRate, l shared.BucketLevel, last shared.Taken) shared.Take {
	take := shared.Take{Key: key, Cost: 1 + random.Int64N(9), First: 1 + random.Int64N(3), Rate: rates[random.IntN(len(rates))]}
	if random.IntN(4) > 0 && l.Rate.Parts > 0 {
		take.Rate = l.Rate
		if random.IntN(4) == 0 {
			take.Rate.Version = random.Int64N(4)
		}
	}
	if random.IntN(2) == 0 {
		take.Ahead = time.Duration(random.Int64N(2_000_001)) * time.Microsecond
	}
	if random.IntN(3) == 0 {
		take.Guard = time.Duration(random.Int64N(3_000_000)) * time.Microsecond
	}
	if random.IntN(3) == 0 && last.Now > 0 {
		take.High = shared.Instant{Micros: last.Now + random.Int64N(1_000_000), Part: random.Int64N(take.Rate.Parts)}
		take.Seen = last.Now
	}
	return take
}

// wanted returns the state after a Take that was answered so, and whether the definition
// allows the answer. A change of the rate may make Empty up to 2 µs later.
func wanted(take shared.Take, l shared.BucketLevel, got shared.Taken) (shared.BucketLevel, bool) {
	if l == (shared.BucketLevel{}) || !rescales(take, l) {
		next, want := take.Apply(l, got.Now)
		return next, equal(want, got)
	}
	empty := l.Empty
	empty.Micros -= max(0, l.At-got.Now)
	for late := range int64(3) {
		rescaled := shared.BucketLevel{Empty: take.Rate.Rescale(l.Rate, empty, got.Now), Rate: take.Rate, At: got.Now}
		rescaled.Empty.Micros += late
		next, want := take.Apply(rescaled, got.Now)
		if !want.OK { // It is written all the same, as the rate has changed.
			next = shared.BucketLevel{Empty: want.Empty, Rate: take.Rate, At: got.Now}
		}
		if equal(want, got) {
			return next, true
		}
	}
	return l, false
}

// rescales reports whether a Take changes the rate of a level, and not only its version.
func rescales(take shared.Take, l shared.BucketLevel) bool {
	return l.Rate.Version < take.Rate.Version && !sameNumbers(take.Rate, l.Rate)
}

func sameNumbers(a, b shared.BucketRate) bool {
	a.Version = b.Version
	return a == b
}

func equal(a, b shared.Taken) bool {
	if a.Other != nil && b.Other != nil && *a.Other == *b.Other {
		a.Other = b.Other
	}
	return a == b
}

func count(kinds map[string]int, take shared.Take, l shared.BucketLevel, got shared.Taken) {
	for kind, is := range map[string]bool{
		"taken": got.OK, "refused": !got.OK && got.Other == nil, "cold": got.Cold, "another rate": got.Other != nil,
		"rescaled":      !got.Cold && rescales(take, l) && got.Empty.Micros > got.Now,
		"newer version": !got.Cold && sameNumbers(take.Rate, l.Rate) && l.Rate.Version < take.Rate.Version,
		"older version": got.OK && !got.Cold && sameNumbers(take.Rate, l.Rate) && l.Rate.Version > take.Rate.Version,
		"clock back":    l.At > got.Now, "healed": take.High != shared.Instant{} && got.Empty == take.High,
	} {
		if is {
			kinds[kind]++
		}
	}
}

// set writes a state as a server has it.
func set(ctx context.Context, client *redis.Client, key string, l shared.BucketLevel) error {
	if l == (shared.BucketLevel{}) {
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

	rate := shared.BucketRate{Version: 1<<53 - 1, Micros: 1, Part: 999_999_999_999, Parts: 1_000_000_000_000, Burst: 1 << 31}
	bucket := redisbucket.New(client)
	// So far ahead that the server's clock does not matter, and nearer than the burst reaches.
	level := shared.BucketLevel{
		Empty: shared.Instant{Micros: time.Now().Add(time.Minute).UnixMicro() | 1, Part: 1}, Rate: rate, At: 1_234_567_890_123_457,
	}
	require.NoError(t, set(ctx, client, "key", level))
	take := shared.Take{Key: "key", Cost: 1_000_007, First: 1, Rate: rate}
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
