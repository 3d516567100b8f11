package pgbucket_test

import (
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/pgbucket"
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
	err := b.pool.QueryRow(t.Context(), "SELECT ready, ids, held, want, since, expires, number FROM "+b.name+"_seat WHERE key = $1", []byte(key)).
		Scan(&s.Ready, &ids, &held, &want, &since, &expires, &number)
	if err != pgx.ErrNoRows {
		require.NoError(t, err)
	}
	for i, id := range ids {
		s.Holders = append(s.Holders, shared.SeatHolder{ID: string(id), Held: held[i], Want: want[i], Since: since[i], Expires: expires[i], Number: number[i]})
	}
	return s
}

// setSeats makes s the state of the seats of a key; the zero state is none.
func (b testBucket) setSeats(t testing.TB, key string, s shared.SeatState) {
	t.Helper()
	exec(t, b.pool, b.name, "DELETE FROM TBL_seat WHERE key = $1", []byte(key))
	if s.Ready == 0 && s.Holders == nil {
		return
	}
	ids, held, want := [][]byte{}, []int{}, []int{}
	since, expires, number := []int64{}, []int64{}, []int64{}
	for _, h := range s.Holders {
		ids, held, want = append(ids, []byte(h.ID)), append(held, h.Held), append(want, h.Want)
		since, expires, number = append(since, h.Since), append(expires, h.Expires), append(number, h.Number)
	}
	exec(t, b.pool, b.name, `INSERT INTO TBL_seat (key, written, ready, ids, held, want, since, expires, number)
		VALUES ($1, extract(epoch FROM clock_timestamp()) * 1000000, $2, $3, $4, $5, $6, $7, $8)`, []byte(key), s.Ready, ids, held, want, since, expires, number)
}

// keeperOf returns the state of a kept key.
func (b testBucket) keeperOf(t testing.TB, key string) (s shared.KeepState) {
	t.Helper()
	var id []byte
	err := b.pool.QueryRow(t.Context(), "SELECT id, lease, ends, value FROM "+b.name+"_kept WHERE key = $1", []byte(key)).
		Scan(&id, (*int64)(&s.Lease), &s.Ends, &s.Value)
	if err != pgx.ErrNoRows {
		require.NoError(t, err)
	}
	s.ID = string(id)
	s.Lease *= time.Microsecond
	return s
}

// setKeeper makes s the state of a kept key; the zero state is none.
func (b testBucket) setKeeper(t testing.TB, key string, s shared.KeepState) {
	t.Helper()
	exec(t, b.pool, b.name, "DELETE FROM TBL_kept WHERE key = $1", []byte(key))
	if s.ID == "" && s.Value == nil && s.Lease == 0 && s.Ends == 0 {
		return
	}
	exec(t, b.pool, b.name, `INSERT INTO TBL_kept (key, written, id, lease, ends, value)
		VALUES ($1, extract(epoch FROM clock_timestamp()) * 1000000, $2, $3, $4, $5)`, []byte(key), []byte(s.ID), s.Lease.Microseconds(), s.Ends, s.Value)
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
		Set: func(key string, s shared.SeatState) { b.setSeats(t, key, s) },
	})
	made.Keeps(t, steps(), made.Stepped[shared.Keeping, shared.Kept, shared.KeepState]{
		Ask: func(k shared.Keeping, now int64) (shared.Kept, error) {
			return pgbucket.KeepAt(t.Context(), b.Bucket, k, now)
		},
		Get: func(key string) shared.KeepState { return b.keeperOf(t, key) },
		Set: func(key string, s shared.KeepState) { b.setKeeper(t, key, s) },
	})
}
