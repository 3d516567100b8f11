package sharedfaults_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/big"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/pgbucket"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper/shared"
)

// d is the lateness of the fleets: a little more than the default, so that the tests show that
// Limits.Slack counts.
const d = 25 * time.Millisecond

// A fault is something that goes wrong, or is hard, while four processes share a bucket.
type fault struct {
	name  string
	long  bool // left out of the short form
	plan  plan // differences from 1000 per second, with 16 requests in the line of each process
	start starter
	extra func(p plan) int64 // departures that may be above the pace; nil: none
}

// A starter starts the servers of a plan, writes their address into it, and returns the function
// that makes something go wrong.
type starter func(t *testing.T, p *plan) (breaks func(f *fleet))

// heldByOthers returns how many requests may leave beyond the bound when a state is lost: three
// processes hold slots that are unknown to the first to ask.
func heldByOthers(p plan) int64 { return 3 * p.held() }

// burstThatIsForgotten returns the same for a server that was away for longer than slots are held.
func burstThatIsForgotten(p plan) int64 { return min(int64(p.Burst)-1, heldByOthers(p)) }

// away is for how long servers are away: longer than slots are held.
const away = 250 * time.Millisecond

// saved are the options of a server whose state outlasts it. It writes each change before it
// answers; while it waited for a slow disk once a second, it would not.
var saved = []string{"--appendonly", "yes", "--appendfsync", "no"}

// The batch k can't be set: it follows from how many wait and from the rate. With one waiter
// in each process k is 1, and every slot is leased by itself. A guard of 128 ms is the time of
// the slots that four processes hold.
var faults = []fault{
	{name: "nothing at 100 per second", plan: plan{Rate: 100, Waiters: 8}, start: onRedis(nothing)},
	{name: "nothing a slot at a time", plan: plan{Rate: 100, Waiters: 1}, start: onRedis(nothing), long: true},
	{name: "nothing at 3 per second", plan: plan{Rate: 3, Waiters: 4}, start: onRedis(nothing), long: true},
	{name: "nothing with a burst of 50", plan: plan{Burst: 50, Waiters: 32}, start: onRedis(nothing)},
	{name: "nothing at 10000 per second", plan: plan{Rate: 10_000, Waiters: 200}, start: onRedis(nothing), long: true},
	{name: "nothing on PostgreSQL", plan: plan{Rate: 10_000, Waiters: 200}, start: onPostgres(nothing), long: true},
	{name: "a server that is far away", plan: plan{Waiters: 64, Slack: 60 * time.Millisecond}, start: overNetwork(farAway)},

	{name: "a process is stopped for a second", start: onRedis(aProcessIsStopped)},
	{name: "a process is killed", start: onRedis(aProcessIsKilled), long: true},
	{name: "a process shuts down", start: onRedis(aProcessShutsDown), long: true},
	{name: "processes are replaced", start: onRedis(processesAreReplaced)},
	{name: "one process changes the rate", start: onRedis(theRateChanges)},
	{name: "one process changes the rate on PostgreSQL", start: onPostgres(theRateChanges), long: true},

	{name: "replies are lost", start: overNetwork(repliesAreLost)},
	{name: "FLUSHALL", start: onRedis(allIsFlushed), extra: heldByOthers},
	{name: "FLUSHALL with a guard", plan: plan{Guard: 128 * time.Millisecond}, start: onRedis(allIsFlushed), long: true},
	{name: "TRUNCATE", start: onPostgres(theTableIsEmptied), extra: heldByOthers},
	{name: "TRUNCATE with a guard", plan: plan{Guard: 128 * time.Millisecond}, start: onPostgres(theTableIsEmptied), long: true},
	{name: "the state is garbage", start: onRedis(damaged("garbage")), extra: heldByOthers, long: true},
	{name: "the state is of the next year", start: onRedis(damaged("")), extra: heldByOthers},

	{name: "the server is killed", plan: plan{Burst: 1}, start: onRedis(killed), extra: burstThatIsForgotten, long: true},
	{name: "the server is killed, whose state is saved", start: onRedis(killed, saved...), long: true},
	{name: "the server is killed at a great level", plan: plan{Burst: 500}, start: onRedis(killed), extra: burstThatIsForgotten},
	{name: "the server is killed at a great level that is saved", plan: plan{Burst: 500}, start: onRedis(killed, saved...), long: true},
	{name: "PostgreSQL is killed", start: onPostgres(killedThere), long: true},
	{name: "the server is paused", plan: plan{Rate: 400}, start: onRedis(isPaused)},
	{name: "the server is in a black hole", plan: plan{Rate: 400}, start: overNetwork(isInABlackHole), long: true},
	{name: "PostgreSQL is in a black hole", plan: plan{Rate: 400}, start: overNetworkToPostgres(isInABlackHole), long: true},
	{name: "a fail-over to an empty server", start: failOver(false), extra: heldByOthers},
	{name: "a fail-over to an empty server with a guard", plan: plan{Guard: 128 * time.Millisecond}, start: failOver(false), long: true},
	{name: "a fail-over to a replica that lags", start: failOver(true), extra: heldByOthers, long: true},
}

// Whatever happens, the processes together keep the pace, but for the exceptions in
// docs/shared-guarantees.md; every unit is accounted for, and each process takes part again.
func TestFaultsAreNoLicence(t *testing.T) {
	t.Parallel()
	for _, row := range faults {
		t.Run(row.name, func(t *testing.T) {
			if row.long {
				atLength(t)
			}
			t.Parallel()
			row.plays(t, row.plan, func(*fleet) {})
		})
	}
}

// The same holds while the workers share a cap, which has them wait for seats, and are held when the fault comes.
func TestFaultsWithAHoldAndACapAreNoLicence(t *testing.T) {
	t.Parallel()
	for _, row := range faults {
		t.Run(row.name, func(t *testing.T) {
			if row.name != "FLUSHALL" {
				atLength(t)
			}
			t.Parallel()
			p := row.plan
			p.Cap, p.Shortest, p.Longest = 8, 5*time.Millisecond, 25*time.Millisecond
			began := time.Now()
			l := row.plays(t, p, func(f *fleet) { f.workers[3].does(order{Do: meet429, For: 1}) })
			c := model.SharedCap{Cap: p.Cap, Lease: shared.SeatLease}
			u := c.Judge(l.seats(began), 0, time.Since(began))
			t.Logf("%v", u)
			require.NoError(t, c.Check(u))
		})
	}
}

// plays lets the fault come to four workers with a plan, judges what they have written, and returns it.
func (row fault) plays(t *testing.T, p plan, before func(f *fleet)) log {
	p.Key, p.Rate, p.Slack, p.Waiters = "key", cmp.Or(p.Rate, 1000), cmp.Or(p.Slack, d), cmp.Or(p.Waiters, 16)
	breaks := row.start(t, &p)
	f := startFleet(t, four(p))
	before(f)
	breaks(f)
	at := time.Now()
	time.Sleep(500 * time.Millisecond)
	f.leaves(at)
	reports, l := f.ends()
	if row.extra == nil {
		l.keepsPace(t, p)
	} else {
		l.keepsPaceBut(t, p, row.extra(p))
	}
	f.accounts(reports)
	return l
}

// onRedis starts a server for a fault.
func onRedis(breaks func(f *fleet, r *servers.Redis), options ...string) starter {
	return func(t *testing.T, p *plan) func(*fleet) {
		r := servers.StartRedis(t, options...)
		p.Addr = r.Addr
		return func(f *fleet) { breaks(f, r) }
	}
}

// onPostgres does the same with a server of PostgreSQL.
func onPostgres(breaks func(f *fleet, db *servers.Postgres)) starter {
	return func(t *testing.T, p *plan) func(*fleet) {
		db := startPostgres(t)
		p.Addr = db.URL
		return func(f *fleet) { breaks(f, db) }
	}
}

// overNetwork starts a server of Redis behind a proxy for a fault.
func overNetwork(breaks func(f *fleet, network *servers.Proxy)) starter {
	return func(t *testing.T, p *plan) func(*fleet) {
		network := servers.StartProxy(t, servers.StartRedis(t).Addr)
		p.Addr = network.Addr
		return func(f *fleet) { breaks(f, network) }
	}
}

// overNetworkToPostgres does the same with a server of PostgreSQL.
func overNetworkToPostgres(breaks func(f *fleet, network *servers.Proxy)) starter {
	return func(t *testing.T, p *plan) func(*fleet) {
		db := startPostgres(t)
		network := servers.StartProxy(t, db.Addr)
		p.Addr = strings.Replace(db.URL, db.Addr, network.Addr, 1)
		return func(f *fleet) { breaks(f, network) }
	}
}

func nothing[S any](*fleet, S) { time.Sleep(500 * time.Millisecond) }

// With a server that is far, slots are leased before they are due.
func farAway(_ *fleet, network *servers.Proxy) {
	network.SetDelay(20*time.Millisecond, 10*time.Millisecond)
	time.Sleep(500 * time.Millisecond)
}

// A process that has been stopped holds slots that have passed. When it goes on it drops
// them. Meanwhile the other processes use all slots but those.
func aProcessIsStopped(f *fleet, _ *servers.Redis) {
	f.workers[0].pause()
	from := time.Now()
	time.Sleep(time.Second)
	f.leaves(from.Add(f.plan().time(f.plan().held())), 1, 2, 3)
	f.workers[0].resume()
}

func aProcessIsKilled(f *fleet, _ *servers.Redis) { f.workers[0].kill() }

// A process that ends in order lets its line leave, and gives back the slots beyond.
func aProcessShutsDown(f *fleet, _ *servers.Redis) {
	f.workers[0].does(order{Do: shutdown})
	down := time.Now()
	end := f.workers[0].does(order{Do: quiet}) // The calls of the last to leave may not have returned.
	require.Zero(f.t, end.Stats.Waiting)
	f.accounts([]report{end})
	f.workers[0].kill()
	f.finally = append(f.finally, func(_ []report, l log) {
		for _, e := range l.of(0).where(func(e entry) bool { return e.outcome == departed || e.outcome == refused || e.outcome == unavailable }) {
			require.True(f.t, e.outcome == departed && !e.at.After(down) || e.outcome == refused && e.waited == 0, "all in line have left: %+v", e)
		}
	})
}

// The workers stop one after the other, as in a deployment, and others start.
func processesAreReplaced(f *fleet, _ *servers.Redis) {
	for i := range 4 {
		f.workers[i].does(order{Do: shutdown})
		f.workers[i].kill()
		f.adds(f.plan())
		time.Sleep(100 * time.Millisecond)
	}
}

// One process changes the rate, and all follow.
func theRateChanges[S any](f *fleet, _ S) {
	slower := f.plan()
	slower.Rate /= 5
	f.workers[1].does(order{Do: setRate, Rate: slower.Rate})
	f.waitsFor("each has the rate in force", func(r report) bool { return float64(r.Stats.Limits.Rate) == slower.Rate })
	time.Sleep(time.Second) // A busy machine may write later down what has left before.
	from := time.Now()
	f.leaves(from)
	to := time.Now()
	f.finally = append(f.finally, func(_ []report, l log) { l.between(from, to).keepsPace(f.t, slower) })
	f.workers[2].does(order{Do: setRate, Rate: f.plan().Rate})
	f.waitsFor("each has the rate in force", func(r report) bool { return float64(r.Stats.Limits.Rate) == f.plan().Rate })
}

// A call whose reply is lost has been carried out. If it counted as refused, slots would be given
// twice.
func repliesAreLost(f *fleet, network *servers.Proxy) {
	for range 8 {
		time.Sleep(50 * time.Millisecond)
		network.CutReplies(1)
	}
	for range 3 {
		time.Sleep(200 * time.Millisecond)
		network.LoseReplies(1)
	}
	f.until("calls fail", func() bool { return failures(f.each(order{Do: tell})) > 0 })
}

// failures returns how many calls of a fleet have failed.
func failures(reports []report) (n uint64) {
	for _, r := range reports {
		n += r.Stats.Bucket.Failures
	}
	return n
}

// The first process to ask after a loss makes a new state, which begins after the latest slot
// that this process has leased. Slots beyond that which others hold are given twice.
func allIsFlushed(_ *fleet, r *servers.Redis) { r.MustDo("FLUSHALL") }

func theTableIsEmptied(f *fleet, db *servers.Postgres) {
	onConnection(f.t, db, func(conn *pgx.Conn) error {
		_, err := conn.Exec(f.t.Context(), "TRUNCATE leaky_buckets")
		return err
	})
}

// damaged writes a text to the key, or if there is none, a state as a clock that is a year ahead
// would have written it.
func damaged(text string) func(*fleet, *servers.Redis) {
	return func(_ *fleet, r *servers.Redis) {
		const key = "shaper:key"
		if text == "" {
			fields := strings.Fields(r.MustDo("GET", key).(string))
			year := strconv.FormatInt(time.Now().AddDate(1, 0, 0).UnixMicro(), 10)
			fields[0], fields[2] = year, year
			text = strings.Join(fields, " ")
		}
		r.MustDo("SET", key, text)
	}
}

// While the server is away slots pass unused. With a burst of 1 the level has reached 0 when all
// slots have passed that processes hold, so it does not matter whether the server has saved it.
// A level of a greater burst lasts longer. If it was not saved, the first process to ask tells
// how high it knows the level to have been; slots that others have taken beyond are forgotten.
func killed(f *fleet, r *servers.Redis) {
	require.Less(f.t, 4*f.plan().time(f.plan().held())+d, away)
	r.Kill()
	time.Sleep(away)
	r.Restart()
}

func killedThere(_ *fleet, db *servers.Postgres) {
	db.Kill()
	time.Sleep(away)
	db.Restart()
}

// slots is for how long requests may leave in slots that were leased before an outage: these lie
// [shared.MaxAhead] ahead at most, and the latest call before may have taken 250 ms.
const slots = shared.MaxAhead + d + 250*time.Millisecond

// isSilent is an outage. Nobody leaves until the server answers again, and then all leave at the
// rate.
func isSilent(f *fleet, begin, end func()) {
	begin()
	silent := time.Now().Add(slots)
	f.waitsForState(shared.StateDown)
	time.Sleep(time.Until(silent) + 300*time.Millisecond)
	to := time.Now()
	end()
	f.waitsForState(shared.StateShared)
	f.finally = append(f.finally, func(_ []report, l log) {
		require.Empty(f.t, l.only(departed).between(silent, to), "nobody leaves")
	})
}

func isPaused(f *fleet, r *servers.Redis) { isSilent(f, r.Pause, r.Resume) }

func isInABlackHole(f *fleet, network *servers.Proxy) {
	isSilent(f, func() { network.BlackHole(true) }, func() { network.BlackHole(false) })
}

// failOver lets another server answer at once, which knows less than the first: nothing, or the
// level of a while ago.
func failOver(lags bool) starter {
	return func(t *testing.T, p *plan) func(*fleet) {
		first, second := servers.StartRedis(t), servers.StartRedis(t)
		proxy := servers.StartProxy(t, first.Addr)
		p.Addr = proxy.Addr
		return func(f *fleet) {
			keys := "1"
			if p.Cap > 0 {
				keys = "2" // The seats have one of their own.
			}
			if lags {
				first.MustDo("CONFIG", "SET", "repl-diskless-sync-delay", "0")
				host, port, err := net.SplitHostPort(first.Addr)
				require.NoError(t, err)
				second.MustDo("REPLICAOF", host, port)
				realtime.Until(t, func() bool { return second.MustDo("DBSIZE") == keys }, "the replica has the level")
				second.MustDo("REPLICAOF", "NO", "ONE")
				time.Sleep(100 * time.Millisecond)
			}
			proxy.FailOver(second.Addr)
			f.finally = append(f.finally, func([]report, log) { require.Equal(t, keys, second.MustDo("DBSIZE"), "the other server has answered") })
		}
	}
}

// Four workers with a bucket each let four times the rate leave. If the fleet and its judge
// did not notice that, the other tests would prove nothing.
func TestProcessesThatDoNotShareAreTold(t *testing.T) {
	t.Parallel()
	plans := four(plan{Addr: servers.StartRedis(t).Addr, Rate: 200, Waiters: 4, Slack: d})
	for i := range plans {
		plans[i].Key = fmt.Sprint("own-", i)
	}
	f := startFleet(t, plans)
	p := f.plan()
	realtime.Until(t, func() bool { return p.pace().Check(f.log().departures()) != nil }, "they are told")
	_, l := f.ends()
	require.ErrorContains(t, p.pace().Check(l.departures()), "the pace was exceeded")
	for i := range plans {
		l.of(i).keepsPace(t, p)
	}
}

// openBucket returns the shared bucket of a plan, and a function that closes it.
func openBucket(p plan) (b shared.Bucket, closeBucket func(), err error) {
	if !strings.HasPrefix(p.Addr, "postgres:") {
		// MaxRetries is what users have by default: the client would repeat what may be repeated.
		client := redis.NewClient(&redis.Options{
			Addr: p.Addr, ContextTimeoutEnabled: true, DialTimeout: time.Second, DialerRetries: 1,
			ReadTimeout: patience, WriteTimeout: patience, // of calls without a deadline
		})
		return redisbucket.New(client), func() { client.Close() }, nil
	}
	config, err := pgxpool.ParseConfig(p.Addr)
	if err != nil {
		return nil, nil, err
	}
	config.MaxConns = 4
	config.ConnConfig.ConnectTimeout = 10 * time.Second // A busy server needs a second for a new process.
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, nil, err
	}
	return pgbucket.New(pool), pool.Close, nil
}

// startPostgres starts a server which has the table of pgbucket.
func startPostgres(t *testing.T) *servers.Postgres {
	t.Helper()
	db := servers.StartPostgres(t, "-c", "max_connections=200")
	onConnection(t, db, func(conn *pgx.Conn) error { return pgbucket.Migrate(t.Context(), conn) })
	return db
}

// onConnection does something on a connection of its own to a server.
func onConnection(t *testing.T, db *servers.Postgres, do func(conn *pgx.Conn) error) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	require.NoError(t, do(conn))
}

// An outcome is how a request ended, or what else a worker has written down.
type outcome byte

const (
	departed    outcome = 'D'
	unavailable outcome = 'U' // refused with ErrUnavailable
	refused     outcome = 'R' // refused for another reason

	// With a cap, and not how a request ended:
	came   outcome = 'W' // a request has come
	gaveUp outcome = 'G' // one has got no seat
	ended  outcome = 'E' // a call has ended, which has taken so long
	seated outcome = 'S' // the worker has leased seats, by a call that has taken so long
)

// An entry is the end of one request.
type entry struct {
	worker  int
	outcome outcome
	at      time.Time     // when it left, was refused, or ended
	waited  time.Duration // since it came, or what the outcome says
}

// came returns when the request came.
func (e entry) came() time.Time { return e.at.Add(-e.waited) }

// A log has the entries that workers have written down, in the order of time.
type log []entry

// clocks is how far two processes may read the clock of the machine differently, and how
// much is lost as servers read it in microseconds.
const clocks = 20 * time.Microsecond

// readLog returns the entries of one worker so far. Only part of the last line may be
// there, as the system writes a line that lies on two pages in two steps, and as workers are
// killed; that line is left out.
func readLog(worker int, file string) (l log, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text[:bytes.LastIndexByte(text, '\n')+1]) {
		var at, waited int64
		e := entry{worker: worker}
		if _, err := fmt.Sscanf(string(line), "%c %d %d\n", &e.outcome, &at, &waited); err != nil {
			return nil, fmt.Errorf("the line %q: %w", line, err)
		}
		e.at, e.waited = time.Unix(0, at), time.Duration(waited)
		l = append(l, e)
	}
	return l, nil
}

// only returns the entries with an outcome.
func (l log) only(o outcome) log { return l.where(func(e entry) bool { return e.outcome == o }) }

// of returns the entries of one worker.
func (l log) of(worker int) log { return l.where(func(e entry) bool { return e.worker == worker }) }

// between returns the entries from one instant until before another.
func (l log) between(from, to time.Time) log {
	return l.where(func(e entry) bool { return !e.at.Before(from) && e.at.Before(to) })
}

func (l log) where(is func(entry) bool) (some log) {
	for _, e := range l {
		if is(e) {
			some = append(some, e)
		}
	}
	return some
}

// departures returns the departures as the model judges them: each with its number in the
// order in which the requests of its worker came. Of two that came at one instant, the one
// that left first counts as the first.
func (l log) departures() []model.Departure {
	left := l.only(departed)
	byEntry := slices.Clone(left)
	slices.SortStableFunc(byEntry, func(a, b entry) int { return a.came().Compare(b.came()) })
	all := make([]model.Departure, len(left))
	for i, e := range byEntry {
		all[i] = model.Departure{At: e.at.Sub(left[0].at), Process: e.worker, Number: int64(i), Cost: 1}
	}
	slices.SortStableFunc(all, func(a, b model.Departure) int { return cmp.Compare(a.At, b.At) })
	return all
}

// pace returns the pace that the workers of a plan promise together.
func (p plan) pace() model.SharedPace {
	interval := new(big.Rat).Quo(big.NewRat(int64(time.Second), 1), new(big.Rat).SetFloat64(p.Rate))
	return model.SharedPace{Interval: interval, Burst: int64(max(p.Burst, 1)), Lateness: p.Slack + clocks}
}

// keepsPace requires G1 of all departures, and the order within each worker.
func (l log) keepsPace(t *testing.T, p plan) {
	t.Helper()
	require.NotEmpty(t, l.only(departed))
	require.NoError(t, p.pace().Check(l.departures()))
}

// keepsPaceBut requires the same if up to extra departures are left out.
func (l log) keepsPaceBut(t *testing.T, p plan, extra int64) {
	t.Helper()
	require.NotEmpty(t, l.only(departed))
	require.NoError(t, model.CheckOrder(l.departures()))
	require.LessOrEqual(t, p.pace().Surplus(l.departures()), extra, "departures that do not keep the pace")
}
