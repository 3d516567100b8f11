package sharedfaults_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper/shared"
)

// capOfAll is how many calls of all workers together may be under way.
const capOfAll = 20

// A seatStore is a server whose seats four workers share.
type seatStore struct {
	t       *testing.T
	url     string // for workers
	addr    string // of it, which is in the URL
	loses   func()
	kill    func()
	restart func()
}

func capOnRedis(t *testing.T) seatStore {
	r := servers.StartRedis(t)
	return seatStore{t, r.Addr, r.Addr, func() { r.MustDo("FLUSHALL") }, r.Kill, r.Restart}
}

func capOnPostgres(t *testing.T) seatStore {
	db := startPostgres(t)
	loses := func() {
		onConnection(t, db, func(conn *pgx.Conn) error {
			var tables string
			if err := conn.QueryRow(t.Context(), "SELECT string_agg(relname, ', ') FROM pg_class WHERE relkind = 'r' AND relname LIKE 'leaky\\_%'").Scan(&tables); err != nil {
				return err
			}
			_, err := conn.Exec(t.Context(), "TRUNCATE "+tables)
			return err
		})
	}
	return seatStore{t, db.URL, db.Addr, loses, db.Kill, db.Restart}
}

// A capFate is what four workers do that share a cap, and what happens to them.
type capFate struct {
	name   string
	long   bool
	calls  capCalls      // if 0, of up to 3 s, as long as some outlive a lease
	span   time.Duration // as long at least it is judged
	uneven bool          // one worker has a line, and calls for a tenth of the seats come to each of the others
	breaks func(f *fleet, s seatStore, network *servers.Proxy)
	use    float64               // at least
	bound  func(worker int) bool // which may have calls that outlive their lease; nil: none
}

// The calls are a tenth as long as in the tests of package shaper; leases are not. So calls of 10 ms are used less: each waits
// for its slot for the time of a round trip.
var capFates = []capFate{
	{name: "even, calls of 10 ms", calls: capCalls{shortest, shortest}, breaks: lasts(10), use: 0.70, long: true},
	{name: "even, calls of up to 1 s", calls: capCalls{100 * time.Millisecond, time.Second}, breaks: lasts(4), use: 0.95},
	{name: "even, calls of up to 30 s", calls: capCalls{100 * time.Millisecond, 30 * time.Second}, breaks: lasts(40), use: 0.99, long: true},
	{name: "uneven, calls of 10 ms", uneven: true, calls: capCalls{shortest, shortest}, breaks: lasts(30), use: 0.70, long: true},
	{name: "uneven, calls of up to 1 s", uneven: true, calls: capCalls{100 * time.Millisecond, time.Second}, breaks: lasts(40), use: 0.85, long: true},
	{name: "uneven, calls of up to 30 s", uneven: true, calls: capCalls{100 * time.Millisecond, 30 * time.Second}, breaks: lasts(40), use: 0.95, long: true},
	{name: "coming and going, calls of 10 ms", calls: capCalls{shortest, shortest}, breaks: comeAndGo, use: 0.70, long: true},
	{name: "coming and going, calls of up to 1 s", calls: capCalls{100 * time.Millisecond, time.Second}, breaks: comeAndGo, use: 0.90, long: true},
	{name: "coming and going, calls of up to 30 s", calls: capCalls{100 * time.Millisecond, 30 * time.Second}, breaks: comeAndGo, use: 0.95, long: true},
	{name: "one is killed", breaks: oneIsKilled, span: 30 * time.Second, use: 0.85, bound: onlyTheFirst, long: true},
	{name: "one is stopped", breaks: oneIsStopped, span: 30 * time.Second, use: 0.85, bound: onlyTheFirst, long: true},
	{name: "one is cut off", breaks: oneIsCutOff, span: 30 * time.Second, use: 0.85, bound: onlyTheFirst, long: true},
	{name: "the state is lost", calls: capCalls{100 * time.Millisecond, time.Second}, breaks: seatsAreLost, use: 0.85},
	{name: "the server is restarted", calls: capCalls{100 * time.Millisecond, time.Second}, breaks: theServerIsRestarted, span: 30 * time.Second, use: 0.70, long: true},
}

const shortest = 10 * time.Millisecond

// capCalls is how long calls are under way.
type capCalls struct{ shortest, longest time.Duration }

func onlyTheFirst(worker int) bool { return worker == 0 }

// Whatever happens, four workers have no more calls under way than the cap by seats whose lease lasts; and they use the
// seats that there are, before a fault and after.
func TestWorkersShareACap(t *testing.T) {
	t.Parallel()
	for _, on := range []struct {
		name  string
		start func(t *testing.T) seatStore
	}{{"Redis", capOnRedis}, {"PostgreSQL", capOnPostgres}} {
		for _, row := range capFates {
			t.Run(row.name+" on "+on.name, func(t *testing.T) {
				if row.long {
					atLength(t)
				}
				t.Parallel()
				s := on.start(t)
				network := servers.StartProxy(t, s.addr)
				p := plan{
					Addr: s.url, Key: "key", Rate: 10_000, Burst: 10_000, Slack: d,
					Cap: capOfAll, Shortest: row.calls.shortest, Longest: row.calls.longest,
				}
				if p.Longest == 0 {
					p.Shortest, p.Longest = 100*time.Millisecond, 3*time.Second
				}
				mean := (p.Shortest + p.Longest) / 2
				p.Waiters = 2 * (capOfAll + int(capOfAll*time.Second/mean)) // more than all seats serve within a second
				plans := four(p)
				plans[0].Addr = strings.Replace(s.url, s.addr, network.Addr, 1)
				if row.uneven {
					for i := range plans[1:] {
						plans[1+i].Waiters, plans[1+i].Part = 0, 0.1
					}
				}
				began := time.Now()
				f := startFleet(t, plans)
				time.Sleep(time.Second) // The last to begin have their seats.
				from := time.Now()
				row.breaks(f, s, network)
				time.Sleep(time.Until(from.Add(row.span)))
				row.judges(f, began, from, time.Now())
			})
		}
	}
}

// judges ends the workers, and judges what they have written from one instant to another.
func (row capFate) judges(f *fleet, began, from, to time.Time) {
	t := f.t
	asked := 0
	for _, e := range f.log() {
		if e.outcome == seated && e.at.After(from) && e.at.Before(to) {
			asked++
		}
	}
	for _, m := range f.workers {
		m.kill()
	}
	log := f.log().seats(began)
	for _, e := range f.marks {
		e.At -= time.Duration(began.UnixNano())
		log = append(log, e)
	}
	c := model.SharedCap{Cap: capOfAll, Lease: shared.SeatLease}
	end := to.Sub(began)
	u := c.Judge(log, from.Sub(began), end)
	t.Logf("%-50s %v; %.2f round trips per second and worker, %.3f per call", t.Name(), u, float64(asked)/to.Sub(from).Seconds()/4, float64(asked)/float64(u.Calls))
	require.NoError(t, c.Check(u))
	for i, n := range u.Overstay {
		if row.bound == nil || !row.bound(i) {
			require.Zero(t, n, "calls of worker %d that have outlived its lease", i)
		}
	}
	require.GreaterOrEqual(t, u.Use, row.use)
	after := c.Judge(log, end-3*time.Second, end)
	require.GreaterOrEqual(t, after.Use, 0.9*row.use, "at the end")
}

// seats returns the entries as the model judges them. Instants count from one before all.
func (l log) seats(began time.Time) (all []model.SeatEvent) {
	what := map[outcome]model.SeatWhat{came: model.Waits, gaveUp: model.GivesUp, departed: model.Begins, ended: model.Ends, seated: model.Leased}
	for _, e := range l {
		if w, ok := what[e.outcome]; ok {
			all = append(all, model.SeatEvent{At: e.at.Sub(began), Process: e.worker, What: w, Since: e.came().Sub(began)})
		}
	}
	return all
}

// marks notes what happens to a worker.
func (f *fleet) mark(worker int, what model.SeatWhat) {
	f.marks = append(f.marks, model.SeatEvent{At: time.Duration(time.Now().UnixNano()), Process: worker, What: what})
}

// lasts lets some seconds pass in which nothing happens.
func lasts(seconds time.Duration) func(*fleet, seatStore, *servers.Proxy) {
	return func(*fleet, seatStore, *servers.Proxy) { time.Sleep(seconds * time.Second) }
}

// In turn the line of each worker goes for 8 s.
func comeAndGo(f *fleet, _ seatStore, _ *servers.Proxy) {
	for i := range f.workers {
		time.Sleep(10 * time.Second)
		f.workers[i].does(order{Do: goes})
		time.Sleep(8 * time.Second)
		f.workers[i].does(order{Do: comes})
	}
	time.Sleep(5 * time.Second)
}

// A worker that is killed has seats for a lease longer. Another begins meanwhile.
func oneIsKilled(f *fleet, _ seatStore, _ *servers.Proxy) {
	time.Sleep(5 * time.Second)
	f.mark(0, model.Stops)
	f.workers[0].kill()
	time.Sleep(2 * time.Second)
	f.adds(f.workers[1].plan)
	f.goesOnAfter(shared.SeatLease)
}

func oneIsStopped(f *fleet, _ seatStore, _ *servers.Proxy) {
	time.Sleep(5 * time.Second)
	f.mark(0, model.Stops)
	f.workers[0].pause()
	time.Sleep(shared.SeatLease + 2*time.Second)
	f.workers[0].resume()
	f.mark(0, model.GoesOn)
	f.goesOnAfter(time.Second)
}

func oneIsCutOff(f *fleet, _ seatStore, network *servers.Proxy) {
	time.Sleep(5 * time.Second)
	f.mark(0, model.IsCutOff)
	network.BlackHole(true)
	time.Sleep(shared.SeatLease + 2*time.Second)
	network.BlackHole(false)
	f.mark(0, model.IsReached)
	f.goesOnAfter(time.Second)
}

// All tell what they hold, and meanwhile nobody gets a seat.
func seatsAreLost(f *fleet, s seatStore, _ *servers.Proxy) {
	s.loses()
	f.goesOnAfter(shared.SeatGuard)
}

// Nobody leaves while the server is away and until it is asked again, as slots come from it too.
func theServerIsRestarted(f *fleet, s seatStore, _ *servers.Proxy) {
	time.Sleep(5 * time.Second)
	s.kill()
	time.Sleep(3 * time.Second)
	s.restart()
	f.goesOnAfter(shared.SeatGuard)
}

// goesOnAfter waits until requests of each worker that lives leave after a time, and for a few seconds more.
func (f *fleet) goesOnAfter(span time.Duration) {
	f.t.Helper()
	time.Sleep(span)
	f.leaves(time.Now())
	time.Sleep(4 * time.Second)
}
