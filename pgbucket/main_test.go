package pgbucket_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/pgbucket"
	"example.com/leakybucket/shaper/shared"
)

// All tests use one server, which is started by the first that needs it. Each has tables of
// its own.
var (
	started sync.Once
	server  *servers.Postgres
	atEnd   []func()
)

// TestMain runs more tests at once than there are processors, as most of their time is waiting.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "6"); err != nil { // The command line is read later, and wins.
		panic(err)
	}
	code := m.Run()
	for _, end := range slices.Backward(atEnd) {
		end()
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// forAll is the test that starts a server for all of them: the server stays when it ends.
type forAll struct{ testing.TB }

func (forAll) Cleanup(f func()) { atEnd = append(atEnd, f) }

func startServer(t testing.TB) *servers.Postgres {
	t.Helper()
	started.Do(func() { server = servers.StartPostgres(forAll{t}, "-c", "max_connections=200") })
	if server == nil {
		t.Skip("PostgreSQL is not installed, as an earlier test says")
	}
	return server
}

var tables atomic.Int64

// newTable makes a table of its own for a test, and returns the option that names it.
func newTable(t testing.TB, db pgbucket.DB) (option pgbucket.Option, name string) {
	t.Helper()
	name = fmt.Sprintf("buckets_%d", tables.Add(1))
	option = pgbucket.WithTable(name)
	require.NoError(t, pgbucket.Migrate(t.Context(), db, option))
	return option, name
}

// A testBucket is a Bucket with a table of its own.
type testBucket struct {
	*pgbucket.Bucket
	pool  *pgxpool.Pool
	table pgbucket.Option
	name  string // of the table
}

func newBucket(t testing.TB) testBucket {
	t.Helper()
	b := testBucket{pool: newPool(t, startServer(t).URL)}
	b.table, b.name = newTable(t, b.pool)
	b.Bucket = pgbucket.New(b.pool, b.table)
	return b
}

// newPool returns a pool of connections whose settings (as "lock_timeout=50ms") are in the
// form of the parameters of a URL.
func newPool(t testing.TB, url string, settings ...string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(strings.Join(append([]string{url, "pool_max_conns=32"}, settings...), "&"))
	require.NoError(t, err)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func newConn(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
	return conn
}

// newDatabase makes a database of its own for a test of names, and returns its URL.
func newDatabase(t testing.TB) (url string) {
	t.Helper()
	name := fmt.Sprintf("names_%d", tables.Add(1))
	exec(t, newConn(t, startServer(t).URL), "", "CREATE DATABASE "+name)
	return strings.Replace(server.URL, "/postgres?", "/"+name+"?", 1)
}

// exec runs SQL in which TBL stands for a table.
func exec(t testing.TB, db pgbucket.DB, table, sql string, args ...any) {
	t.Helper()
	_, err := db.Exec(t.Context(), strings.ReplaceAll(sql, "TBL", table), args...)
	require.NoError(t, err)
}

// value returns the one value that SQL selects, in which TBL stands for a table.
func value[T any](t testing.TB, db pgbucket.DB, table, sql string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, db.QueryRow(t.Context(), strings.ReplaceAll(sql, "TBL", table), args...).Scan(&v))
	return v
}

// every is the rate of one cost unit in so many microseconds, with a burst of 1.
func every(micros int64) shared.BucketRate {
	return shared.BucketRate{Version: 1, Micros: micros, Parts: 1, Burst: 1}
}

// one is a Take of cost 1, which may leave at any time within MaxAhead.
func one(key string, rate shared.BucketRate) shared.Take {
	return shared.Take{Key: key, Cost: 1, First: 1, Ahead: shared.MaxAhead, Rate: rate}
}

// levelOf returns the state of a key.
func levelOf(t *testing.T, db pgbucket.DB, table, key string) (l shared.BucketLevel) {
	t.Helper()
	err := db.QueryRow(t.Context(), "SELECT empty, empty_part, written, version, unit, unit_part, parts, burst, hold FROM "+table+" WHERE key = $1", []byte(key)).
		Scan(&l.Empty.Micros, &l.Empty.Part, &l.At, &l.Rate.Version, &l.Rate.Micros, &l.Rate.Part, &l.Rate.Parts, &l.Rate.Burst, &l.Hold)
	if err != pgx.ErrNoRows {
		require.NoError(t, err)
	}
	return l
}

// setLevel sets the state of a key.
func setLevel(t *testing.T, db pgbucket.DB, table, key string, l shared.BucketLevel) {
	t.Helper()
	exec(t, db, table, `INSERT INTO TBL (key, empty, empty_part, written, version, unit, unit_part, parts, burst, hold) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
		ON CONFLICT (key) DO UPDATE SET (empty, empty_part, written, version, unit, unit_part, parts, burst, hold) = ($2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		[]byte(key), l.Empty.Micros, l.Empty.Part, l.At, l.Rate.Version, l.Rate.Micros, l.Rate.Part, l.Rate.Parts, l.Rate.Burst, l.Hold)
}
