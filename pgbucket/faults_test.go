package pgbucket_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/pgbucket"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// A lockedRow is a row that somebody has locked, of the key "key" in a table of its own, with the rows of its seats and its
// keeper.
type lockedRow struct {
	testBucket
	level  shared.BucketLevel
	seats  shared.SeatState
	keeper shared.KeepState
	lock   pgx.Tx
}

func lockRow(t *testing.T) *lockedRow {
	t.Helper()
	r := &lockedRow{testBucket: newBucket(t)}
	for _, call := range r.calls() {
		require.NoError(t, call(t.Context(), r.Bucket))
	}
	r.level, r.seats, r.keeper = levelOf(t, r.pool, r.name, "key"), r.seatsOf(t, "key"), r.keeperOf(t, "key")
	var err error
	r.lock, err = newConn(t, server.URL).Begin(t.Context())
	require.NoError(t, err)
	for _, table := range []string{"", "_seat", "_kept"} {
		exec(t, r.lock, r.name, "SELECT 1 FROM TBL"+table+" FOR UPDATE")
	}
	return r
}

// calls are those that the locks make wait.
func (r *lockedRow) calls() map[string]func(ctx context.Context, b *pgbucket.Bucket) error {
	return map[string]func(ctx context.Context, b *pgbucket.Bucket) error{
		"Take": func(ctx context.Context, b *pgbucket.Bucket) error {
			_, err := b.Take(ctx, one("key", every(1)))
			return err
		},
		"Seats": func(ctx context.Context, b *pgbucket.Bucket) error {
			_, err := b.Seats(ctx, seating("key"))
			return err
		},
		"Keep": func(ctx context.Context, b *pgbucket.Bucket) error { _, err := b.Keep(ctx, keeping("key")); return err },
	}
}

// unlock ends the lock, and requires that the calls which have waited for it take nothing.
func (r *lockedRow) unlock(t *testing.T) {
	t.Helper()
	require.NoError(t, r.lock.Rollback(t.Context()))
	require.Equal(t, r.level, levelOf(t, r.pool, r.name, "key"))
	require.Equal(t, r.seats, r.seatsOf(t, "key"))
	require.Equal(t, r.keeper, r.keeperOf(t, "key"))
}

// waiting waits until a session waits for a lock of the table, and returns its process.
func waiting(t *testing.T, db pgbucket.DB, table string) (pid int) {
	t.Helper()
	realtime.Until(t, func() bool {
		err := db.QueryRow(t.Context(), "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1", "%"+table+"%").Scan(&pid)
		return err == nil
	}, "a session waits for a lock")
	return pid
}

func code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

func TestAServerThatOnlyReadsIsAnError(t *testing.T) {
	t.Parallel()
	bucket := newBucket(t)
	_, err := bucket.Take(t.Context(), one("key", every(1)))
	require.NoError(t, err)
	bucket.Bucket = pgbucket.New(newPool(t, server.StartStandby().URL), bucket.table)
	_, err = bucket.Take(t.Context(), one("key", every(1)))
	require.Equal(t, "25006", code(err), "%v", err)
	require.Equal(t, "25006", code(bucket.GiveBack(t.Context(), one("key", every(1)), shared.Instant{})))
	_, err = bucket.Sweep(t.Context())
	require.Equal(t, "25006", code(err), "%v", err)
	_, err = bucket.Seats(t.Context(), seating("key"))
	require.Equal(t, "0A000", code(err), "%v", err) // A standby has nothing of an UNLOGGED table.
	_, err = bucket.Keep(t.Context(), keeping("key"))
	require.Equal(t, "25006", code(err), "%v", err)
}

func TestALockTimeoutIsAnErrorAndTakesNothing(t *testing.T) {
	locked := lockRow(t)
	impatient := pgbucket.New(newPool(t, server.URL, "lock_timeout=50ms"), locked.table)
	require.Equal(t, "55P03", code(impatient.GiveBack(t.Context(), one("key", every(1)), locked.level.Empty)))
	for name, call := range locked.calls() {
		require.Equal(t, "55P03", code(call(t.Context(), impatient)), name)
	}
	_, err := impatient.Take(t.Context(), one("other", every(1)))
	require.NoError(t, err, "other keys are not locked")
	_, err = impatient.Seats(t.Context(), seating("other"))
	require.NoError(t, err)
	_, err = impatient.Keep(t.Context(), keeping("other"))
	require.NoError(t, err)
	locked.unlock(t)
	_, err = impatient.Take(t.Context(), one("key", every(1)))
	require.NoError(t, err)
}

// An expiring context counts as one whose deadline has passed when it is cancelled.
type expiring struct{ context.Context }

func (c expiring) Err() error {
	if c.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// The context of a call is the patience of its caller. The server is told, so that it does
// not take later what nobody waits for. The deadline passes when the call has reached the
// server.
func TestACallThatTimesOutIsCanceledOnTheServer(t *testing.T) {
	locked := lockRow(t)
	for _, call := range locked.calls() {
		ctx, expire := context.WithCancel(t.Context())
		failure := make(chan error)
		go func() { failure <- call(expiring{ctx}, locked.Bucket) }()
		waiting(t, locked.pool, locked.name)
		expire()
		require.ErrorIs(t, realtime.Next(t, failure), context.DeadlineExceeded)
		realtime.Until(t, func() bool {
			return value[int](t, locked.pool, "", "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1", "%"+locked.name+"%") == 0
		}, "no session waits for a lock")
	}
	locked.unlock(t)
}

// If the call were sent again, the level would be raised by units that nobody got.
func TestACallWhoseConnectionEndsIsNotRepeated(t *testing.T) {
	locked := lockRow(t)
	for _, call := range locked.calls() {
		failure := make(chan error)
		go func() { failure <- call(context.Background(), locked.Bucket) }()
		pid := waiting(t, locked.pool, locked.name)
		require.True(t, value[bool](t, locked.pool, "", "SELECT pg_terminate_backend($1)", pid))
		require.Equal(t, "57P01", code(realtime.Next(t, failure)))
	}
	locked.unlock(t)
}

// Only READ COMMITTED sees a row as it is when it is locked. Elsewhere the server says so.
func TestAStricterIsolationLevelIsAnErrorAndTakesNothing(t *testing.T) {
	bucket := newBucket(t)
	_, err := bucket.Take(t.Context(), one("key", every(1)))
	require.NoError(t, err)
	tx, err := bucket.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	value[int](t, tx, "", "SELECT 1")
	_, err = bucket.Take(t.Context(), one("key", every(1)))
	require.NoError(t, err)
	before := levelOf(t, bucket.pool, bucket.name, "key")
	_, err = pgbucket.New(tx, bucket.table).Take(t.Context(), one("key", every(1)))
	require.Equal(t, "40001", code(err), "%v", err)
	require.Equal(t, before, levelOf(t, bucket.pool, bucket.name, "key"))

	// A row that is new since the transaction began must not make the functions look for it for ever either.
	for name, call := range (&lockedRow{}).calls() {
		for _, was := range []string{"new", "known"} {
			if was == "known" {
				require.NoError(t, call(t.Context(), bucket.Bucket))
			}
			require.NoError(t, tx.Rollback(t.Context()))
			tx, err = bucket.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
			require.NoError(t, err)
			value[int](t, tx, "", "SELECT 1")
			require.NoError(t, call(t.Context(), bucket.Bucket))
			require.Equal(t, "40001", code(call(t.Context(), pgbucket.New(tx, bucket.table))), "%s of a key that is %s", name, was)
		}
	}
}

// A server that is far away is reached by a new pool, whose first connections take longer than a
// call may.
func TestAFarServerIsReachedByAColdPool(t *testing.T) {
	t.Parallel()
	url := startServer(t).URL
	table, _ := newTable(t, newPool(t, url))
	proxy := servers.StartProxy(t, server.Addr)
	pool := newPool(t, strings.Replace(url, server.Addr, proxy.Addr, 1))
	proxy.SetDelay(100*time.Millisecond, 0)
	s, err := shaper.New(shaper.Limits{Rate: 50, Depth: 9}, shaper.WithBucket(pgbucket.New(pool, table), "key", shared.Options{}))
	require.NoError(t, err)
	defer s.Close()
	// On a busy machine the calls may fail until requests are refused, so one request is not enough.
	began := time.Now()
	realtime.Until(t, func() bool { return s.Wait(t.Context()) == nil }, "a request that leaves")
	t.Logf("the first request left after %v, and %d calls that failed", time.Since(began), s.Stats().Bucket.Failures)
}
