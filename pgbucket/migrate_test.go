package pgbucket_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/pgbucket"
	"example.com/leakybucket/shaper/shared"
)

// Where many processes start at once, each calls Migrate.
func TestMigrateMayRunAtOnceAndAgain(t *testing.T) {
	pool := newPool(t, startServer(t).URL)
	for range 5 {
		option := pgbucket.WithTable("together")
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				if err := pgbucket.Migrate(t.Context(), pool, option); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		bucket := pgbucket.New(pool, option)
		_, err := bucket.Take(t.Context(), one("key", every(1)))
		require.NoError(t, err)
		require.NoError(t, pgbucket.Migrate(t.Context(), pool, option))
		taken, err := bucket.Take(t.Context(), one("key", every(1)))
		require.NoError(t, err)
		require.False(t, taken.Cold, "what was there is there")

		for _, missing := range []string{
			"FUNCTION together_take", "FUNCTION together_ask", "FUNCTION together_step", "FUNCTION together_sit", "FUNCTION together_keep",
			"TABLE together_seat", "TABLE together_kept",
		} {
			exec(t, pool, "", "DROP "+missing)
			require.NoError(t, pgbucket.Migrate(t.Context(), pool, option), "what is missing is made")
			taken, err = bucket.Take(t.Context(), one("key", every(1)))
			require.NoError(t, err)
			require.False(t, taken.Cold)
			_, err = bucket.Seats(t.Context(), seating("key"))
			require.NoError(t, err)
			_, err = bucket.Keep(t.Context(), keeping("key"))
			require.NoError(t, err)
		}
		exec(t, pool, "", "DROP TABLE together, together_seat, together_kept CASCADE")
	}
}

// A process of a new release brings its functions, and one of an old release that starts later
// leaves them as they are.
func TestMigrateBringsNewFunctionsAndKeepsNewerOnes(t *testing.T) {
	bucket := newBucket(t)
	_, err := bucket.Take(t.Context(), one("key", every(1)))
	require.NoError(t, err)
	source := func() string {
		return value[string](t, bucket.pool, bucket.name, "SELECT prosrc FROM pg_proc WHERE oid = to_regproc('TBL_step')")
	}
	own := source()
	for _, row := range []struct {
		version string
		stays   bool
	}{
		{"NULL", false}, {"'somebody''s own words'", false}, {"'pgbucket v0'", false}, {"'pgbucket v1'", false}, {"'pgbucket v2'", false},
		{"'pgbucket v3'", true}, {"'pgbucket v4'", true}, {"'pgbucket v10'", true},
	} {
		exec(t, bucket.pool, bucket.name, "DO $$ BEGIN EXECUTE replace(pg_get_functiondef(to_regproc('TBL_step')), 'b.ok := false;', 'b.ok := false; -- another'); END $$")
		exec(t, bucket.pool, bucket.name, "COMMENT ON FUNCTION TBL_take IS "+row.version)
		require.NotEqual(t, own, source())
		require.NoError(t, pgbucket.Migrate(t.Context(), bucket.pool, bucket.table))
		require.Equal(t, row.stays, own != source(), row.version)
		taken, err := bucket.Take(t.Context(), one("key", every(1)))
		require.NoError(t, err)
		require.False(t, taken.Cold, "levels stay")
		exec(t, bucket.pool, bucket.name, "COMMENT ON FUNCTION TBL_take IS NULL")
		require.NoError(t, pgbucket.Migrate(t.Context(), bucket.pool, bucket.table))
		require.Equal(t, own, source())
	}

	exec(t, bucket.pool, bucket.name, "COMMENT ON FUNCTION TBL_take IS 'pgbucket v4'; ALTER FUNCTION TBL_step RENAME TO TBL_other", pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, pgbucket.Migrate(t.Context(), bucket.pool, bucket.table), "a newer version may have other functions")
	require.Equal(t, own, value[string](t, bucket.pool, bucket.name, "SELECT prosrc FROM pg_proc WHERE oid = to_regproc('TBL_other')"))
	require.True(t, value[bool](t, bucket.pool, bucket.name, "SELECT to_regproc('TBL_step') IS NULL"))
}

// Processes of version 1 go on working while a new release migrates their table, and afterwards: they call the old function.
// The levels stay, and a hold holds their requests, though they neither tell one nor learn of one.
func TestProcessesOfVersion1WorkBesideNewOnes(t *testing.T) {
	old, err := os.ReadFile("testdata/schema_v1.sql")
	require.NoError(t, err)
	pool := newPool(t, newDatabase(t))
	exec(t, pool, "", string(old), pgx.QueryExecModeSimpleProtocol)
	ask := func(key string) (ok, cold bool, before int64, err error) {
		var now int64
		var rate shared.BucketRate
		var part int64
		row := pool.QueryRow(t.Context(), `SELECT ok, asked, before, before_part, cold, version, unit, unit_part, parts, burst
			FROM leaky_buckets_take($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`, pgx.QueryExecModeExec,
			[]byte(key), int64(60_000_000), int64(0), int64(0), int64(0), int64(0), int64(1), int64(60_000_000), int64(0), int64(1), int64(1),
			int64(0), int64(0), int64(0), int64(0), true)
		err = row.Scan(&ok, &now, &before, &part, &cold, &rate.Version, &rate.Micros, &rate.Part, &rate.Parts, &rate.Burst)
		if err == nil && rate != every(60_000_000) {
			err = fmt.Errorf("the rate in force is %+v", rate)
		}
		return ok, cold, before, err
	}
	take := func(key string) (ok, cold bool, before int64) {
		t.Helper()
		ok, cold, before, err := ask(key)
		require.NoError(t, err)
		return ok, cold, before
	}
	ok, cold, before := take("used")
	require.True(t, ok && cold)

	var all sync.WaitGroup
	done := make(chan struct{})
	for i := range 8 {
		all.Go(func() {
			for n, failures := 0, 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				// The call that is under way when the column is added may fail, which is no outage.
				if _, _, _, err := ask(fmt.Sprint(i, " ", n)); err != nil {
					if failures++; failures > 1 {
						t.Errorf("the old call fails again: %v", err)
					}
				}
			}
		})
	}
	for range 3 {
		require.NoError(t, pgbucket.Migrate(t.Context(), pool))
	}
	close(done)
	all.Wait()

	ok, cold, level := take("used")
	require.True(t, !ok && !cold && level == before+60_000_000, "the level stays")
	bucket := pgbucket.New(pool)
	held := one("held", every(60_000_000))
	_, err = bucket.Take(t.Context(), held)
	require.NoError(t, err)
	now := value[int64](t, pool, "", "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
	held.Hold, held.First, held.Ahead = now+3_600_000_000, 2, 0
	taken, err := bucket.Take(t.Context(), held)
	require.NoError(t, err)
	require.Equal(t, held.Hold, taken.Hold)
	ok, cold, level = take("held")
	require.True(t, !ok && !cold)
	require.Equal(t, held.Hold, level, "the hold holds an old process too")
	require.Equal(t, held.Hold, levelOf(t, pool, "leaky_buckets", "held").Hold)

	// The old schema, if an old process migrates once more, is not brought back; nor does it find anything missing.
	require.Equal(t, "pgbucket v3", value[string](t, pool, "", "SELECT obj_description(to_regproc('leaky_buckets_take'), 'pg_proc')"))
}

// Processes of version 2 go on working while a new release migrates their tables, and afterwards. So do those of this version
// before: they lack seats and keepers until then, and nothing else.
func TestProcessesOfVersion2WorkBesideNewOnes(t *testing.T) {
	old, err := os.ReadFile("testdata/schema_v2.sql")
	require.NoError(t, err)
	pool := newPool(t, newDatabase(t))
	exec(t, pool, "", string(old), pgx.QueryExecModeSimpleProtocol)
	bucket := pgbucket.New(pool) // Its Take is the one of version 2.
	hour := every(3_600_000_000)
	first, err := bucket.Take(t.Context(), one("used", hour))
	require.NoError(t, err)
	fill(t, pool, "leaky_buckets", "old", 3, time.Hour)
	deleted, err := bucket.Sweep(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, deleted)
	_, err = bucket.Seats(t.Context(), seating("key"))
	require.ErrorContains(t, err, "has Migrate been called?")
	_, err = bucket.Keep(t.Context(), keeping("key"))
	require.ErrorContains(t, err, "has Migrate been called?")

	// A dump, which reads the table for long, must not make Migrate wait, nor all Takes behind it.
	dump, err := newPool(t, pool.Config().ConnString()).Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, dump.Rollback(context.Background())) }()
	value[int](t, dump, "", "SELECT count(*) FROM leaky_buckets")

	var all sync.WaitGroup
	done := make(chan struct{})
	for i := range 8 {
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				if _, err := bucket.Take(t.Context(), one(fmt.Sprint(i, " ", n), hour)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	impatient := newPool(t, pool.Config().ConnString(), "lock_timeout=10s")
	for range 3 {
		require.NoError(t, pgbucket.Migrate(t.Context(), impatient))
	}
	close(done)
	all.Wait()
	again, err := bucket.Take(t.Context(), one("used", hour))
	require.NoError(t, err)
	require.Equal(t, first.Empty.Micros+hour.Micros, again.Empty.Micros, "the level stays")
	_, err = bucket.Seats(t.Context(), seating("key"))
	require.NoError(t, err)
	kept, err := bucket.Keep(t.Context(), keeping("key"))
	require.NoError(t, err)
	require.Equal(t, "a", kept.ID)
	_, err = bucket.Sweep(t.Context())
	require.NoError(t, err)
}

// The role of a service often may use tables and not make any. One that was given rights for the first version
// can do what that version could.
func TestMigrateNeedsNoRightsWhereAllIsThere(t *testing.T) {
	owner := newPool(t, startServer(t).URL)
	table, name := newTable(t, owner)
	exec(t, owner, name, "CREATE ROLE TBL_user LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON TBL TO TBL_user", pgx.QueryExecModeSimpleProtocol)
	user := newPool(t, strings.Replace(server.URL, "postgres@", name+"_user@", 1))
	require.NoError(t, pgbucket.Migrate(t.Context(), user, table))
	bucket := pgbucket.New(user, table)
	taken, err := bucket.Take(t.Context(), one("key", every(1)))
	require.NoError(t, err)
	require.NoError(t, bucket.GiveBack(t.Context(), one("key", every(1)), taken.Empty))
	_, err = bucket.Sweep(t.Context())
	require.NoError(t, err)
	_, err = bucket.Seats(t.Context(), seating("key"))
	require.ErrorContains(t, err, "permission denied for table "+name+"_seat")
	_, err = bucket.Keep(t.Context(), keeping("key"))
	require.ErrorContains(t, err, "permission denied for table "+name+"_kept")

	exec(t, owner, name, "GRANT SELECT, INSERT, UPDATE, DELETE ON TBL_seat, TBL_kept TO TBL_user")
	_, err = bucket.Seats(t.Context(), seating("key"))
	require.NoError(t, err)
	_, err = bucket.Keep(t.Context(), keeping("key"))
	require.NoError(t, err)
	exec(t, owner, name, "UPDATE TBL_seat SET written = 1; UPDATE TBL_kept SET written = 1", pgx.QueryExecModeSimpleProtocol)
	deleted, err := bucket.Sweep(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, deleted)

	err = pgbucket.Migrate(t.Context(), user, pgbucket.WithTable("unborn"))
	require.ErrorContains(t, err, "pgbucket: Migrate: ")
	require.ErrorContains(t, err, "permission denied")
}

func TestWithoutMigrateTheErrorSaysSo(t *testing.T) {
	bucket := pgbucket.New(newPool(t, startServer(t).URL), pgbucket.WithTable("nowhere"))
	_, err := bucket.Take(t.Context(), one("key", every(1)))
	require.ErrorContains(t, err, "has Migrate been called?")
	require.ErrorContains(t, bucket.GiveBack(t.Context(), one("key", every(1)), one("key", every(1)).High), "has Migrate been called?")
	_, err = bucket.Sweep(t.Context())
	require.ErrorContains(t, err, "has Migrate been called?")
	_, err = bucket.Seats(t.Context(), seating("key"))
	require.ErrorContains(t, err, "has Migrate been called?")
	_, err = bucket.Keep(t.Context(), keeping("key"))
	require.ErrorContains(t, err, "has Migrate been called?")
}

// Whoever applies schema.sql with another tool gets the same as from Migrate.
func TestTheSchemaIsWhatMigrateMakes(t *testing.T) {
	file, err := os.ReadFile("schema.sql")
	require.NoError(t, err)
	unquoted := regexp.MustCompile(`"(leaky_buckets(_[a-z]+)?)"`)
	require.Equal(t, string(file), unquoted.ReplaceAllString(pgbucket.Schema(), "$1"), "nothing but the quotes around the names differs")

	url := newDatabase(t)
	pool := newPool(t, url)
	shape := func(schema string) string {
		return value[string](t, pool, "", `SELECT string_agg(line, E'\n' ORDER BY line) FROM (
			SELECT concat_ws(' ', relname, relpersistence, attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid), reloptions) AS line
			FROM pg_attribute JOIN pg_class c ON c.oid = attrelid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
			WHERE relkind = 'r' AND relnamespace = $1::regnamespace AND attnum > 0
			UNION ALL SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = $1::regnamespace
			UNION ALL SELECT replace(pg_get_functiondef(oid), $1 || '.', '') FROM pg_proc WHERE pronamespace = $1::regnamespace
			UNION ALL SELECT proname || ' ' || obj_description(oid, 'pg_proc') FROM pg_proc WHERE pronamespace = $1::regnamespace
		) lines`, schema)
	}
	exec(t, pool, "", "CREATE SCHEMA by_hand; CREATE SCHEMA by_migrate", pgx.QueryExecModeSimpleProtocol)
	exec(t, newConn(t, url+"&search_path=by_hand"), "", string(file), pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, pgbucket.Migrate(t.Context(), newConn(t, url+"&search_path=by_migrate")))
	made := shape("by_migrate")
	require.Contains(t, made, "PRIMARY KEY (key)")
	require.Contains(t, made, "fillfactor=50")
	require.Contains(t, made, "leaky_buckets_take pgbucket v3")
	require.Contains(t, made, "leaky_buckets p empty bigint")
	require.Contains(t, made, "leaky_buckets_seat u ids bytea[]", "a crash empties it")
	require.Contains(t, made, "leaky_buckets_kept p value bytea", "a crash does not")
	require.Equal(t, shape("by_hand"), unquoted.ReplaceAllString(made, "$1"))
}

// The example of docs/shared.md works on a database that has nothing of ours yet, for the first
// process and for the next.
func TestWhatTheGuideShowsWorks(t *testing.T) {
	startServer(t)
	pool := newPool(t, newDatabase(t))
	for range 2 {
		s, bucket, err := newPayments(t.Context(), pool)
		require.NoError(t, err)
		require.NoError(t, s.Wait(t.Context()))
		require.NoError(t, s.Close())
		deleted, err := sweepNow(t.Context(), bucket)
		require.NoError(t, err)
		require.Zero(t, deleted, "the level was above 0 a moment ago")
	}
}
