package sharedfaults_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper"
)

// startLossy starts an engine for a test that loses its state. It returns a plan for the
// engine, and what each way to lose the state does.
func startLossy(t *testing.T, e engine) (plan, map[string]func()) {
	p := plan{Engine: e, Key: "lossy", Rate: 1000, Waiters: 16, Slack: d}
	switch e {
	case redisEngine:
		r := startRedis(t)
		p.Addrs = []string{r.Addr}
		return p, map[string]func(){
			"FLUSHALL": func() { r.MustDo("FLUSHALL") },
			"DEL": func() {
				keys := r.MustDo("KEYS", "*").([]any)
				require.Len(t, keys, 1)
				r.MustDo("DEL", keys[0].(string))
			},
		}
	default:
		db := startPostgres(t)
		p.Addrs = []string{db.URL}
		return p, map[string]func(){
			"TRUNCATE": func() { execute(t, db, "TRUNCATE leaky_buckets") },
			"DELETE":   func() { execute(t, db, "DELETE FROM leaky_buckets") },
		}
	}
}

// The first process to ask after a loss makes a new state, which begins after the latest slot
// that this process has leased. Slots beyond that which others hold are given twice.
func TestALostStateGivesTwiceOnlyWhatIsHeld(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		engine
		way   string
		guard bool
	}{
		{redisEngine, "FLUSHALL", false},
		{redisEngine, "FLUSHALL", true},
		{redisEngine, "DEL", false},
		{postgresEngine, "TRUNCATE", false},
		{postgresEngine, "DELETE", true},
	} {
		name := string(row.engine) + " " + row.way
		if row.guard {
			name += " with a guard"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, ways := startLossy(t, row.engine)
			extra := 3 * p.held()
			if row.guard {
				extra, p.Guard = 0, p.time(4*p.held())
			}
			f := startFleet(t, four(p))
			f.warmsUp(600 * time.Millisecond)
			at := time.Now()
			ways[row.way]()
			to := f.reaches(600*time.Millisecond, at.Add(p.Guard), p.Rate*busy)
			reports, l := f.ends()
			l.keepsPaceBut(t, p, extra)
			f.accounts(reports)
			require.Greater(t, l.rate(at.Add(p.Guard), to), p.Rate*busy)
			if unloaded {
				require.Less(t, l.gap(at, to), p.time(4*p.held())+p.Guard+d)
			}
		})
	}
}

// The script of a Bucket is not in its state: it is loaded again, and nobody notices.
func TestLostScriptsCostNothing(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	f := startFleet(t, four(plan{Engine: redisEngine, Addrs: []string{r.Addr}, Key: "scripts", Rate: 1000, Waiters: 16, Slack: d}))
	for range 10 {
		f.runsFor(100 * time.Millisecond)
		r.MustDo("SCRIPT", "FLUSH")
	}
	reports, l := f.ends()
	l.keepsPace(t, f.plan())
	f.accounts(reports)
	for _, r := range reports {
		require.Empty(t, r.unexpected(), "it is sent again, which is no failure")
	}
}

// While the server is away slots pass unused. With a burst of 1 the level has reached 0 when all
// slots have passed that processes hold, so it does not matter whether the server has saved it.
// A level of a greater burst lasts longer. If it was not saved, the first process to ask tells
// how high it knows the level to have been; what others have taken beyond that is forgotten.
func TestARestartedServerIsNoLicence(t *testing.T) {
	t.Parallel()
	away := 250 * time.Millisecond
	for name, row := range map[string]struct {
		options []string
		burst   int
		restart func(r *servers.Redis)
	}{
		"killed without persistence":           {nil, 1, func(r *servers.Redis) { r.Kill(); time.Sleep(away); r.Restart() }},
		"stopped without persistence":          {nil, 1, func(r *servers.Redis) { r.Stop(); time.Sleep(away); r.Restart() }},
		"killed with persistence":              {saved, 1, func(r *servers.Redis) { r.Kill(); time.Sleep(away); r.Restart() }},
		"burst 500 killed with persistence":    {saved, 500, func(r *servers.Redis) { r.Kill(); time.Sleep(away); r.Restart() }},
		"burst 500 killed without persistence": {nil, 500, func(r *servers.Redis) { r.Kill(); time.Sleep(away); r.Restart() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRedis(t, row.options...)
			f := startFleet(t, four(plan{Engine: redisEngine, Addrs: []string{r.Addr}, Key: "restarted", Rate: 1000, Burst: row.burst, Waiters: 16, Slack: d}))
			require.Less(t, 4*f.plan().time(f.plan().held())+d, away, "the server is away for longer than slots are held")
			f.warmsUp(500 * time.Millisecond)
			row.restart(r)
			back := time.Now()
			to := f.reaches(1500*time.Millisecond, back.Add(noise), f.plan().Rate*busy)
			_, l := f.ends()
			extra := int64(0)
			if row.options == nil {
				extra = min(int64(row.burst)-1, 3*f.plan().held())
			}
			l.keepsPaceBut(t, f.plan(), extra)
			require.Greater(t, l.rate(back.Add(noise), to), f.plan().Rate*busy)
		})
	}
	t.Run("PostgreSQL stopped at once", func(t *testing.T) {
		t.Parallel()
		db := startPostgres(t)
		f := startFleet(t, four(plan{Engine: postgresEngine, Addrs: []string{db.URL}, Key: "restarted", Rate: 1000, Waiters: 16, Slack: d}))
		f.warmsUp(500 * time.Millisecond)
		db.Stop(servers.PostgresImmediate)
		time.Sleep(away)
		db.Start()
		back := time.Now()
		to := f.reaches(2*time.Second, back.Add(time.Second), f.plan().Rate*busy)
		_, l := f.ends()
		l.keepsPace(t, f.plan())
		require.Greater(t, l.rate(back.Add(time.Second), to), f.plan().Rate*busy)
	})
}

// saved are the options of a server whose state outlasts it. It has written what it has
// answered; while it waited for a slow disk once a second, it would not.
var saved = []string{"--appendonly", "yes", "--appendfsync", "no"}

// A level lasts Burst/Rate, which for logins is longer than a restart of the server and of all
// processes takes. A server that has saved it refuses as before. One that has not gives the
// burst once more, which is at most Burst - 1 beyond the bound.
func TestABurstIsGivenTwiceOnlyIfItsLevelIsNotSaved(t *testing.T) {
	t.Parallel()
	p := plan{Rate: 1. / 60, Burst: 5}
	for name, row := range map[string]struct {
		options []string
		again   int
		extra   int64
	}{
		"saved":     {saved, 0, 0},
		"not saved": {nil, 5, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRedis(t, row.options...)
			var left []model.Departure
			logins := func(process int, key string) (allowed int, answered bool) {
				b := open(t, plan{Engine: redisEngine, Addrs: []string{r.Addr}})
				own := newShared(t, b, shaper.Limits{Rate: rate.Limit(p.Rate), Burst: p.Burst}, shaper.WithBucket(b, key))
				for range 10 {
					if own.Allow() {
						allowed++
						left = append(left, model.Departure{At: time.Duration(len(left)), Process: process, Number: allowed, Cost: 1})
					}
				}
				return allowed, own.Stats().Bucket.Failures == 0
			}
			before, after, answered := 0, 0, false
			// A call that a busy machine has made too slow may have taken. Then others log in.
			for attempt := 0; !answered && attempt < 20; attempt++ {
				key := fmt.Sprint("logins-", attempt)
				left = nil
				if before, answered = logins(0, key); answered {
					r.Kill()
					r.Restart()
					after, answered = logins(1, key)
				}
			}
			require.True(t, answered)
			require.Equal(t, 5, before)
			require.Equal(t, row.again, after)
			require.Equal(t, row.extra, p.pace().Surplus(left))
		})
	}
}

// After a fail-over another server answers at once, which knows less than the first: nothing,
// or what there was a while ago.
func TestAFailOverGivesTwiceOnlyWhatIsHeld(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		lags  bool
		guard bool
	}{
		"to an empty server":              {},
		"to an empty server with a guard": {guard: true},
		"to a replica that lags":          {lags: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := startRedis(t), startRedis(t)
			proxy := servers.StartProxy(t, first.Addr)
			p := plan{Engine: redisEngine, Addrs: []string{proxy.Addr}, Key: "failover", Rate: 1000, Waiters: 16, Slack: d}
			extra := 3 * p.held()
			if row.guard {
				extra, p.Guard = 0, p.time(4*p.held())
			}
			if row.lags {
				replicate(t, first, second)
			}
			f := startFleet(t, four(p))
			f.warmsUp(500 * time.Millisecond)
			if row.lags {
				realtime.Until(t, func() bool { return second.MustDo("DBSIZE") == "1" }, "the replica has the level")
				second.MustDo("REPLICAOF", "NO", "ONE")
				require.Len(t, second.MustDo("KEYS", "*"), 1)
				f.runsFor(100 * time.Millisecond)
			}
			proxy.SetTarget(second.Addr)
			proxy.CutAll()
			at := time.Now()
			to := f.reaches(time.Second, at.Add(noise), p.Rate*busy)
			reports, l := f.ends()
			l.keepsPaceBut(t, p, extra)
			require.Greater(t, l.rate(at.Add(noise), to), p.Rate*busy)
			f.accounts(reports)
			require.NotZero(t, scriptsRun(t, second), "the other server answers")
		})
	}
}

// replicate makes a server the replica of another, and returns when it is.
func replicate(t *testing.T, first, second *servers.Redis) {
	t.Helper()
	first.MustDo("CONFIG", "SET", "repl-diskless-sync-delay", "0")
	host, port := hostPort(t, first.Addr)
	second.MustDo("REPLICAOF", host, port)
	realtime.Until(t, func() bool { return info(t, second, "replication", "master_link_status") == "up" }, "the replica is one")
}
