package sharedfaults_test

import (
	"fmt"
	"math"
	"math/big"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper"
)

// A store is a server by which replicas know which of them has the line.
type store struct {
	addr   string // as plan.Addr
	server string // host:port
	kill   func()
	start  func()
	lose   func() // the state
}

// at returns the address by which a gateway reaches the store over a link of its own.
func (s store) at(link *servers.Proxy) string { return strings.Replace(s.addr, s.server, link.Addr, 1) }

// A trouble is what happens to three gateways that have one line.
type trouble struct {
	name     string
	long     bool          // left out of the short form
	lasts    time.Duration // what is judged
	happens  func(f *gatewayFleet, s store)
	use      float64 // of the quota, at least
	isSaved  bool    // the state of the store outlasts it, also on Redis
	isUneven bool    // shares are not judged: it is too short
	fallback int     // each gateway has 1/fallback of the quota while the store is away
}

var troubles = []trouble{
	{name: "the keeper is killed, in short", lasts: 7 * time.Second, happens: soonKilled, isUneven: true},
	{name: "nothing", long: true, lasts: 60 * time.Second, use: 0.95, happens: func(*gatewayFleet, store) {}},
	{name: "the keeper is killed and the store restarts", long: true, lasts: 60 * time.Second, use: 0.93, happens: killedAndRestarted},
	{name: "the store is away for longer than a lease", long: true, lasts: 25 * time.Second, happens: away6s, isSaved: true},
	{name: "all are replaced", long: true, lasts: 40 * time.Second, use: 0.95, happens: allAreReplaced},
	{name: "the keeper is stopped for 5 s", long: true, lasts: 25 * time.Second, happens: stopped5s},
	{name: "the keeper is cut off from the store", long: true, lasts: 25 * time.Second, use: 0.95, happens: cutOff},
	{name: "one after the other", long: true, lasts: 60 * time.Second, happens: oneAfterTheOther},
	{name: "the store is away, with a fallback", long: true, lasts: 30 * time.Second, use: 0.8, happens: awayWithFallback, isSaved: true, fallback: gateways},
}

// Wherever 200 callers of ten teams come in, they have one line, whatever happens to the gateways and to the store.
func TestGatewaysHaveOneLine(t *testing.T) { // Not beside other tests, as it measures times.
	table := new(strings.Builder)
	rows := tabwriter.NewWriter(table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows, "store\twhat happens\tcalls\tuse\t429\ttwice\tabove the bound\tmoves\tshares\t502\tbroken\tat full use again")
	t.Cleanup(func() {
		_ = rows.Flush()
		t.Logf("\n%s", table)
	})
	stores := []struct {
		name  string
		first int // the gateway that has the line at first: with 80 % of the callers, or with 10 %
		start func(t *testing.T, isSaved bool) store
	}{
		{"Redis", 1, func(t *testing.T, isSaved bool) store {
			options := saved
			if !isSaved {
				options = nil
			}
			r := servers.StartRedis(t, options...)
			return store{r.Addr, r.Addr, r.Kill, r.Restart, func() { r.MustDo("FLUSHALL") }}
		}},
		{"PostgreSQL", 0, func(t *testing.T, _ bool) store {
			db := startPostgres(t)
			return store{db.URL, db.Addr, db.Kill, db.Restart, func() {
				onConnection(t, db, func(conn *pgx.Conn) error {
					_, err := conn.Exec(t.Context(), "TRUNCATE leaky_buckets_kept")
					return err
				})
			}}
		}},
	}
	t.Run("stores", func(t *testing.T) {
		for _, s := range stores {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				for _, row := range troubles {
					t.Run(row.name, func(t *testing.T) {
						if row.long || s.name != "Redis" {
							atLength(t)
						}
						if !row.long && os.Getenv("SHAPER_LONG") != "" {
							t.Skip("the long form has it")
						}
						figures := row.run(t, s.start(t, row.isSaved), s.first)
						fmt.Fprintf(rows, "%s\t%s\t%s\n", s.name, row.name, figures)
					})
				}
			})
		}
	})
}

// run lets it happen, and returns the figures, which it judges.
func (row trouble) run(t *testing.T, s store, first int) (figures string) {
	t.Helper()
	f := startGateways(t, s, first, row.fallback)
	if row.long {
		time.Sleep(burst) // The levels of the line, which began full, drain: so the provider's stand at the burst then.
	}
	f.calls()
	time.Sleep(time.Second) // The burst leaves.
	f.begun = time.Now()
	row.happens(f, s)
	time.Sleep(time.Until(f.begun.Add(row.lasts)))
	f.end = time.Now()
	f.hangUp()
	f.calling.Wait()
	f.upstream.Close() // The last may still come to it.
	return f.judge(row)
}

// again is a promise that the line is at full use again.
type again struct {
	what    string
	from    time.Time
	within  time.Duration
	moves   int  // how often the line goes to another gateway, at most
	isDeath bool // calls that have left, or whose callers are connected to it, are lost
}

// uses promises that the line is at full use within a time from now on, and how often it moves.
func (f *gatewayFleet) uses(what string, within time.Duration, moves int) {
	f.again = append(f.again, again{what: what, from: time.Now(), within: within, moves: moves})
}

// at sleeps until a time of what is judged.
func (f *gatewayFleet) at(d time.Duration) { time.Sleep(time.Until(f.begun.Add(d))) }

// mustHave returns which gateway has the line.
func (f *gatewayFleet) mustHave() int {
	f.t.Helper()
	k := f.keeper()
	require.NotEqual(f.t, -1, k, "no gateway has the line")
	return k
}

// kills kills the gateway that has the line, and returns which it was.
func (f *gatewayFleet) kills() int {
	f.t.Helper()
	k := f.mustHave()
	f.members[k].Kill()
	f.again = append(f.again, again{"death", time.Now(), 5 * time.Second, 1, true})
	return k
}

func soonKilled(f *gatewayFleet, _ store) {
	f.at(500 * time.Millisecond)
	f.kills()
}

// Redis has no state then: the gateway that has the line keeps it.
func killedAndRestarted(f *gatewayFleet, s store) {
	f.at(10 * time.Second)
	k := f.kills()
	f.at(20 * time.Second)
	f.start(k)
	f.at(35 * time.Second)
	s.kill()
	s.start()
	f.uses("restart", 2*time.Second, 0)
}

// The gateway that has the line goes on to the end of its lease. Then calls wait, and nothing leaves.
func away6s(f *gatewayFleet, s store) {
	f.at(5 * time.Second)
	s.kill()
	silent := time.Now().Add(3*time.Second + answering)
	time.Sleep(6 * time.Second)
	require.Equal(f.t, -1, f.keeper())
	back := time.Now()
	f.provider.mu.Lock()
	for call, times := range f.provider.arrived {
		require.Falsef(f.t, times[0].After(silent) && times[0].Before(back), "the call %s has left without a lease", call)
	}
	f.provider.mu.Unlock()
	s.start()
	f.uses("return", 2*time.Second, 1)
}

// Each gateway is asked to end, waits for the calls that have left, and is started again, as in a deployment.
func allAreReplaced(f *gatewayFleet, _ store) {
	for i := range gateways {
		f.at(time.Duration(5+10*i) * time.Second)
		if i == f.keeper() {
			f.uses("hand-over", 2*time.Second, 1)
		}
		require.Zero(f.t, f.members[i].Stop(syscall.SIGTERM))
		f.start(i)
	}
}

// stops stops the gateway that has the line until a time.
func (f *gatewayFleet) stops(until time.Duration) {
	f.t.Helper()
	k := f.mustHave()
	f.members[k].Signal(syscall.SIGSTOP)
	f.uses("stop", 5*time.Second, 1)
	f.at(until)
	require.NotEqual(f.t, k, f.keeper())
	f.members[k].Signal(syscall.SIGCONT)
}

// cuts cuts the gateway that has the line off from the store until a time.
func (f *gatewayFleet) cuts(until time.Duration) {
	f.t.Helper()
	k := f.mustHave()
	f.links[k].BlackHole(true)
	f.uses("cut", 5*time.Second, 1)
	f.at(until)
	require.NotEqual(f.t, k, f.mustHave())
	f.links[k].BlackHole(false)
}

func stopped5s(f *gatewayFleet, _ store) {
	f.at(5 * time.Second)
	f.stops(10 * time.Second)
}

func cutOff(f *gatewayFleet, _ store) {
	f.at(5 * time.Second)
	f.cuts(12 * time.Second)
}

func oneAfterTheOther(f *gatewayFleet, s store) {
	f.at(3 * time.Second)
	k := f.kills()
	f.at(10 * time.Second)
	f.start(k)
	k = f.kills()
	f.at(17 * time.Second)
	f.start(k)
	f.stops(22 * time.Second)
	s.lose()
	f.uses("loss", 2*time.Second, 0)
	f.at(27 * time.Second)
	s.kill()
	time.Sleep(time.Second)
	s.start()
	f.uses("restart", 2*time.Second, 0)
	f.at(35 * time.Second)
	f.cuts(42 * time.Second)
	f.at(45 * time.Second)
	k = f.mustHave()
	f.uses("hand-over", 2*time.Second, 1)
	require.Zero(f.t, f.members[k].Stop(syscall.SIGTERM))
	f.start(k)
	f.at(52 * time.Second)
	f.kills()
}

// While the store is away each gateway has a line of its own. The level of the one that had the line is full, and drains at its part of
// the rate: so its calls come last.
func awayWithFallback(f *gatewayFleet, s store) {
	f.at(5 * time.Second)
	s.kill()
	f.uses("outage", time.Second, math.MaxInt16)
	f.at(18 * time.Second)
	s.start()
	f.uses("return", 2*time.Second, 1)
}

// judge requires what is promised of all that was written down, and returns it as a row of the table.
func (f *gatewayFleet) judge(row trouble) string {
	t := f.t
	t.Helper()
	stats := f.provider.Stats()
	twice, inTime := 0, 0
	byTeam := map[string]int{}
	for call, times := range f.provider.arrived {
		if len(times) > 1 {
			twice++
		}
		if !times[0].Before(f.begun) && times[0].Before(f.end) {
			inTime++
			team, _, _ := strings.Cut(call, "/")
			byTeam[team]++
		}
	}
	use := float64(inTime) / perSecond / f.end.Sub(f.begun).Seconds()
	share := 0.0 // the greatest deviation from one
	for i := range teams {
		team := fmt.Sprint("team-", i)
		share = max(share, math.Abs(float64(byTeam[team])*shares/float64(shareOf(team)*inTime)-1))
	}

	var left []model.Departure // that were sent
	hasLeft := map[string]bool{}
	for i, file := range f.logs {
		for _, l := range leavings(t, file) {
			if l.what == departed {
				hasLeft[l.call] = true
				continue
			}
			left = append(left, model.Departure{At: l.at.Sub(f.begun), Process: i, Cost: 1})
		}
	}
	slices.SortFunc(left, func(a, b model.Departure) int { return int(a.At - b.At) })
	pace := model.SharedPace{
		Interval: big.NewRat(int64(time.Second), perSecond), Burst: int64(perSecond * burst / time.Second), Lateness: shaper.DefaultSlack + clocks,
	}
	surplus, moves, mayMove := pace.Surplus(left), 0, 0
	for i := 1; i < len(left); i++ {
		if left[i].Process != left[i-1].Process {
			moves++
		}
	}

	underWay := 0 // when a gateway was killed
	for _, a := range f.again {
		for _, l := range left {
			if at := a.from.Sub(f.begun); a.isDeath && l.At > at-answering-250*time.Millisecond && l.At <= at {
				underWay++
			}
		}
	}
	for call, at := range f.gone {
		if times := f.provider.arrived[call]; times != nil {
			require.Lessf(t, times[0].Sub(at), 2*time.Second, "the call %s has left after its caller has gone", call)
		}
	}
	lost, broken := 0, 0
	for call, status := range f.ended {
		switch status {
		case http.StatusBadGateway:
			lost++
			require.Truef(t, hasLeft[call], "the call %s got 502, and had not left", call)
		case 0:
			if f.provider.arrived[call] != nil {
				broken++
			}
		}
	}
	var again, late []string
	for i, a := range f.again {
		from := a.from.Sub(f.begun)
		to := from + a.within
		if i+1 < len(f.again) {
			to = min(to, f.again[i+1].from.Sub(f.begun))
		}
		mayMove += a.moves
		after := fullFrom(left, from, to)
		if again = append(again, fmt.Sprintf("%s +%.1f s", a.what, after.Seconds())); after > a.within {
			late = append(late, a.what)
		}
	}
	figures := fmt.Sprintf("%d\t%.1f %%\t%d\t%d\t%d\t%d\t±%.1f %%\t%d\t%d\t%s",
		inTime, 100*use, stats.Refused, twice, surplus, moves, 100*share, lost, broken, strings.Join(again, ", "))
	t.Log(figures)

	require.Empty(t, f.strange[:min(len(f.strange), 5)], "what no caller should get")
	require.Zero(t, stats.Refused, "calls that the provider has refused")
	require.Zero(t, twice, "calls that were sent twice")
	require.Zero(t, surplus, "calls above the bound of every window")
	require.LessOrEqual(t, moves, mayMove, "the line goes from one gateway to another")
	require.GreaterOrEqual(t, use, row.use)
	if !row.isUneven {
		require.LessOrEqual(t, share, 0.05)
	}
	require.LessOrEqual(t, lost+broken, underWay, "calls that were lost with their gateway")
	require.Empty(t, late, "at full use again")
	return figures
}

// fullFrom returns how long after an instant the line is at full use again: it is through a whole second, after the longest pause until
// another instant, if there is a pause.
func fullFrom(left []model.Departure, from, to time.Duration) time.Duration {
	const pause = 250 * time.Millisecond // Shorter ones may be the machine's.
	after, longest := from, pause
	for i := 1; i < len(left); i++ {
		if lasts := min(left[i].At, to) - max(left[i-1].At, from); lasts > longest {
			after, longest = left[i].At, lasts
		}
	}
	for i, d := range left {
		if n := i + perSecond*95/100; d.At >= after && n < len(left) && left[n].At <= d.At+time.Second {
			return d.At - from
		}
	}
	return time.Hour
}
