package pgbucket_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/pgbucket"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

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
	_, err := b.db.Exec(b.t.Context(), "DELETE FROM "+b.table+" WHERE key = $1", []byte(key))
	return err
}

func (b tampered) Set(key string, l shared.BucketLevel) { setLevel(b.t, b.db, b.table, key, l) }

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
