package sharedfaults_test

import (
	"maps"
	"math/big"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/pgbucket"
	"example.com/leakybucket/shaper"
)

// Sixteen sessions take from one row at once, and the sum is what all have taken: no update
// is lost to one that has read the row before.
func TestNoUpdateIsLostAmongManySessions(t *testing.T) {
	t.Parallel()
	db := startPostgres(t)
	pool, err := pgxpool.New(t.Context(), db.URL+"&pool_max_conns=20")
	require.NoError(t, err)
	defer pool.Close()
	b := pgbucket.New(pool)
	third := shaper.BucketRate{Version: 1, Micros: 1_000_000, Part: 1, Parts: 3000, Burst: 1_000_000}
	take := func(cost int64) shaper.Taken {
		taken, err := b.Take(t.Context(), shaper.Take{Key: "sessions", Cost: cost, First: 1, Rate: third})
		if err != nil || !taken.OK {
			t.Errorf("%+v, %v", taken, err)
		}
		return taken
	}
	first := take(1000).Empty
	var sum atomic.Int64
	var sessions sync.WaitGroup
	for i := range 16 {
		sessions.Go(func() {
			for j := range 100 {
				cost := int64(1 + (i*7+j)%5)
				take(cost)
				sum.Add(cost)
			}
		})
	}
	sessions.Wait()
	last := take(1).Empty
	instant := func(i shaper.Instant) *big.Rat {
		return new(big.Rat).SetFrac64(i.Micros*third.Parts+i.Part, third.Parts)
	}
	want := new(big.Rat).SetFrac64((1000+sum.Load())*(third.Micros*third.Parts+third.Part), third.Parts)
	require.Equal(t, want.Add(want, instant(first)), instant(last))
}

// Connections that the server ends, and rows that others hold, cost the calls that meet
// them, and nothing more.
func TestAServerInTroubleIsNoLicence(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(t *testing.T, db *servers.Postgres, f *fleet){
		"its sessions end": func(t *testing.T, db *servers.Postgres, f *fleet) {
			before := failures(f)
			for ended := 0; ended < 3 || failures(f) == before; ended++ {
				require.Less(t, ended, 300, "no call fails")
				execute(t, db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
				time.Sleep(100 * time.Millisecond)
			}
		},
		"the row is locked for longer than a call takes": func(t *testing.T, db *servers.Postgres, f *fleet) {
			conn, err := pgx.Connect(t.Context(), db.URL)
			require.NoError(t, err)
			defer conn.Close(t.Context())
			tx, err := conn.Begin(t.Context())
			require.NoError(t, err)
			tag, err := tx.Exec(t.Context(), "SELECT * FROM leaky_buckets FOR UPDATE")
			require.NoError(t, err)
			require.EqualValues(t, 1, tag.RowsAffected())
			before := failures(f)
			time.Sleep(400 * time.Millisecond)
			realtime.Until(t, func() bool { return failures(f) > before }, "a call fails")
			require.NoError(t, tx.Rollback(t.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := startPostgres(t)
			f := startFleet(t, four(plan{Engine: postgresEngine, Addrs: []string{db.URL}, Key: "trouble", Rate: 1000, Waiters: 16, Slack: d}))
			f.warmsUp(500 * time.Millisecond)
			trouble(t, db, f)
			back := time.Now()
			to := f.reaches(1500*time.Millisecond, back.Add(noise), f.plan().Rate*busy)
			reports, l := f.ends()
			l.keepsPace(t, f.plan())
			f.accounts(reports)
			require.Greater(t, l.rate(back.Add(noise), to), f.plan().Rate*busy)
		})
	}
}

// failures returns how many calls of a fleet have failed.
func failures(f *fleet) (n uint64) {
	for _, r := range f.each(order{Do: tell}) {
		n += r.Stats.Bucket.Failures
	}
	return n
}

// After a fail-over a standby may answer for a while, which only reads. That counts as an
// outage, and what it knows is not used.
func TestAServerThatOnlyReadsCountsAsDown(t *testing.T) {
	atLength(t)
	t.Parallel()
	db := startPostgres(t)
	standby := db.StartStandby()
	url, proxy := proxyPostgres(t, db)
	f := startFleet(t, four(plan{Engine: postgresEngine, Addrs: []string{url}, Key: "standby", Rate: 400, Arrivals: 60, Slack: d}))
	p := f.plan()
	f.warmsUp(500 * time.Millisecond)
	before := f.each(order{Do: tell})
	proxy.SetTarget(standby.Addr)
	proxy.CutAll()
	from := time.Now()
	f.runsFor(1200 * time.Millisecond)
	// The latest call of each may have had no answer in time, on a busy machine again and again.
	down := f.waitsFor("each is down, and was told 25006, read_only_sql_transaction", func(r report) bool {
		told := slices.ContainsFunc(slices.Collect(maps.Keys(r.Errors)), func(text string) bool { return strings.Contains(text, "(SQLSTATE 25006)") })
		return r.Stats.Bucket.State == shaper.BucketDown && told
	})
	silent := from.Add(p.ahead(before, down) + d + noise/2)
	f.runsFor(max(0, time.Until(silent)) + 500*time.Millisecond)
	realtime.Until(t, func() bool { return len(f.log().only(unavailable)) > 0 }, "newcomers are refused")
	to := time.Now()
	proxy.SetTarget(db.Addr)
	proxy.CutAll()
	f.waitsForState(shaper.BucketShared)
	f.leaves(to)
	_, l := f.ends()
	l.keepsPace(t, p)
	require.Empty(t, l.only(departed).between(silent, to))
}
