package pgbucket_test

import (
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/pgbucket"
	"example.com/leakybucket/shaper/shared"
)

// steps returns how many steps a random script has.
func steps() int {
	if os.Getenv("SHAPER_LONG") == "" {
		return 8000
	}
	return 100_000
}

// seating asks for one of two seats, and keeping asks to keep a key.
func seating(key string) shared.Seating {
	return shared.Seating{Key: key, ID: "a", Cap: 2, Want: 1, Number: 1}
}

func keeping(key string) shared.Keeping {
	return shared.Keeping{Key: key, ID: "a", Lease: 3 * time.Second, Value: []byte("a's")}
}

// seatsOf returns the state of the seats of a key.
func (b testBucket) seatsOf(t testing.TB, key string) (s shared.SeatState) {
	t.Helper()
	var ids [][]byte
	var held, want []int
	var since, expires, number []int64
	err := b.pool.QueryRow(t.Context(), "SELECT ready, ids, held, want, since, expires, number FROM "+b.name+"_seat WHERE key = $1", pgbucket.Column(key)).
		Scan(&s.Ready, &ids, &held, &want, &since, &expires, &number)
	if err != pgx.ErrNoRows {
		require.NoError(t, err)
	}
	for i, id := range ids {
		s.Holders = append(s.Holders, shared.SeatHolder{ID: string(id), Held: held[i], Want: want[i], Since: since[i], Expires: expires[i], Number: number[i]})
	}
	return s
}

// setSeats makes s the state of the seats of a key.
func setSeats(t testing.TB, db pgbucket.DB, table, key string, s shared.SeatState) {
	t.Helper()
	exec(t, db, table, "DELETE FROM TBL_seat WHERE key = $1", pgbucket.Column(key))
	ids, held, want := [][]byte{}, []int{}, []int{}
	since, expires, number := []int64{}, []int64{}, []int64{}
	for _, h := range s.Holders {
		ids, held, want = append(ids, []byte(h.ID)), append(held, h.Held), append(want, h.Want)
		since, expires, number = append(since, h.Since), append(expires, h.Expires), append(number, h.Number)
	}
	exec(t, db, table, `INSERT INTO TBL_seat (key, written, ready, ids, held, want, since, expires, number)
		VALUES ($1, extract(epoch FROM clock_timestamp()) * 1000000, $2, $3, $4, $5, $6, $7, $8)`, pgbucket.Column(key), s.Ready, ids, held, want, since, expires, number)
}

// keeperOf returns the state of a kept key.
func (b testBucket) keeperOf(t testing.TB, key string) (s shared.KeepState) {
	t.Helper()
	var id []byte
	err := b.pool.QueryRow(t.Context(), "SELECT id, lease, ends, value FROM "+b.name+"_kept WHERE key = $1", pgbucket.Column(key)).
		Scan(&id, (*int64)(&s.Lease), &s.Ends, &s.Value)
	if err != pgx.ErrNoRows {
		require.NoError(t, err)
	}
	s.ID = string(id)
	s.Lease *= time.Microsecond
	return s
}

// setKeeper makes s the state of a kept key. A lease that has parts of a microsecond becomes another damage.
func setKeeper(t testing.TB, db pgbucket.DB, table, key string, s shared.KeepState) {
	t.Helper()
	lease := s.Lease.Microseconds()
	if s.Lease%time.Microsecond != 0 {
		lease = -1
	}
	exec(t, db, table, "DELETE FROM TBL_kept WHERE key = $1", pgbucket.Column(key))
	exec(t, db, table, `INSERT INTO TBL_kept (key, written, id, lease, ends, value)
		VALUES ($1, extract(epoch FROM clock_timestamp()) * 1000000, $2, $3, $4, $5)`, pgbucket.Column(key), []byte(s.ID), lease, s.Ends, s.Value)
}

// The functions take the steps of package shared, whatever happens, at a clock of the test's.
func TestTheFunctionsTakeTheStepsOfSeatsAndKeepers(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	made.Seats(t, steps(), made.Stepped[shared.Seating, shared.Seated, shared.SeatState]{
		Ask: func(q shared.Seating, now int64) (shared.Seated, error) {
			return pgbucket.SeatsAt(t.Context(), b.Bucket, q, now)
		},
		Get: func(key string) shared.SeatState { return b.seatsOf(t, key) },
		Set: func(key string, s shared.SeatState) { setSeats(t, b.pool, b.name, key, s) },
	})
	made.Keeps(t, steps(), made.Stepped[shared.Keeping, shared.Kept, shared.KeepState]{
		Ask: func(k shared.Keeping, now int64) (shared.Kept, error) {
			return pgbucket.KeepAt(t.Context(), b.Bucket, k, now)
		},
		Get: func(key string) shared.KeepState { return b.keeperOf(t, key) },
		Set: func(key string, s shared.KeepState) { setKeeper(t, b.pool, b.name, key, s) },
	})
}

// The functions through PgBouncer, whose next statement may reach another session.
func TestPgBouncerMayStandBeforeSeatsAndKeepers(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	through := pgbucket.New(newPool(t, servers.StartPgBouncer(t, server)), b.table)
	setSeats(t, b.pool, b.name, "key", shared.SeatState{Ready: 1})
	made.SeatsStayBelowTheCap(t, through, "key", func() {})
	made.OneKeeps(t, through, "key", func() {})
}

// A server that crashes in the middle has lost all seats, and no lease of a keeper.
func TestAServerThatCrashesGivesNoSeatTwiceAndHasOneKeeper(t *testing.T) {
	t.Parallel()
	crashing := servers.StartPostgres(t)
	b := testBucket{pool: newPool(t, crashing.URL)}
	b.table, b.name = newTable(t, b.pool)
	b.Bucket = pgbucket.New(b.pool, b.table)
	crash := func() { crashing.Kill(); crashing.Restart() }
	setSeats(t, b.pool, b.name, "key", shared.SeatState{Ready: 1})
	made.SeatsStayBelowTheCap(t, b, "key", func() {
		crash()
		realtime.Until(t, func() bool { return b.pool.Ping(t.Context()) == nil }, "it is back")
		var ready int64
		realtime.Until(t, func() bool { ready = b.seatsOf(t, "key").Ready; return ready > 0 }, "somebody has asked")
		require.Greater(t, ready, int64(1), "it knows nothing from before")
	})
	made.OneKeeps(t, b, "key", crash)
}

// A row that somebody has written by hand must neither stop the seats for ever nor make each call an error. The suite
// has numbers that are outside of their ranges.
func TestADamagedRowOfSeatsOrOfAKeeperIsNone(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	seated := func() shared.Seated {
		t.Helper()
		got, err := b.Seats(t.Context(), seating("key"))
		require.NoError(t, err)
		return got
	}
	sound := shared.SeatState{Ready: 1, Holders: []shared.SeatHolder{
		{ID: "b", Held: 1, Want: 1, Expires: 1 << 53, Number: 3}, {ID: "c", Want: 1, Since: 1, Expires: 1 << 53},
	}}
	for _, damage := range []string{
		"written = 0", "written = written - 86500000000", "ready = 0", "ready = -1", "ready = 9007199254740993",
		"ids = '{}'", "ids = ids[:1]", "ids = ids || 'd'::bytea", "ids = ARRAY['c', 'b']::bytea[]", "ids = ARRAY['b', 'b']::bytea[]", "ids = ARRAY['', 'b']::bytea[]", "ids = ARRAY['b', NULL]::bytea[]",
		"held = held[:1]", "held[2] = -1", "held[2] = NULL", "want = want || 1", "want[1] = -1", "want[1] = NULL",
		"since = '{}'", "since[1] = -1", "since[2] = 9007199254740993", "since[2] = NULL", "expires = NULLIF(expires, expires) || 1::bigint", "expires[1] = 0", "expires[2] = 9007199254740993", "expires[2] = NULL",
		"number = number || 1::bigint", "number[2] = -1", "number[1] = 9007199254740993", "number[1] = NULL",
	} {
		setSeats(t, b.pool, b.name, "key", sound)
		exec(t, b.pool, b.name, "UPDATE TBL_seat SET "+damage)
		got := seated()
		require.Equal(t, shared.Seated{Target: 2, Now: got.Now}, got, "%s: a guard has begun, and nobody else is known", damage)
		s := b.seatsOf(t, "key")
		require.Equal(t, got.Now+shared.SeatGuard.Microseconds(), s.Ready, damage)
		require.Len(t, s.Holders, 1, damage)
	}
	setSeats(t, b.pool, b.name, "key", sound)
	got := seated()
	require.Equal(t, shared.Seated{Now: got.Now}, got, "without a damage one is of b, and c waits for the other")

	now := value[int64](t, b.pool, "", "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
	kept := shared.KeepState{ID: "b", Lease: time.Minute, Ends: now + 59_000_000, Value: []byte("old")}
	for _, damage := range []string{
		"written = 0", "written = written - 86500000000", "id = ''", "lease = 0", "lease = -1000", "lease = 60001000", "lease = 1500", "ends = 0", "ends = -1", "ends = 9007199254740993",
	} {
		for _, lease := range []time.Duration{0, time.Second} {
			setKeeper(t, b.pool, b.name, "key", kept)
			exec(t, b.pool, b.name, "UPDATE TBL_kept SET "+damage)
			got, err := b.Keep(t.Context(), shared.Keeping{Key: "key", ID: "a", Lease: lease})
			require.NoError(t, err, damage)
			require.Nil(t, got.Value, damage)
			require.Equal(t, lease > 0, got.ID == "a", damage)
		}
	}
	setKeeper(t, b.pool, b.name, "key", kept)
	found, err := b.Keep(t.Context(), keeping("key"))
	require.NoError(t, err)
	require.Equal(t, shared.Kept{ID: "b", Value: []byte("old"), Now: found.Now}, found, "without a damage")
}

// What can't be asked for reaches no server.
func TestASeatingOrKeepingThatCanNotBeAskedForIsAnError(t *testing.T) {
	b := pgbucket.New(newPool(t, "postgres://127.0.0.1:1/nowhere?sslmode=disable"))
	q, k := seating("key"), keeping("key")
	q.Cap, k.Lease = 0, -1
	_, err := b.Seats(t.Context(), q)
	require.ErrorContains(t, err, "pgbucket: a Cap of 0 is out of its range")
	_, err = b.Keep(t.Context(), k)
	require.ErrorContains(t, err, "pgbucket: a Lease of -1ns is out of its range")
}

// The greatest value goes there and back, and bytes stay what they are.
func TestAValueOfAMebibyteIsKept(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
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
