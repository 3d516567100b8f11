package pgbucket_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/pgbucket"
)

// fill makes n keys whose levels reached 0 at a time before now, or do after it.
func fill(t *testing.T, db pgbucket.DB, table, prefix string, n int, age time.Duration) {
	t.Helper()
	exec(t, db, table, `INSERT INTO TBL (key, empty, written, version, unit, parts, burst)
		SELECT convert_to($1 || i, 'UTF8'), extract(epoch FROM clock_timestamp()) * 1000000 - $2, 1, 1, 1, 1, 1 FROM generate_series(1, $3) i`,
		prefix, age.Microseconds(), n)
}

func TestSweepDeletesWhatHasBeenDrainedForAMinute(t *testing.T) {
	bucket := newBucket(t)
	n, err := bucket.Sweep(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)

	fill(t, bucket.pool, bucket.name, "old", 2500, 2*time.Minute)   // more than two pages, among others
	fill(t, bucket.pool, bucket.name, "mold", 1700, 40*time.Second) // 20 s are more than a busy machine needs
	fill(t, bucket.pool, bucket.name, "gold", 800, -time.Hour)
	n, err = bucket.Sweep(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2500, n)
	require.Equal(t, 2500, value[int](t, bucket.pool, bucket.name, "SELECT count(*) FROM TBL"))
	require.Zero(t, value[int](t, bucket.pool, bucket.name, "SELECT count(*) FROM TBL WHERE encode(key, 'escape') LIKE 'old%'"))
	n, err = bucket.Sweep(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
}

// To wait for a row would hold those that are locked already, and whoever wants them.
func TestSweepLeavesARowThatIsInUse(t *testing.T) {
	bucket := newBucket(t)
	fill(t, bucket.pool, bucket.name, "key", 10, time.Hour)
	tx, err := bucket.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	taken, err := pgbucket.New(tx, bucket.table).Take(t.Context(), one("key7", every(1)))
	require.NoError(t, err)
	require.False(t, taken.Cold)

	n, err := bucket.Sweep(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 9, n)
	require.NoError(t, tx.Commit(t.Context()))
	taken, err = bucket.Take(t.Context(), one("key7", every(1)))
	require.NoError(t, err)
	require.False(t, taken.Cold)
	taken, err = bucket.Take(t.Context(), one("key6", every(1)))
	require.NoError(t, err)
	require.True(t, taken.Cold, "a key comes back as new")
}

// A Take during a Sweep finds its row or makes it anew.
func TestTakesGoOnDuringASweep(t *testing.T) {
	bucket := newBucket(t)
	swept, done := int64(0), make(chan error)
	const rounds = 40
	begun := time.Now()
	go func() {
		var err error
		// A busy machine may let all of them be over before the first row is there.
		for round := 0; round < rounds || (swept == 0 && time.Since(begun) < time.Minute); round++ {
			var n int64
			if n, err = bucket.Sweep(context.Background()); err != nil {
				break
			}
			swept += n
		}
		done <- err
	}()
	colds := 0
	for ended := false; !ended; {
		taken, err := bucket.Take(t.Context(), one("key", every(1)))
		require.NoError(t, err)
		require.True(t, taken.OK)
		require.Equal(t, max(taken.Now, taken.Empty.Micros), taken.Empty.Micros)
		if taken.Cold {
			colds++
		}
		exec(t, bucket.pool, bucket.name, "UPDATE TBL SET empty = 1") // long ago
		select {
		case err := <-done:
			require.NoError(t, err)
			ended = true
		default:
		}
	}
	require.GreaterOrEqual(t, int64(colds), swept, "each row that went was made anew, but for the last")
	require.LessOrEqual(t, int64(colds), swept+1)
	require.Positive(t, swept)
}
