package pgbucket_test

import (
	"cmp"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/pgbucket"
	"example.com/leakybucket/shaper/shared"
)

// takeTogether lets many sessions take from one row at once, and checks that each has begun
// where the one before has ended, on a clock that never went back. The first Take has found
// nobody else.
func takeTogether(t *testing.T, buckets []*pgbucket.Bucket) {
	t.Helper()
	const each = 100
	rate := shared.BucketRate{Version: 1, Micros: 700, Part: 1, Parts: 3, Burst: 1}
	var mu sync.Mutex
	var all []shared.Taken
	var sessions sync.WaitGroup
	for _, bucket := range buckets {
		sessions.Go(func() {
			for range each {
				take := one("key", rate)
				take.First, take.Rate.Burst = 1, 1<<20 // may leave however far ahead
				taken, err := bucket.Take(t.Context(), take)
				if err != nil || !taken.OK {
					t.Errorf("%+v, %v", taken, err)
					return
				}
				mu.Lock()
				all = append(all, taken)
				mu.Unlock()
			}
		})
	}
	sessions.Wait()
	require.Len(t, all, each*len(buckets))
	slices.SortFunc(all, func(a, b shared.Taken) int {
		return cmp.Or(cmp.Compare(a.Empty.Micros, b.Empty.Micros), cmp.Compare(a.Empty.Part, b.Empty.Part))
	})
	for i, taken := range all {
		require.Equal(t, i == 0, taken.Cold)
		if i == 0 {
			continue
		}
		before := all[i-1]
		require.GreaterOrEqual(t, taken.Now, before.Now, "Take %d: the clock was read before the row was locked", i)
		want := shared.Instant{Micros: before.Empty.Micros + 700, Part: before.Empty.Part + 1}
		if want.Part == 3 {
			want = shared.Instant{Micros: want.Micros + 1}
		}
		if want.Micros < taken.Now { // Nobody took for a while.
			want = shared.Instant{Micros: taken.Now}
		}
		require.Equal(t, want, taken.Empty, "Take %d: what another session took is lost", i)
	}
}

func TestSessionsOnOneRowLoseNoUpdate(t *testing.T) {
	t.Parallel()
	pool := newPool(t, startServer(t).URL)
	table, _ := newTable(t, pool)
	bucket := pgbucket.New(pool, table)
	takeTogether(t, slices.Repeat([]*pgbucket.Bucket{bucket}, 24))
}

// In transaction mode each statement may reach another session of the server, so what one
// leaves behind in its session is not there for the next.
func TestPgBouncerInTransactionModeWillDo(t *testing.T) {
	t.Parallel()
	url := servers.StartPgBouncer(t, startServer(t))
	var buckets []*pgbucket.Bucket
	table, name := newTable(t, newConn(t, url))
	for range 16 {
		buckets = append(buckets, pgbucket.New(newConn(t, url), table))
	}
	takeTogether(t, buckets)

	bucket := buckets[0]
	taken, err := bucket.Take(t.Context(), one("another", every(1)))
	require.NoError(t, err)
	require.NoError(t, bucket.GiveBack(t.Context(), one("another", every(1)), shared.Instant{Micros: taken.Empty.Micros + 1}))
	pool := newPool(t, url)
	require.Equal(t, taken.Empty, levelOf(t, newConn(t, server.URL), name, "another").Empty)
	n, err := pgbucket.New(pool, table).Sweep(t.Context())
	require.NoError(t, err)
	require.Zero(t, n, "nothing is that old")
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = pgbucket.New(tx, table).Take(t.Context(), one("another", every(1)))
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
}

// A process that comes to know that a state was lost goes on from where it was.
func TestTruncateIsHealedByWhoKnowsTheLevel(t *testing.T) {
	t.Parallel()
	pool := newPool(t, startServer(t).URL)
	table, name := newTable(t, pool)
	const sessions, each, truncations = 16, 150, 5
	rate := every(1000)

	var mu sync.Mutex
	colds, asked := 0, 0
	truncated := make(chan struct{}, truncations)
	var running sync.WaitGroup
	for range sessions {
		bucket := pgbucket.New(pool, table)
		running.Go(func() {
			var high shared.Instant
			var seen int64
			for range each {
				take := one("key", rate)
				take.Rate.Burst = 1 << 20
				take.High, take.Seen = high, seen
				taken, err := bucket.Take(t.Context(), take)
				if err != nil || !taken.OK {
					t.Errorf("%+v, %v", taken, err)
					return
				}
				if taken.Empty.Micros < high.Micros {
					t.Errorf("a session was given a slot at %d again, of which it had some up to %d", taken.Empty.Micros, high.Micros)
				}
				high, seen = shared.Instant{Micros: taken.Empty.Micros + 1000}, taken.Now
				mu.Lock()
				asked++
				if taken.Cold {
					colds++
				}
				if asked%(sessions*each/(truncations+1)) == 0 && len(truncated) < truncations {
					truncated <- struct{}{}
					if _, err := pool.Exec(t.Context(), "TRUNCATE "+name); err != nil {
						t.Error(err)
					}
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	require.Len(t, truncated, truncations)
	require.Equal(t, 1+truncations, colds, "no Take was lost by a truncation, and none has made it twice")
}
