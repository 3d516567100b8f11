package redisbucket_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper/shared"
)

// steps returns how many steps a random script has.
func steps() int {
	if os.Getenv("SHAPER_LONG") == "" {
		return 8000
	}
	return 200_000
}

// seating asks for one of two seats, and keeping asks to keep a key.
func seating(key string) shared.Seating {
	return shared.Seating{Key: key, ID: "a", Cap: 2, Want: 1}
}

func keeping(key string) shared.Keeping {
	return shared.Keeping{Key: key, ID: "a", Lease: 3 * time.Second, Value: []byte("a's")}
}

// run returns the run of the server that has a name, as the scripts see it: miniredis says nothing of its own.
func (d damageable) run(name string) string {
	server := d.client
	if cluster, ok := d.client.(*redis.ClusterClient); ok {
		node, err := cluster.MasterForKey(context.Background(), name)
		require.NoError(d.t, err)
		server = node
	}
	info, err := server.Info(context.Background(), "server").Result()
	if _, run, ok := strings.Cut(info, "run_id:"); ok && err == nil {
		return run[:40]
	}
	return "-"
}

// replace replaces a hash; without fields it is gone.
func (d damageable) replace(name string, fields map[string]string) {
	require.NoError(d.t, d.client.Del(context.Background(), name).Err())
	if len(fields) > 0 {
		require.NoError(d.t, d.client.HSet(context.Background(), name, fields).Err())
	}
}

// SetSeats makes s the state of the seats of a key. What a hash can't hold becomes another damage.
func (d damageable) SetSeats(key string, s shared.SeatState) {
	name := redisbucket.SeatsName(d.Bucket, key)
	fields := redisbucket.EncodeSeats(s, d.run(name))
	for i, h := range s.Holders {
		if h.ID == "" || i > 0 && h.ID <= s.Holders[i-1].ID {
			fields[h.ID] = "damaged"
		}
	}
	d.replace(name, fields)
}

// seats returns the state of the seats of a key.
func (d damageable) seats(key string) (s shared.SeatState) {
	fields, err := d.client.HGetAll(context.Background(), redisbucket.SeatsName(d.Bucket, key)).Result()
	require.NoError(d.t, err)
	for id, text := range fields {
		if id == "" {
			_, err = fmt.Sscan(text, &s.Ready, new(string))
		} else {
			h := shared.SeatHolder{ID: id}
			_, err = fmt.Sscan(text, &h.Held, &h.Want, &h.Since, &h.Expires, &h.Number)
			s.Holders = append(s.Holders, h)
		}
		require.NoError(d.t, err, text)
	}
	slices.SortFunc(s.Holders, func(a, b shared.SeatHolder) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

// SetKeep makes s the state of a kept key.
func (d damageable) SetKeep(key string, s shared.KeepState) {
	d.replace(redisbucket.KeeperName(d.Bucket, key), redisbucket.EncodeKeeper(s))
}

// keeper returns the state of a kept key.
func (d damageable) keeper(key string) (s shared.KeepState) {
	fields, err := d.client.HGetAll(context.Background(), redisbucket.KeeperName(d.Bucket, key)).Result()
	require.NoError(d.t, err)
	if words := strings.SplitN(fields["keeper"], " ", 3); len(words) == 3 {
		_, err := fmt.Sscan(words[0]+" "+words[1], &s.Ends, (*int64)(&s.Lease))
		require.NoError(d.t, err)
		s.ID, s.Lease = words[2], s.Lease*time.Microsecond
	}
	s.Value = []byte(fields["value"])
	return s
}

// The scripts take the steps of package shared, whatever happens, at a clock of the test's.
func TestTheScriptsTakeTheStepsOfSeatsAndKeepers(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *servers.Redis) {
		client := connect(t, server.Addr)
		d := damageable{redisbucket.New(client), client, t}
		made.Seats(t, steps(), made.Stepped[shared.Seating, shared.Seated, shared.SeatState]{
			Ask: func(q shared.Seating, now int64) (shared.Seated, error) {
				return redisbucket.SeatsAt(t.Context(), d.Bucket, q, now)
			},
			Get: d.seats, Set: d.SetSeats,
		})
		made.Keeps(t, steps(), made.Stepped[shared.Keeping, shared.Kept, shared.KeepState]{
			Ask: func(k shared.Keeping, now int64) (shared.Kept, error) {
				return redisbucket.KeepAt(t.Context(), d.Bucket, k, now)
			},
			Get: d.keeper, Set: d.SetKeep,
		})
	})
}

// ready makes a key of which seats are given at once.
func (d damageable) ready(key string) {
	d.SetSeats(key, shared.SeatState{Ready: time.Now().Add(-time.Minute).UnixMicro()})
}

// A snapshot is older than what processes have got since. A server that begins with one must not give the same seats
// again, also to a process that asks before those who have them.
func TestAServerThatBeginsWithAnOldCopyGivesNoSeatTwice(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *servers.Redis) {
		client := connect(t, server.Addr)
		d := damageable{redisbucket.New(client), client, t}
		d.ready("key")
		k := keeping("key")
		k.Lease = time.Minute
		kept, err := d.Keep(t.Context(), k)
		require.NoError(t, err)
		require.Equal(t, "a", kept.ID)
		server.MustDo("SAVE")
		got, err := d.Seats(t.Context(), shared.Seating{Key: "key", ID: "a", Cap: 2, Want: 2, Number: 1})
		require.NoError(t, err)
		require.Equal(t, 2, got.Held)
		server.Restart()
		require.Equal(t, "2", server.MustDo("DBSIZE"), "it has the snapshot")

		newcomer := shared.Seating{Key: "key", ID: "b", Cap: 2, Want: 2, Number: 1}
		realtime.Until(t, func() bool { got, err = d.Seats(t.Context(), newcomer); return err == nil }, "it can be asked")
		require.Equal(t, 0, got.Held, "the copy has no seat of a's")
		a := shared.Seating{Key: "key", ID: "a", Cap: 2, Held: 2, Want: 2, Number: 2, Answered: 1}
		got, err = d.Seats(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, 2, got.Held)
		ready := d.seats("key").Ready
		newcomer.Number++
		_, err = d.Seats(t.Context(), newcomer)
		require.NoError(t, err)
		require.Equal(t, ready, d.seats("key").Ready, "the guard has begun once")
		newcomer.Number++
		got, err = redisbucket.SeatsAt(t.Context(), d.Bucket, newcomer, ready)
		require.NoError(t, err)
		require.Equal(t, 0, got.Held, "after the guard it has")
		a.Held, a.Want, a.Number = 1, 1, 3
		_, err = redisbucket.SeatsAt(t.Context(), d.Bucket, a, ready)
		require.NoError(t, err)
		newcomer.Number++
		got, err = redisbucket.SeatsAt(t.Context(), d.Bucket, newcomer, ready)
		require.NoError(t, err)
		require.Equal(t, 1, got.Held, "and there is no second guard")

		k.ID = "b"
		kept, err = d.Keep(t.Context(), k)
		require.NoError(t, err)
		require.Equal(t, "a", kept.ID, "a lease that the copy knows lasts")
	})
}

// Whatever is lost when the server is killed in the middle, no seat is given twice.
func TestAServerThatIsKilledGivesNoSeatTwice(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]string{
		"nothing is saved": nil, "all is saved": {"--appendonly", "yes", "--appendfsync", "no"}, "there is a snapshot": {"--save", "3600 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servers.StartRedis(t, options...)
			client := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true, DialerRetries: 1, DialTimeout: patience})
			t.Cleanup(func() { require.NoError(t, client.Close()) })
			d := damageable{redisbucket.New(client), client, t}
			d.ready("key")
			made.SeatsStayBelowTheCap(t, d.Bucket, "key", func() {
				if name == "there is a snapshot" {
					server.MustDo("SAVE")
					time.Sleep(300 * time.Millisecond)
				}
				server.Restart()
			})
			if name == "all is saved" { // A keeper of whom nothing is left may still have a lease.
				made.OneKeeps(t, d.Bucket, "key", server.Restart)
			}
		})
	}
}

// A state that somebody has written by hand, or another program, must neither stop the seats for ever nor make each call an
// error. The suite has numbers that are outside of their ranges.
func TestADamagedStateOfSeatsOrOfAKeeperIsNone(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *servers.Redis) {
		client := connect(t, server.Addr)
		d := damageable{redisbucket.New(client), client, t}
		ctx, now := t.Context(), time.Now().UnixMicro()
		seats, keeper, run := redisbucket.SeatsName(d.Bucket, "key"), redisbucket.KeeperName(d.Bucket, "key"), d.run("")
		require.Len(t, run, 40)
		b := fmt.Sprint("1 1 0 ", now+9_000_000, " 3")
		past := fmt.Sprint(now-1, " ")
		isNone := func(damage string) {
			t.Helper()
			got, err := d.Seats(ctx, seating("key"))
			require.NoError(t, err, damage)
			require.Equal(t, shared.Seated{Target: 2, Now: got.Now}, got, "%s: a guard has begun, and nobody else is known", damage)
			s := d.seats("key")
			require.Equal(t, got.Now+shared.SeatGuard.Microseconds(), s.Ready, damage)
			require.Len(t, s.Holders, 1, damage)
		}
		for _, fields := range []map[string]string{
			{"b": b}, {"": "", "b": b}, {"": past, "b": b}, {"": "0 " + run, "b": b}, {"": "-1 " + run, "b": b},
			{"": "99999999999999999999 " + run, "b": b}, {"": past + run + " ", "b": b}, {"": "x " + run, "b": b},
			{"": past + run, "b": ""}, {"": past + run, "b": b + " "}, {"": past + run, "b": "x" + b}, {"": past + run, "b": b + " 1"},
			{"": past + run, "b": b[1:]}, {"": past + run, "b": "-" + b}, {"": past + run, "b": "9999999999 1 0 1 1"}, {"": past + run, "b": "1 1 0 0 1"},
			{"": past + run, "b": b, "c": "\x00"}, {"a": "1", "c": "2"},
		} {
			d.replace(seats, fields)
			isNone(fmt.Sprint(fields))
		}
		d.replace(seats, map[string]string{"": past + run, "b": b})
		got, err := d.Seats(ctx, seating("key"))
		require.NoError(t, err)
		require.Equal(t, shared.Seated{Held: 1, Target: 2, Now: got.Now}, got, "this one is not damaged")

		free := func(damage string) {
			t.Helper()
			look := keeping("key")
			look.Lease = 0
			kept, err := d.Keep(ctx, look)
			require.NoError(t, err, damage)
			require.Equal(t, shared.Kept{Now: kept.Now}, kept, damage)
		}
		begins := func(damage string) {
			t.Helper()
			kept, err := d.Keep(ctx, keeping("key"))
			require.NoError(t, err, damage)
			require.Equal(t, shared.Kept{ID: "a", Now: kept.Now}, kept, damage)
			require.Equal(t, shared.KeepState{ID: "a", Lease: 3 * time.Second, Ends: kept.Now + 3_000_000, Value: []byte{}}, d.keeper("key"), damage)
		}
		ends := fmt.Sprint(now + 2_000_000)
		for _, text := range []string{
			" ", "b", ends, ends + " 3000000", ends + " 3000000 ", " " + ends + " 3000000 b", "-" + ends + " 3000000 b", "0 3000000 b", "99999999999999999999 3000000 b",
			ends + " 0 b", ends + " 60001000 b", ends + " 3000001 b", ends + " -3000000 b", ends + " x b",
		} {
			for _, step := range []func(damage string){free, begins} {
				d.replace(keeper, map[string]string{"keeper": text, "value": "old"})
				step(text)
			}
		}
		d.replace(keeper, map[string]string{"keeper": ends + " 3000000 b", "value": "old"})
		kept, err := d.Keep(ctx, keeping("key"))
		require.NoError(t, err)
		require.Equal(t, shared.Kept{ID: "b", Value: []byte("old"), Now: kept.Now}, kept, "this one is not damaged")

		for kind, put := range map[string]func(name string) error{
			"string": func(name string) error { return client.Set(ctx, name, past+run, 0).Err() },
			"list":   func(name string) error { return client.RPush(ctx, name, past+run).Err() },
			"set":    func(name string) error { return client.SAdd(ctx, name, "").Err() },
			"stream": func(name string) error {
				return client.XAdd(ctx, &redis.XAddArgs{Stream: name, Values: []string{"keeper", ""}}).Err()
			},
		} {
			for name, steps := range map[string][]func(damage string){seats: {isNone}, keeper: {free, begins}} {
				for _, step := range steps {
					require.NoError(t, client.Del(ctx, name).Err())
					require.NoError(t, put(name))
					step(kind)
				}
			}
		}
	})
}

// No entry lives for ever, and none ends while it counts.
func TestSeatsAndKeepersExpireADayAfterTheyWereWritten(t *testing.T) {
	t.Parallel()
	client := connect(t, servers.StartRedis(t).Addr)
	b := redisbucket.New(client)
	lasts := func(name string) time.Duration {
		t.Helper()
		left, err := client.PTTL(t.Context(), name).Result()
		require.NoError(t, err)
		return left
	}
	const day = 24 * time.Hour
	seats, keeper := redisbucket.SeatsName(b, "key"), redisbucket.KeeperName(b, "key")
	for _, q := range []shared.Seating{{Want: 1, Number: 1}, {Want: 1, Number: 2}, {Number: 3}} {
		q.Key, q.ID, q.Cap = "key", "a", 2
		require.NoError(t, client.PExpire(t.Context(), seats, time.Minute).Err())
		_, err := b.Seats(t.Context(), q)
		require.NoError(t, err)
		require.InDelta(t, day, lasts(seats), float64(patience), "%+v", q)
	}
	for _, lease := range []time.Duration{3 * time.Second, time.Second, 0} {
		k := keeping("key")
		k.Lease = lease
		require.NoError(t, client.PExpire(t.Context(), keeper, time.Minute).Err())
		_, err := b.Keep(t.Context(), k)
		require.NoError(t, err)
		require.InDelta(t, day, lasts(keeper), float64(patience), "a lease of %v", lease)
	}
	require.NoError(t, client.PExpire(t.Context(), keeper, time.Hour).Err())
	look := keeping("key")
	look.Lease = 0
	kept, err := b.Keep(t.Context(), look)
	require.NoError(t, err)
	require.Equal(t, "a's", string(kept.Value), "what was written as the key was given up")
	require.Less(t, lasts(keeper), time.Hour+patience, "who only looks does not make it last")
}

// A client that chooses its keys must not reach the seats of another key by them.
func TestNoLevelHasTheNameOfSeatsOrOfAKeeper(t *testing.T) {
	b := redisbucket.New(connect(t, "127.0.0.1:1"))
	for _, key := range []string{"a", "seats:a", "{a}", "user:{1}:x", "{}a", "a}b", "a{b", "}", "{seats:{shaper:a}}"} {
		level := "shaper:" + key
		for _, name := range []string{redisbucket.SeatsName(b, key), redisbucket.KeeperName(b, key)} {
			require.False(t, strings.HasPrefix(name, "shaper:"), name)
			if paired := !strings.ContainsAny(key, "{}") || strings.Contains(key, "{a}") || strings.Contains(key, "{1}"); paired {
				require.Equal(t, redisbucket.Slot(level), redisbucket.Slot(name), "they fail together: %s", name)
			}
		}
		require.NotEqual(t, redisbucket.SeatsName(b, key), redisbucket.KeeperName(b, key))
	}
}

// A server that has become a replica of another one must answer nothing: also where a step would write nothing.
func TestAReplicaGivesNoSeatsAndKnowsNoKeeper(t *testing.T) {
	t.Parallel()
	server := servers.StartRedis(t)
	b := redisbucket.New(connect(t, server.Addr))
	_, err := b.Seats(t.Context(), shared.Seating{Key: "key", ID: "a", Cap: 2, Want: 1, Number: 5})
	require.NoError(t, err)
	k := keeping("key")
	k.Lease = time.Minute
	_, err = b.Keep(t.Context(), k)
	require.NoError(t, err)
	server.MustDo("REPLICAOF", "127.0.0.1", "1")
	for _, key := range []string{"key", "new"} {
		for _, number := range []int64{1, 6} { // The first is overtaken.
			_, err = b.Seats(t.Context(), shared.Seating{Key: key, ID: "a", Cap: 2, Want: 1, Number: number})
			require.ErrorContains(t, err, "READONLY", "%s %d", key, number)
		}
		for _, id := range []string{"a", "b"} {
			k := keeping(key)
			k.ID = id
			_, err = b.Keep(t.Context(), k)
			require.ErrorContains(t, err, "READONLY", "%s %s", key, id)
			k.Lease = 0
			_, err = b.Keep(t.Context(), k)
			require.ErrorContains(t, err, "READONLY", "%s %s", key, id)
		}
	}
}

// Seats and keepers of a key are on the server of its level.
func TestARingHasSeatsAndKeepersOnTheServerOfTheKey(t *testing.T) {
	t.Parallel()
	running := map[string]*servers.Redis{"a": servers.StartRedis(t), "b": servers.StartRedis(t)}
	ring := redisbucket.NewRing(map[string]redis.UniversalClient{"a": connect(t, running["a"].Addr), "b": connect(t, running["b"].Addr)})
	keys := map[string]int{}
	for i := range 20 {
		key := fmt.Sprint("key", i)
		keys[ring.Shard(key)]++
		require.True(t, taken(t, ring, key))
		_, err := ring.Seats(t.Context(), seating(key))
		require.NoError(t, err)
		_, err = ring.Keep(t.Context(), keeping(key))
		require.NoError(t, err)
	}
	for name, server := range running {
		require.NotZero(t, keys[name])
		require.Equal(t, fmt.Sprint(3*keys[name]), server.MustDo("DBSIZE"), "server %s", name)
	}
}

// What can't be asked for reaches no server.
func TestASeatingOrKeepingThatCanNotBeAskedForIsAnError(t *testing.T) {
	b := redisbucket.New(connect(t, "127.0.0.1:1"))
	q, k := seating("key"), keeping("key")
	q.Cap, k.Lease = 0, -1
	_, err := b.Seats(t.Context(), q)
	require.ErrorContains(t, err, "redisbucket: a Cap of 0 is out of its range")
	_, err = b.Keep(t.Context(), k)
	require.ErrorContains(t, err, "redisbucket: a Lease of -1ns is out of its range")
}

// The greatest value goes there and back, and bytes stay what they are.
func TestAValueOfAMebibyteIsKept(t *testing.T) {
	t.Parallel()
	b := redisbucket.New(connect(t, servers.StartRedis(t).Addr))
	k := keeping("key")
	k.Value = make([]byte, 1<<20)
	for i := range k.Value {
		k.Value[i] = byte(i * i >> 3)
	}
	for range 2 {
		kept, err := b.Keep(t.Context(), k)
		require.NoError(t, err)
		require.Equal(t, "a", kept.ID)
	}
	other := keeping("key")
	other.ID = "b"
	kept, err := b.Keep(t.Context(), other)
	require.NoError(t, err)
	require.Equal(t, "a", kept.ID)
	require.Equal(t, k.Value, kept.Value)
}
