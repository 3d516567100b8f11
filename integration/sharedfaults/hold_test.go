package sharedfaults_test

import (
	"cmp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper/shared"
)

// held is for how long the upstream asks one worker to hold back, in seconds: 20 s, scaled.
const held = 5

// A fate is what becomes of a hold of all processes.
type fate struct {
	name  string
	long  bool
	plan  plan
	start starter
}

var fates = []fate{
	{name: "nothing at 10 per second", plan: plan{Rate: 10, Waiters: 8}, start: onRedis(staysHeld)},
	{name: "nothing at 100 per second", start: onRedis(staysHeld), long: true},
	{name: "nothing at 1000 per second", plan: plan{Rate: 1000, Waiters: 64}, start: onRedis(staysHeld)},
	{name: "nothing with a burst", plan: plan{Burst: 50}, start: onRedis(staysHeld), long: true},
	{name: "nothing on PostgreSQL", start: onPostgres(staysHeld)},
	{name: "the rate is ten times as great", start: onRedis(isHeldAt[*servers.Redis](10))},
	{name: "the rate is ten times as great on PostgreSQL", start: onPostgres(isHeldAt[*servers.Postgres](10))},
	{name: "the rate is halved", start: onRedis(isHeldAt[*servers.Redis](0.5))},
	{name: "the rate is halved on PostgreSQL", start: onPostgres(isHeldAt[*servers.Postgres](0.5)), long: true},
	{name: "the setter is killed", start: onRedis(losesItsSetter[*servers.Redis])},
	{name: "the setter is killed on PostgreSQL", start: onPostgres(losesItsSetter[*servers.Postgres]), long: true},
	{name: "FLUSHALL", start: onRedis(isFlushed)},
	{name: "TRUNCATE", start: onPostgres(isTruncated)},
}

// One of four workers meets a 429 with a time. Then nobody leaves but by what it had leased, until that time has passed.
func TestA429ToOneHoldsAll(t *testing.T) {
	t.Parallel()
	for _, row := range fates {
		t.Run(row.name, func(t *testing.T) {
			if row.long {
				atLength(t)
			}
			t.Parallel()
			p := row.plan
			p.Key, p.Rate, p.Slack, p.Waiters = "key", cmp.Or(p.Rate, 100), d, cmp.Or(p.Waiters, 16)
			breaks := row.start(t, &p)
			f := startFleet(t, four(p))
			breaks(f)
			reports, l := f.ends()
			greatest := p
			for _, m := range reports {
				greatest.Rate = max(greatest.Rate, float64(m.Stats.Limits.Rate))
			}
			l.keepsPaceBut(t, greatest, heldByOthers(greatest))
			f.accounts(reports)
		})
	}
}

// meets429 lets the first worker meet a 429, and returns when the others must have heard of it, at least as far as they
// ask, and when the hold ends at the earliest: it is never too short.
func (f *fleet) meets429() (told, end time.Time) {
	f.t.Helper()
	end = time.Now().Add(held * time.Second)
	r := f.workers[0].does(order{Do: meet429, For: held})
	require.False(f.t, r.Stats.HeldUntil.Before(end))
	return time.Now().Add(250 * time.Millisecond), end // The Timeout of a call.
}

// staysHeldFrom requires that at most what was leased leaves from an instant until the end of a hold, and waits until
// each worker goes on.
func (f *fleet) staysHeldFrom(from, end time.Time) {
	f.t.Helper()
	p := f.plan()
	time.Sleep(time.Until(end))
	f.leaves(end)
	leased := min(shared.MaxAhead, p.time(4*p.held())) + p.Slack + clocks
	f.finally = append(f.finally, func(_ []report, l log) {
		l = l.only(departed)
		require.LessOrEqual(f.t, int64(len(l.between(from, end))), heldByOthers(p), "what the others had leased")
		require.Empty(f.t, l.between(from.Add(leased), end), "from %v until %v", from.Add(leased), end)
	})
}

func staysHeld[S any](f *fleet, _ S) { f.staysHeldFrom(f.meets429()) }

// isHeldAt returns the fate of a hold during which another worker changes the rate by a factor.
func isHeldAt[S any](factor float64) func(f *fleet, _ S) {
	return func(f *fleet, _ S) {
		told, end := f.meets429()
		time.Sleep(time.Second)
		f.workers[1].does(order{Do: setRate, Rate: f.plan().Rate * factor})
		f.staysHeldFrom(told, end)
	}
}

// losesItsSetter is the fate of a hold whose setter is killed, and that of a worker which comes later.
func losesItsSetter[S any](f *fleet, _ S) {
	told, end := f.meets429()
	time.Sleep(time.Until(told))
	f.workers[0].kill()
	newcomer := f.plan()
	newcomer.Waiters = 2
	f.adds(newcomer)
	f.staysHeldFrom(told, end)
}

func isFlushed(f *fleet, r *servers.Redis) { f.isLost(func() { r.MustDo("FLUSHALL") }) }

func isTruncated(f *fleet, db *servers.Postgres) { f.isLost(func() { theTableIsEmptied(f, db) }) }

// isLost is the fate of a hold whose state is lost, which a new worker finds first. It may leave until the setter repeats
// the hold: for a second, and by what it has leased by then.
func (f *fleet) isLost(loses func()) {
	_, end := f.meets429()
	time.Sleep(1200 * time.Millisecond)
	f.adds(f.plan())
	loses()
	repeated := time.Now().Add(time.Second + 250*time.Millisecond)
	time.Sleep(time.Until(repeated))
	f.staysHeldFrom(repeated, end)
}
