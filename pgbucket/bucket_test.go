package pgbucket_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/pgbucket"
	"example.com/leakybucket/shaper/shared"
)

// Where keys are what clients send, an error would be theirs to cause, and three in a row
// make the Bucket count as unavailable.
func TestNoKeyIsAnError(t *testing.T) {
	t.Parallel()
	bucket := newBucket(t)
	long := strings.Repeat("k", 512)
	random := make([]byte, 100_000) // can't be compressed
	for i, n := 0, uint32(1); i < len(random); i++ {
		n = n*1664525 + 1013904223
		random[i] = byte(n >> 24)
	}
	keys := []string{`\x00`, long, long + "a", long + "b", string(random), string(random[:len(random)-1])}
	hour := every(time.Hour.Microseconds()) // so that no level falls to 0 meanwhile
	hour.Burst = 10
	for _, key := range keys {
		taken, err := bucket.Take(t.Context(), one(key, hour))
		require.NoErrorf(t, err, "%.20q", key)
		require.Truef(t, taken.Cold, "%.20q is no other key", key)
	}
	for _, key := range keys {
		taken, err := bucket.Take(t.Context(), one(key, hour))
		require.NoErrorf(t, err, "%.20q", key)
		require.Falsef(t, taken.Cold, "%.20q is found again", key)
		require.NoError(t, bucket.GiveBack(t.Context(), one(key, hour), shared.Instant{Micros: taken.Empty.Micros + hour.Micros}))
		again, err := bucket.Take(t.Context(), one(key, hour))
		require.NoErrorf(t, err, "%.20q", key)
		require.Equalf(t, taken.Empty, again.Empty, "%.20q was given back", key)
	}
}

// A pgx.Conn and a pgx.Tx fail if they are used by two at once, or even mix up their bytes.
func TestAConnectionIsUsedForOneCallAtATime(t *testing.T) {
	t.Parallel()
	bucket := newBucket(t)
	tx, err := bucket.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	pooled, err := bucket.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer pooled.Release()
	for name, db := range map[string]pgbucket.DB{"conn": newConn(t, server.URL), "pooled": pooled, "tx": tx} {
		t.Run(name, func(t *testing.T) {
			bucket := pgbucket.New(db, bucket.table)
			errs := make(chan error, 8)
			for range cap(errs) {
				go func() {
					var err error
					for range 20 {
						if _, e := bucket.Take(t.Context(), one(name, every(1))); e != nil {
							err = e
						}
					}
					errs <- err
				}()
			}
			for range cap(errs) {
				require.NoError(t, realtime.Next(t, errs))
			}
		})
	}
}

func TestWhoWaitsForAConnectionLeavesWhenItsContextEnds(t *testing.T) {
	locked := lockRow(t)
	bucket := pgbucket.New(newConn(t, server.URL), locked.table)
	var busy sync.WaitGroup
	busy.Go(func() {
		if _, err := bucket.Take(context.Background(), one("key", every(1))); err != nil {
			t.Error(err)
		}
	})
	waiting(t, locked.pool, locked.name)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := bucket.Take(ctx, one("key", every(1)))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, bucket.GiveBack(ctx, one("key", every(1)), shared.Instant{}), context.Canceled)
	_, err = bucket.Sweep(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, locked.lock.Rollback(t.Context()))
	busy.Wait()
}

// The units that a transaction has taken are given back if it is rolled back, and are seen by
// others when it is committed.
func TestATransactionTakesWhenItCommits(t *testing.T) {
	bucket := newBucket(t)
	take := shared.Take{Key: "key", Cost: 1, First: 1, Rate: every(1_000_000)}
	_, err := bucket.Take(t.Context(), shared.Take{Key: "key", Cost: 1, First: 1, Rate: every(1)})
	require.NoError(t, err)
	take.Rate.Version++
	for _, commit := range []bool{false, true} {
		before := levelOf(t, bucket.pool, bucket.name, "key")
		tx, err := bucket.pool.Begin(t.Context())
		require.NoError(t, err)
		taken, err := pgbucket.New(tx, bucket.table).Take(t.Context(), take)
		require.NoError(t, err)
		require.True(t, taken.OK)
		require.Equal(t, before, levelOf(t, bucket.pool, bucket.name, "key"))
		if commit {
			require.NoError(t, tx.Commit(t.Context()))
			require.Equal(t, taken.Empty.Micros+1_000_000, levelOf(t, bucket.pool, bucket.name, "key").Empty.Micros)
		} else {
			require.NoError(t, tx.Rollback(t.Context()))
			require.Equal(t, before, levelOf(t, bucket.pool, bucket.name, "key"))
		}
	}
}

// To wait for the disk at each Take is to hold the row for as long. But a transaction that
// is not the Bucket's must be on the disk when its owner is told so.
func TestOnlyTheTransactionsOfABucketItselfDoNotWaitForTheDisk(t *testing.T) {
	bucket := newBucket(t)
	// A deferred trigger sees the setting by which the transaction ends.
	exec(t, bucket.pool, bucket.name, "CREATE TABLE TBL_log (n serial, commit text)")
	exec(t, bucket.pool, bucket.name, `CREATE FUNCTION TBL_note() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN INSERT INTO TBL_log (commit) VALUES (TG_OP || ' ' || current_setting('synchronous_commit')); RETURN NULL; END $$`)
	exec(t, bucket.pool, bucket.name, `CREATE CONSTRAINT TRIGGER note AFTER UPDATE OR DELETE ON TBL DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION TBL_note()`)
	rate := every(1)
	all := func(db pgbucket.DB) {
		of := pgbucket.New(db, bucket.table)
		taken, err := of.Take(t.Context(), one("key", rate))
		require.NoError(t, err)
		require.NoError(t, of.GiveBack(t.Context(), one("key", rate), shared.Instant{Micros: taken.Empty.Micros + 1}))
		exec(t, db, bucket.name, "UPDATE TBL SET empty = 1")
		_, err = of.Sweep(t.Context())
		require.NoError(t, err)
	}
	log := func() []string {
		entries := value[[]string](t, bucket.pool, bucket.name, "SELECT array_agg(commit ORDER BY n) FROM TBL_log")
		exec(t, bucket.pool, bucket.name, "TRUNCATE TBL_log")
		return entries
	}
	alone := []string{"UPDATE off", "UPDATE off", "UPDATE on", "DELETE off"} // The third is this test's.
	all(bucket.pool)
	require.Equal(t, alone, log())

	conn := newConn(t, server.URL)
	all(conn)
	require.Equal(t, alone, log())
	pooled, err := bucket.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer pooled.Release()
	all(pooled)
	require.Equal(t, alone, log())

	within := []string{"UPDATE on", "UPDATE on", "UPDATE on", "DELETE on"}
	require.NoError(t, pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { all(tx); return nil }))
	require.Equal(t, within, log())
	require.NoError(t, pgx.BeginFunc(t.Context(), conn, func(pgx.Tx) error { all(conn); return nil }), "the connection knows that it is in one")
	require.Equal(t, within, log())
	type unknown struct{ pgbucket.DB }
	require.NoError(t, pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { all(unknown{tx}); return nil }))
	require.Equal(t, within, log())
}
