package pgbucket_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/pgbucket"
	"example.com/leakybucket/shaper/shared"
)

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
