package pgbucket_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/pgbucket"
	"example.com/leakybucket/shaper/buckettest"
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

	// Nor is any ID, and the seats and keepers of keys do not touch each other.
	for i, key := range keys {
		q, k := seating(key), keeping(key)
		q.ID, k.ID = keys[len(keys)-1-i], keys[len(keys)-1-i]
		for known := range 2 {
			before := len(bucket.seatsOf(t, key).Holders)
			require.Equalf(t, known, before, "%.20q is no other key", key)
			_, err := bucket.Seats(t.Context(), q)
			require.NoErrorf(t, err, "%.20q", key)
			kept, err := bucket.Keep(t.Context(), k)
			require.NoErrorf(t, err, "%.20q", key)
			require.Equal(t, k.ID, kept.ID)
			require.Equal(t, known == 0, kept.Value == nil)
		}
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
	_, err = bucket.Seats(ctx, seating("key"))
	require.ErrorIs(t, err, context.Canceled)
	_, err = bucket.Keep(ctx, keeping("key"))
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
		// Two leases of one key must not both last, so this one waits for the disk.
		_, err = of.Keep(t.Context(), keeping("key"))
		require.NoError(t, err)
	}
	log := func() []string {
		entries := value[[]string](t, bucket.pool, bucket.name, "SELECT array_agg(commit ORDER BY n) FROM TBL_log")
		exec(t, bucket.pool, bucket.name, "TRUNCATE TBL_log")
		return entries
	}
	exec(t, bucket.pool, bucket.name, `CREATE CONSTRAINT TRIGGER note AFTER UPDATE ON TBL_kept DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION TBL_note()`)
	alone := []string{"UPDATE off", "UPDATE off", "UPDATE on", "DELETE off", "UPDATE on"} // The third is this test's.
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

	within := []string{"UPDATE on", "UPDATE on", "UPDATE on", "DELETE on", "UPDATE on"}
	require.NoError(t, pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { all(tx); return nil }))
	require.Equal(t, within, log())
	require.NoError(t, pgx.BeginFunc(t.Context(), conn, func(pgx.Tx) error { all(conn); return nil }), "the connection knows that it is in one")
	require.Equal(t, within, log())
	type unknown struct{ pgbucket.DB }
	require.NoError(t, pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { all(unknown{tx}); return nil }))
	require.Equal(t, within, log())
}

// An update that touches an index leaves an old entry behind in it, and the table and the
// index grow until they are vacuumed. It is not parallel: an open transaction of another test keeps old rows.
func TestNoStepUpdatesAnIndex(t *testing.T) {
	bucket := newBucket(t)
	const keys, each = 40, 20
	for range each {
		for key := range keys {
			_, err := bucket.Take(t.Context(), one(fmt.Sprint("user:", key), every(1)))
			require.NoError(t, err)
		}
	}
	for n := range keys * each {
		q, k := seating("key"), keeping("key")
		q.ID = fmt.Sprint("process ", n%16)
		_, err := bucket.Seats(t.Context(), q)
		require.NoError(t, err)
		_, err = bucket.Keep(t.Context(), k)
		require.NoError(t, err)
	}
	bucket.pool.Close() // A session tells of its updates when it ends.
	conn := newConn(t, server.URL)
	for _, table := range []string{bucket.name, bucket.name + "_seat", bucket.name + "_kept"} {
		var updates, hot int
		realtime.Until(t, func() bool {
			require.NoError(t, conn.QueryRow(t.Context(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = $1", table).Scan(&updates, &hot))
			return updates >= keys*each
		}, "the sessions tell")
		t.Logf("%s: %d of %d updates were HOT", table, hot, updates)
		require.GreaterOrEqual(t, hot, updates*99/100)
		require.LessOrEqual(t, value[int](t, conn, table, "SELECT pg_relation_size('TBL') / 8192"), 8)
	}
}

func TestATableMayHaveAnyNameThatNeedsNoQuotesWithinQuotes(t *testing.T) {
	pool := newPool(t, newDatabase(t))
	exec(t, pool, "", `CREATE SCHEMA "Limits"`)
	for _, name := range []string{
		"Limits.Buckets", "Limits.leaky_buckets", "leaky_buckets", "public.LEAKY_BUCKETS", "select", "_1",
		strings.Repeat("s", 58), "Limits.leaky_buckets_take",
	} {
		table := pgbucket.WithTable(name)
		require.NoError(t, pgbucket.Migrate(t.Context(), pool, table), name)
		bucket := pgbucket.New(pool, table)
		taken, err := bucket.Take(t.Context(), one("key", every(1)))
		require.NoError(t, err, name)
		require.True(t, taken.Cold, "%s is a table of its own", name)
		require.NoError(t, bucket.GiveBack(t.Context(), one("key", every(1)), taken.Empty))
		_, err = bucket.Seats(t.Context(), seating("key"))
		require.NoError(t, err, name)
		_, err = bucket.Keep(t.Context(), keeping("key"))
		require.NoError(t, err, name)
		_, err = bucket.Sweep(t.Context())
		require.NoError(t, err, name)
	}
	n := value[int](t, pool, "", `SELECT count(*) FROM "Limits"."Buckets"`)
	require.Equal(t, 1, n)
}

func TestAWrongOptionIsTheErrorOfEveryMethod(t *testing.T) {
	for name, bucket := range map[string]*pgbucket.Bucket{
		"the DB is nil":  pgbucket.New(nil, nil),
		`WithTable("")`:  pgbucket.New(nil, pgbucket.WithTable("")),
		`WithTable("a b`: pgbucket.New(nil, pgbucket.WithTable("a b")),
	} {
		_, err := bucket.Take(t.Context(), one("key", every(1)))
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, bucket.GiveBack(t.Context(), one("key", every(1)), shared.Instant{}), name)
		_, err = bucket.Sweep(t.Context())
		require.ErrorContains(t, err, name)
		_, err = bucket.Seats(t.Context(), seating("key"))
		require.ErrorContains(t, err, name)
		_, err = bucket.Keep(t.Context(), keeping("key"))
		require.ErrorContains(t, err, name)
	}
	for _, name := range []string{
		"", ".", "a.", ".b", "a.b.c", `a"b`, "a'b", "a;b", "a-b", "1a", "ä", "a\n", strings.Repeat("s", 59), strings.Repeat("s", 64) + ".a",
	} {
		require.ErrorContains(t, pgbucket.Migrate(t.Context(), nil, pgbucket.WithTable(name)), "WithTable")
		require.Empty(t, pgbucket.Schema(pgbucket.WithTable(name)))
	}
	require.ErrorContains(t, pgbucket.Migrate(t.Context(), nil), "the DB is nil")
}

// A rate that is none must not be written, as its row would count as none again.
func TestATakeThatCanNotBeAskedForIsAnError(t *testing.T) {
	bucket := newBucket(t)
	for want, change := range map[string]func(*shared.Take){
		"the key is empty":                  func(t *shared.Take) { t.Key = "" },
		"the cost is 0, must be at least 1": func(t *shared.Take) { t.Cost = 0 },
		"Version:-1":                        func(t *shared.Take) { t.Rate.Version = -1 },
		"Version:9007199254740993":          func(t *shared.Take) { t.Rate.Version = 1<<53 + 1 },
		"Micros:-1":                         func(t *shared.Take) { t.Rate.Micros = -1 },
		"Micros:2251799813685249":           func(t *shared.Take) { t.Rate.Micros = 1<<51 + 1 },
		"Micros:0 Part:0":                   func(t *shared.Take) { t.Rate.Micros = 0 },
		"Part:-1":                           func(t *shared.Take) { t.Rate.Part = -1 },
		"Part:1 Parts:1 ":                   func(t *shared.Take) { t.Rate.Part = 1 },
		"Parts:0":                           func(t *shared.Take) { t.Rate.Parts = 0 },
		"Parts:1000000000001":               func(t *shared.Take) { t.Rate.Parts = 1e12 + 1 },
		"Burst:0":                           func(t *shared.Take) { t.Rate.Burst = 0 },
	} {
		take := one("key", every(1))
		change(&take)
		_, err := bucket.Take(t.Context(), take)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, bucket.GiveBack(t.Context(), take, shared.Instant{}), want)
	}
	require.Zero(t, value[int](t, bucket.pool, bucket.name, "SELECT count(*) FROM TBL"))
	most := one("key", shared.BucketRate{Version: 1 << 53, Micros: 1 << 51, Part: 1e12 - 1, Parts: 1e12, Burst: 1<<63 - 1})
	for cold := range 2 {
		taken, err := bucket.Take(t.Context(), most)
		require.NoError(t, err)
		require.Equal(t, cold == 0, taken.Cold, "the greatest numbers are written and read")
	}
}

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

	// Seats and keepers go after a day.
	const sql = `INSERT INTO %s (key, written) SELECT convert_to($1 || i, 'UTF8'), extract(epoch FROM clock_timestamp() - $2::interval) * 1000000 FROM generate_series(1, $3) i`
	for _, table := range []string{"TBL_seat", "TBL_kept"} {
		exec(t, bucket.pool, bucket.name, fmt.Sprintf(sql, table), "old", "1 day 1 second", 1200)
		exec(t, bucket.pool, bucket.name, fmt.Sprintf(sql, table), "young", "23 hours 59 minutes", 20)
	}
	n, err = bucket.Sweep(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2*1200, n)
	for _, table := range []string{"TBL_seat", "TBL_kept"} {
		require.Equal(t, 20, value[int](t, bucket.pool, bucket.name, "SELECT count(*) FROM "+table+" WHERE encode(key, 'escape') LIKE 'young%'"))
	}
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

func TestConformance(t *testing.T) {
	t.Parallel()
	startServer(t)
	t.Run("pool", func(t *testing.T) {
		t.Parallel()
		bucket := newStepped(t)
		buckettest.Run(t, func(t *testing.T) shared.Bucket { bucket.t = t; return bucket })
	})
	t.Run("PgBouncer", func(t *testing.T) {
		t.Parallel()
		bucket := newTampered(t, newPool(t, servers.StartPgBouncer(t, server)))
		buckettest.Run(t, func(t *testing.T) shared.Bucket { bucket.t = t; return bucket })
	})
}

// One call over the loopback.
func BenchmarkTake(b *testing.B) {
	bucket := newBucket(b)
	b.ReportAllocs()
	for b.Loop() {
		answer, err := bucket.Take(b.Context(), one("key", every(1)))
		require.NoError(b, err)
		require.True(b, answer.OK)
	}
}

// A Take beside one by the functions of version 1, which know of no hold: the same question by the same connection, in turns.
func BenchmarkTakeBesideVersion1(b *testing.B) {
	old, err := os.ReadFile("testdata/schema_v1.sql")
	require.NoError(b, err)
	bucket := newBucket(b)
	exec(b, bucket.pool, "", strings.ReplaceAll(string(old), "leaky_buckets", bucket.name+"_v1"), pgx.QueryExecModeSimpleProtocol)
	conn := newConn(b, server.URL)
	ask := func(function, told string) func() float64 {
		sql := "SELECT ok, asked, before, before_part, cold, version, unit, unit_part, parts, burst FROM " + bucket.name + function + "($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, " + told + "$15, $16)"
		return func() float64 {
			began := time.Now()
			var ok, cold bool
			var n [8]int64
			err := conn.QueryRow(b.Context(), sql, pgx.QueryExecModeExec, []byte("key"), int64(1), int64(0), int64(0), int64(0), int64(0),
				int64(1), int64(1), int64(0), int64(1), int64(1), int64(0), int64(0), int64(0), int64(0), true,
			).Scan(&ok, &n[0], &n[1], &n[2], &cold, &n[3], &n[4], &n[5], &n[6], &n[7])
			if err != nil || !ok {
				b.Fatal(ok, err)
			}
			return float64(time.Since(began).Nanoseconds()) / 1000
		}
	}
	was, is := ask("_v1_take", ""), ask("_ask", "0, ")
	var before, now []float64
	for i := 0; b.Loop(); i++ {
		if i%2 == 0 {
			before, now = append(before, was()), append(now, is())
		} else {
			now, before = append(now, is()), append(before, was())
		}
	}
	slices.Sort(before)
	slices.Sort(now)
	for i, name := range []string{"least", "1st-quarter", "median"} {
		at := []int{len(now) / 100, len(now) / 4, len(now) / 2}[i]
		b.ReportMetric(now[at], "µs/"+name)
		b.ReportMetric(100*(now[at]/before[at]-1), "%more-"+name)
	}
}

// A call for seats beside one for a level, and how much the server keeps for it.
func BenchmarkSeats(b *testing.B) {
	for _, processes := range []int{1, 4, 16, 64} {
		b.Run(fmt.Sprint(processes), func(b *testing.B) {
			bucket := newBucket(b)
			setSeats(b, bucket.pool, bucket.name, "key", shared.SeatState{Ready: 1})
			made.SeatsBesideTake(b, bucket, "key", processes)
			b.ReportMetric(float64(value[int](b, bucket.pool, bucket.name, "SELECT pg_column_size(s) FROM TBL_seat AS s")), "B/key")
		})
	}
}

// A tampered Bucket is one whose table others write to.
type tampered struct {
	*pgbucket.Bucket
	t     *testing.T // that runs
	db    *pgxpool.Pool
	table string
}

func newTampered(t *testing.T, pool *pgxpool.Pool) tampered {
	option, name := newTable(t, pool)
	return tampered{pgbucket.New(pool, option), t, newPool(t, server.URL), name}
}

func (b tampered) Forget(key string) error {
	for _, table := range []string{"", "_seat", "_kept"} {
		if _, err := b.db.Exec(b.t.Context(), "DELETE FROM "+b.table+table+" WHERE key = $1", pgbucket.Column(key)); err != nil {
			return err
		}
	}
	return nil
}

func (b tampered) Set(key string, l shared.BucketLevel) { setLevel(b.t, b.db, b.table, key, l) }

func (b tampered) SetSeats(key string, s shared.SeatState) { setSeats(b.t, b.db, b.table, key, s) }

func (b tampered) SetKeep(key string, s shared.KeepState) { setKeeper(b.t, b.db, b.table, key, s) }

// A stepped Bucket is on a server whose clock can be moved: its sessions find another
// clock_timestamp before the real one.
type stepped struct{ tampered }

func newStepped(t *testing.T) stepped {
	url := newDatabase(t)
	setup := newConn(t, url)
	for _, sql := range []string{
		"CREATE SCHEMA stepped",
		"CREATE TABLE stepped.moved AS SELECT interval '0' AS by",
		`CREATE FUNCTION stepped.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
			$$ SELECT pg_catalog.clock_timestamp() + (SELECT by FROM stepped.moved) $$`,
	} {
		exec(t, setup, "", sql)
	}
	b := newTampered(t, newPool(t, url, "search_path=stepped,public,pg_catalog"))
	b.db = newPool(t, url, "search_path=stepped,public")
	return stepped{b}
}

func (b stepped) Step(d time.Duration) {
	exec(b.t, b.db, "", "UPDATE stepped.moved SET by = by + $1", d)
}
